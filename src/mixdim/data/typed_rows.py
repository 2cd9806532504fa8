"""Typed rows, which every raw format becomes: a target, dense numbers and values of features.

Knows nothing about raw formats or prepared folders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from mixdim.data.rejects import Rejects

Progress = Callable[[str, int, int | None], None]
TARGET, TIME, SPLIT = "target", "time", "split"  # columns of typed rows


def dense_column(index: int) -> str:
    """How typed rows call a dense column: float32, or float64 with nulls if rules are for it."""
    return f"dense.{index}"


def feature_column(index: int) -> str:
    """How typed rows call a feature: values, null where missing; of a bag, lists of values."""
    return f"feature.{index}"


@dataclass(frozen=True)
class Schema:
    """What typed rows hold."""

    task: str
    features: tuple[str, ...]
    dense: tuple[str, ...] = ()
    bags: frozenset[str] = frozenset()
    by_rules: bool = False  # whether dense columns are standardised by rules of the training split

    @property
    def columns(self) -> list[str]:
        """The columns of typed rows, beside the time."""
        dense = [dense_column(i) for i in range(len(self.dense))]
        return [TARGET, *dense, *(feature_column(i) for i in range(len(self.features)))]


@dataclass
class PredictionRows:
    """Rows that are only predicted: targets may be missing; a reader records here where rows stood."""

    has_target: bool = False  # whether the file has a target, if perhaps not in each row
    kept: dict[str, list[np.ndarray]] = field(default_factory=dict)  # lines, by file
    rejected: Mapping[str, list[np.ndarray]] = field(default_factory=dict)

    def keep(self, file: str, lines: np.ndarray) -> None:
        """Remember the lines of rows that are kept."""
        self.kept.setdefault(file, []).append(lines)

    def finish(self, rejects: Rejects) -> None:
        """Remember the lines of the rows that were not."""
        self.rejected = rejects.lines

    @property
    def places(self) -> np.ndarray:
        """The place of each row kept among all of the files from 0, without header and blank lines."""
        found, before = [np.empty(0, np.int64)], 0
        for file, parts in self.kept.items():
            kept = np.concatenate(parts)
            rows = np.sort(np.concatenate([kept, *self.rejected.get(file, [])]))
            found.append(before + np.searchsorted(rows, kept))
            before += len(rows)
        return np.concatenate(found)
