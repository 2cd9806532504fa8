"""What training asks of the data it is given. Knows nothing about files or models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
from torch import Tensor


class Batch(Protocol):
    """Some samples; a model is called with it and reads what it needs.

    All its tensors are on one device. If the model is on another, it is moved there first, which a
    NamedTuple or a dataclass need do nothing for; another type has a method `to(device)`.
    """

    @property
    def ids(self) -> Tensor:
        """Ids of the single-valued features: (batch, features)."""

    @property
    def dense(self) -> Tensor:
        """Numbers: (batch, dense columns)."""

    @property
    def target(self) -> Tensor:
        """What to predict: (batch,)."""


class Batches(Protocol):
    """One epoch of a split, from some position on."""

    def __iter__(self) -> Iterator[Batch]: ...

    def __len__(self) -> int:
        """Batches of the whole epoch."""


class TrainingData(Protocol):
    """A `mixdim.data.Dataset`, or anything else that can do what is listed here."""

    @property
    def task(self) -> str:
        """`"binary"`: targets are 0 or 1 and a model returns logits; `"rating"`: any numbers."""

    @property
    def splits(self) -> Mapping[str, tuple[int, int]]:
        """First row of "train", "validation" and "test", and the row after the last."""

    @property
    def single_valued(self) -> Sequence[str]:
        """Names of the features whose ids are the columns of `batch.ids`."""

    @property
    def counts(self) -> Mapping[str, np.ndarray]:
        """How often each id of each feature occurs in the training split."""

    @property
    def fingerprint(self) -> str:
        """Text that differs between data sets that differ."""

    def batches(
        self,
        split: str,
        *,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        epoch: int = 0,
        position: int = 0,
    ) -> Batches:
        """Return the batches of a split from `position` on; an order depends on seed and epoch only.

        With the option `unknown_dropout`, and only then, it is also called with `unknown_dropout=True`;
        in a group of several processes, and only then, with `part=(rank, world)`: see `Dataset.batches`.
        """


class BaselineData(TrainingData, Protocol):
    """A `mixdim.data.Dataset`, or anything else to train on that knows its mean target."""

    @property
    def mean_target(self) -> float:
        """The mean target of the training split."""


def num_rows(data: TrainingData, split: str) -> int:
    """How many samples a split has."""
    if split not in data.splits:
        raise ValueError(f"split must be one of {', '.join(data.splits)}, got {split!r}")
    start, stop = data.splits[split]
    return stop - start
