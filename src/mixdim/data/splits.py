"""Which row belongs to which split. Knows nothing about what is in a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import polars as pl

from mixdim.data.folder import SPLITS


@dataclass(frozen=True)
class Split:
    """How many rows each split has, and which: in order of the source if there are no labels."""

    sizes: tuple[int, int, int]
    labels: np.ndarray | None = None  # (rows,) int8: the index of the row's split
    validation_drawn: bool = False  # from training, as the column of splits names none

    @property
    def bounds(self) -> dict[str, tuple[int, int]]:
        """First row, and the row after the last, of each split in the prepared folder."""
        return bounds_of(self.sizes)

    def members(self, start: int, stop: int) -> list[slice | np.ndarray]:
        """Of the source's rows from start to stop, those of each split, as indices relative to start."""
        if self.labels is not None:
            labels = self.labels[start:stop]
            return [np.flatnonzero(labels == split) for split in range(len(SPLITS))]
        return [
            slice(min(max(first, start), stop) - start, max(min(last, stop), start) - start)
            for first, last in self.bounds.values()
        ]


def bounds_of(sizes: Sequence[int]) -> dict[str, tuple[int, int]]:
    """First row, and the row after the last, of splits of these sizes."""
    return dict(zip(SPLITS, pairwise(accumulate(sizes, initial=0)), strict=True))


def take_rows(chunk: pl.DataFrame, rows: slice | np.ndarray) -> pl.DataFrame:
    """Some rows of a frame, as `Split.members` names them."""
    if isinstance(rows, slice):
        return chunk.slice(rows.start, rows.stop - rows.start)
    return chunk[rows]


def tenths(rows: int) -> tuple[int, int, int]:
    """80/10/10; training gets what does not divide."""
    return rows - 2 * (rows // 10), rows // 10, rows // 10


def halves(rows: int) -> tuple[int, int]:
    """Two halves; the first gets the odd row."""
    return rows - rows // 2, rows // 2


def all_test(rows: int) -> Split:
    """All rows test: they come after what was trained."""
    return Split((0, 0, rows))


def by_position(rows: int) -> Split:
    """The first 80 % train, then 10 % and 10 %."""
    return Split(tenths(rows))


def by_seven_days(rows: int) -> Split:
    """Seven days of equal length: six train, the halves of the last are validation and test."""
    day = rows // 7
    return Split((rows - day, *halves(day)))


def at_random(rows: int, seed: int) -> Split:
    """80/10/10 of a seeded shuffle. Takes one byte a row."""
    labels = np.repeat(np.arange(len(SPLITS), dtype=np.int8), tenths(rows))
    np.random.default_rng(seed).shuffle(labels)
    return Split(tenths(rows), labels)


def by_time(times: np.ndarray) -> Split:
    """The earliest 80 % train, then 10 % and 10 %; equal times in order of the rows. Sorts the times."""
    sizes = tenths(len(times))
    labels = np.empty(len(times), np.int8)
    labels[np.argsort(times, kind="stable")] = np.repeat(np.arange(len(SPLITS), dtype=np.int8), sizes)
    return Split(sizes, labels)


def by_column(labels: np.ndarray, seed: int) -> Split:
    """As the labels say; if none is validation, a seeded tenth of training is."""
    labels = labels.astype(np.int8)
    validation_drawn = not (labels == SPLITS.index("validation")).any()
    if validation_drawn:
        training = labels == SPLITS.index("train")
        rows = int(training.sum())
        tenth = np.repeat(np.array([0, 1], np.int8), (rows - rows // 10, rows // 10))
        np.random.default_rng(seed).shuffle(tenth)
        labels[training] = tenth
    train, validation, test = np.bincount(labels, minlength=len(SPLITS)).tolist()
    return Split((train, validation, test), labels, validation_drawn)
