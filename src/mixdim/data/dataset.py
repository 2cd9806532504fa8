"""A prepared folder as batches of tensors. Knows nothing about raw files or models."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from mixdim._util.arguments import whole_number
from mixdim._util.lazy import import_later
from mixdim.data.batches import (
    Batch,
    BatchOrder,
    BatchStream,
    UnknownDropout,
    checked_part,
    take_bags,
)
from mixdim.data.folder import (
    SPLITS,
    Meta,
    fingerprint,
    map_arrays,
    read_counts,
    read_meta,
    vocabulary_file,
)
from mixdim.data.unknown_values import unknown_shares

if TYPE_CHECKING:
    import torch

import_later(globals(), torch="torch")  # only batches need it


class Pairing(NamedTuple):
    """Who has what, in rows of positives and negatives.

    - `item`: the feature whose values negatives were drawn of; `users`: those that say whose a row is.
    - `nobody`: of each, the ids that are no value: missing and out of vocabulary.
    """

    item: str
    users: tuple[str, ...]
    nobody: dict[str, np.ndarray]


class Dataset:
    """A prepared folder, opened: nothing is read into memory before it is used."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.meta: Meta = read_meta(self.path)
        self._arrays = map_arrays(self.path, self.meta)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {stop - start:,}" for name, (start, stop) in self.splits.items())
        return f"Dataset({str(self.path)!r}, {len(self.feature_names)} features, {sizes} rows)"

    @property
    def feature_names(self) -> list[str]:
        """Names of the categorical features."""
        return [feature.name for feature in self.meta.features]

    @property
    def single_valued(self) -> list[str]:
        """Names of the features that have one id a sample: the columns of `batch.ids`."""
        return [feature.name for feature in self.meta.features if not feature.bag]

    @property
    def cardinalities(self) -> dict[str, int]:
        """Rows of each feature, the one for values out of vocabulary included."""
        return {feature.name: feature.rows for feature in self.meta.features}

    @property
    def num_dense(self) -> int:
        """Dense columns."""
        return len(self.meta.dense)

    @property
    def dense_names(self) -> tuple[str, ...]:
        """Names of the dense columns."""
        return self.meta.dense

    @property
    def task(self) -> str:
        """What the target is: "binary" or "rating"."""
        return self.meta.task

    @property
    def splits(self) -> dict[str, tuple[int, int]]:
        """First row of each split, and the row after its last."""
        return self.meta.splits

    @cached_property
    def fingerprint(self) -> str:
        """A digest of everything in the folder: it differs between data sets that differ."""
        page = (self.path / "meta.json").read_bytes()  # has the fingerprint of every other file
        return hashlib.blake2b(page, digest_size=16).hexdigest()

    @cached_property
    def vocabulary_fingerprint(self) -> str:
        """A digest of vocabularies and dense rules: where it is the same, ids and numbers mean the same.

        Without dense rules it is that of the vocabularies alone, as ever.
        """
        digest = hashlib.blake2b(digest_size=16)
        if self.meta.dense_rules is not None:
            digest.update(repr(self.meta.dense_rules).encode())
        for number in range(len(self.meta.features)):
            digest.update(fingerprint(self.path / vocabulary_file(number)).encode())
        return digest.hexdigest()

    @cached_property
    def mean_target(self) -> float:
        """The mean target of the training split."""
        start, stop = self.splits["train"]
        return float(self._arrays.target[start:stop].mean(dtype=np.float64)) if stop > start else 0.0

    @cached_property
    def counts(self) -> dict[str, np.ndarray]:
        """How often each id of each feature occurs in the training split; ids are ranks, so it falls."""
        return {
            feature.name: read_counts(self.path, self.meta, number)
            for number, feature in enumerate(self.meta.features)
        }

    @cached_property
    def pairing(self) -> Pairing | None:
        """Who has what, if negatives were drawn; else None."""
        if "negatives" not in self.meta.rows:
            return None
        item, users = self.meta.options["negatives_of"], self.meta.options["negatives_for"]
        nobody = {}
        for name in (item, *users):
            file = self.path / vocabulary_file(self.feature_names.index(name))
            kinds = pl.read_parquet(file, columns=["kind"], glob=False).to_series()
            nobody[name] = np.flatnonzero((kinds != "value").to_numpy())
        return Pairing(item, tuple(users), nobody)

    @cached_property
    def ids_per_sample(self) -> dict[str, float]:
        """Mean number of ids that a training row has in each multi-valued feature."""
        start, stop = self.splits["train"]
        return {
            name: float(offsets[stop] - offsets[start]) / max(stop - start, 1)
            for name, (_, offsets) in self._arrays.bags.items()
        }

    @cached_property
    def unknown_lookups(self) -> dict[str, dict[str, Any]]:
        """Of each feature, the shares of lookups of its row for unknown values, and if it was trained.

        Such as `{"user": {"validation": 0.31, "test": 0.34, "trained": False}}`; a share of nothing is
        None.
        """
        shares = unknown_shares(self.path, self.meta)
        return {
            f.name: {**shares[f.name], "trained": bool(self.counts[f.name][f.out_of_vocabulary])}
            for f in self.meta.features
        }

    @cached_property
    def untrained_unknown(self) -> tuple[str, ...]:
        """The features whose row for unknown values no training row uses.

        None if the vocabulary was cut (`--min-count`): then rare values train it, where there are any.
        """
        if self.meta.options.get("min_count", 1) > 1:
            return ()
        unseen = (f for f in self.meta.features if not self.counts[f.name][f.out_of_vocabulary])
        return tuple(feature.name for feature in unseen)

    @property
    def unknown_ids(self) -> dict[str, int]:
        """The id of each feature that all values share which its vocabulary does not have."""
        return {feature.name: feature.out_of_vocabulary for feature in self.meta.features}

    @cached_property
    def unknown_dropout(self) -> UnknownDropout:
        """Makes ids of training batches unknown, as `batches(..., unknown_dropout=True)` does."""
        return UnknownDropout(self.meta.features, self.counts)

    def batches(
        self,
        split: str,
        *,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        epoch: int = 0,
        position: int = 0,
        unknown_dropout: bool = False,
        part: tuple[int, int] | None = None,
        prefetch: int = 4,
    ) -> BatchStream:
        """Return the batches of a split, from batch number `position` on; the last one may be smaller.

        A shuffled epoch is one exact permutation of all rows, given by `seed` and `epoch` alone. With
        `unknown_dropout`, for training only, each id on its own becomes its feature's unknown id with
        probability 1 / (1 + its training count), drawn from `seed`, `epoch` and the batch's number.
        Batches are prepared `prefetch` ahead by a thread.

        With `part=(rank, world)`, of each batch only the share of one of `world` processes: all have
        ceil(rows / world), those that are missing repeat the last with a `weight` of 0.
        """
        if split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
        if unknown_dropout and split != "train":
            raise ValueError(f"unknown_dropout is for the split train only, got split {split!r}")
        order = BatchOrder(
            split=split,
            batch_size=whole_number(batch_size, "batch_size"),
            shuffle=bool(shuffle),
            seed=whole_number(seed, "seed", at_least=0),
            epoch=whole_number(epoch, "epoch", at_least=0),
            position=whole_number(position, "position", at_least=0),
            unknown_dropout=bool(unknown_dropout),
            part=checked_part(part),
        )
        return BatchStream(self, order, prefetch=whole_number(prefetch, "prefetch", at_least=0))

    def resume(self, state: dict[str, Any], *, prefetch: int = 4) -> BatchStream:
        """Continue a stream from its `state()`."""
        return self.batches(**state, prefetch=prefetch)

    def head(self, rows: int) -> Dataset:
        """The same data as if it ended after its first rows, which are those of the training split.

        Counts stay those of the whole training split.
        """
        rows = whole_number(rows, "rows")
        splits = {
            name: (min(start, rows), min(stop, rows)) for name, (start, stop) in self.splits.items()
        }
        first = Dataset.__new__(Dataset)  # not opened again, and nothing remembered of the whole
        first.path, first.meta, first._arrays = (
            self.path,
            replace(self.meta, splits=splits),
            self._arrays,
        )
        return first

    def rows(self, rows: slice | np.ndarray) -> Batch:
        """Read rows of the folder, by a slice or by their numbers."""
        found = self._arrays
        ids, target = _take(found.ids, rows), _take(found.target, rows)
        dense = np.empty((len(ids), 0), np.float32) if found.dense is None else _take(found.dense, rows)
        bags = {name: take_bags(*arrays, rows) for name, arrays in found.bags.items()}
        return Batch(torch.from_numpy(ids), torch.from_numpy(dense), torch.from_numpy(target), bags)


def _take(array: np.ndarray, rows: slice | np.ndarray) -> np.ndarray:
    return np.array(array[rows]) if isinstance(rows, slice) else array.take(rows, axis=0)
