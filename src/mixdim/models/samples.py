"""What a model reads of a batch, and in which shape. Knows nothing about where batches come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from mixdim.kernels import exporting
from mixdim.planning.feature import UnknownFeatureError


class Samples(Protocol):
    """A batch of samples, such as a `mixdim.data.Batch`."""

    @property
    def ids(self) -> Tensor:
        """One id for each sample and single-valued feature, int32 or int64: (batch, features)."""

    @property
    def dense(self) -> Tensor:
        """The numbers of each sample: (batch, dense columns)."""

    @property
    def bags(self) -> Mapping[str, tuple[Tensor, Tensor]]:
        """Values and offsets, by the name of the multi-valued feature: (values,), (batch + 1,).

        The bag of sample i is `values[offsets[i] : offsets[i + 1]]`; it may be empty.
        """


class Seen(Protocol):
    """Takes what a model looks up for a batch, by column of `Samples.ids`: a penalty in its loss."""

    def vectors(self, column: int, vectors: Tensor) -> None:
        """Take the vectors of a column of ids: (batch, width)."""

    def biases(self, column: int, biases: Tensor) -> None:
        """Take the numbers of a column of ids that are added to the output: (batch,)."""


def check_shape(tensor: Tensor, name: str, columns: int, meaning: str) -> None:
    """Say which shape a tensor of samples must have, if it is not (batch, columns).

    >>> check_shape(torch.zeros(4, 3), "ids", 2, "user and item")
    Traceback (most recent call last):
    ValueError: ids must have shape (batch, 2: user and item), got (4, 3)
    """
    if tensor.dim() != 2 or tensor.shape[1] != columns:
        raise ValueError(
            f"{name} must have shape (batch, {columns}: {meaning}), got {tuple(tensor.shape)}"
        )


def join_bags(
    ids: Tensor, bags: Mapping[str, tuple[Tensor, Tensor]], features: Iterable[str]
) -> tuple[Tensor, Tensor]:
    """Put all features into one pair of values and offsets, as `FeatureEmbeddings.bags` takes them.

    A feature without bags is the next column of `ids` (batch, features without bags), and each of its
    ids a bag of one. Returns (values,), (features * batch + 1,), feature by feature.

    >>> genres = torch.tensor([5, 6, 7]), torch.tensor([0, 2, 3])
    >>> values, offsets = join_bags(torch.tensor([[1], [2]]), {"genres": genres}, ["genres", "user"])
    >>> values.tolist(), offsets.tolist()
    ([5, 6, 7, 1, 2], [0, 2, 3, 4, 5])
    """
    features = list(features)
    check_bags(ids, bags, features)
    columns, one_each = iter(ids.unbind(1)), torch.arange(ids.shape[0] + 1, device=ids.device)
    parts = [bags[name] if name in bags else (next(columns), one_each) for name in features]
    values = torch.cat([values for values, _ in parts])
    # By shape, which an exported graph may not know yet; len() would make it a number.
    starts = accumulate((values.shape[0] for values, _ in parts), initial=0)
    shifted = [offsets[:-1] + start for (_, offsets), start in zip(parts, starts, strict=False)]
    return values, torch.cat([*shifted, one_each.new_full((1,), values.shape[0])])


def check_bags(ids: Tensor, bags: Mapping[str, tuple[Tensor, Tensor]], features: Sequence[str]) -> None:
    """Refuse bags that are of no feature, or do not fit the ids of the others."""
    for name in bags:
        if name not in features:
            raise UnknownFeatureError.among(name, features)
    check_shape(ids, "ids", len(features) - len(bags), "the features without bags")
    for name, (values, offsets) in bags.items():
        _check_offsets(name, values, offsets, batch_size=ids.shape[0])


def _check_offsets(name: str, values: Tensor, offsets: Tensor, *, batch_size: int) -> None:
    # Together, an offset too many in one feature and one too few in the next would look right.
    if offsets.shape != (batch_size + 1,):
        raise ValueError(
            f"offsets of feature {name!r} must have shape ({batch_size + 1},), one more than the batch, "
            f"got {tuple(offsets.shape)}"
        )
    if exporting():  # a graph cannot depend on numbers; its runtime takes what it is given
        return
    if int(offsets[0]) != 0 or int(offsets[-1]) != len(values):
        raise ValueError(
            f"offsets of feature {name!r} must rise from 0 to the number of values {len(values)}, "
            f"got {int(offsets[0])} to {int(offsets[-1])}"
        )
