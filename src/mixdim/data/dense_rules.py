"""Dense columns as numbers of like size, by rules that the training split gives. Knows no files.

With z = log(1 + max(x, 0)) for a column that is skewed and never negative in training, and z = x for all
others, a number x becomes (z - mean) / scale, cut at -10 and 10: mean and scale are z's mean and
standard deviation in training. A missing one becomes 0, the mean; if some are missing in training, a
column of its own has 1 where they are. A column with one number only in training is 0 throughout.

A few numbers far from all others would flatten these: where the standard deviation is more than twice
the distance of the 1st and 99th percentiles, mean and scale are those of numbers cut to at most that
distance from these percentiles, in a sample of the training split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite

import numpy as np

SKEWED = 1.0  # skewness, the mean cube of the standardised numbers, above which the logarithm is taken
LIMIT = 10.0  # standard deviations
FLAT = 2.0  # distances of the percentiles in a standard deviation that outliers made
PERCENTILES = (1, 99)
SAMPLE = 10_000  # rows that percentiles are of
SAMPLE_NUMBERS = 4_000_000  # and numbers
FEWEST = 20  # numbers of a column that percentiles are taken of


@dataclass(frozen=True)
class DenseRule:
    """How one column of numbers is scaled; with `scale` 0 it is 0 throughout."""

    column: str
    log: bool
    mean: float  # in training, of the logarithms if these are taken
    scale: float
    missing: float  # share of the training rows
    robust: bool = field(default=False, repr=False)  # whether mean and scale are without outliers

    def __post_init__(self) -> None:
        if not isinstance(self.column, str) or not isinstance(self.log, bool):
            raise TypeError(f"a dense rule needs the name of a column and log, got {self}")
        if not isinstance(self.robust, bool):
            raise TypeError(f"robust of dense column {self.column!r} must be true or false")
        for name in ("mean", "scale", "missing"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not isfinite(value):
                raise TypeError(f"{name} of dense column {self.column!r} must be finite, got {value!r}")
        if self.scale < 0 or not 0 <= self.missing <= 1:
            raise ValueError(
                f"dense column {self.column!r} must have a scale >= 0 and a share missing in [0, 1], "
                f"got {self.scale} and {self.missing}"
            )

    @property
    def tells_missing(self) -> bool:
        """Whether a second column has 1 where it is missing; a column that always is needs none."""
        return 0 < self.missing < 1

    def __str__(self) -> str:
        if not self.scale:
            return "always 0: training has no two different numbers"
        z = "log(1 + max(x, 0))" if self.log else "x"
        sign = "+" if self.mean < 0 else "-"
        return f"({z} {sign} {abs(self.mean):.4g}) / {self.scale:.4g}" + ", robust" * self.robust


def dense_names(rules: Sequence[DenseRule]) -> tuple[str, ...]:
    """The columns that rules make: those of the numbers, then the indicators of missing ones."""
    names = [rule.column for rule in rules]
    taken = set(names)
    for rule in rules:
        if rule.tells_missing:
            name = f"{rule.column} is missing"
            while name in taken:
                name += "'"
            names.append(name)
            taken.add(name)
    return tuple(names)


def apply_rules(rules: Sequence[DenseRule], numbers: np.ndarray) -> np.ndarray:
    """Numbers, (rows, columns) with NaN where missing, as float32 (rows, columns of `dense_names`)."""
    z = np.array(numbers, np.float64)
    logs = np.array([rule.log for rule in rules], bool)
    z[:, logs] = np.log1p(np.maximum(z[:, logs], 0.0))
    scales = np.array([rule.scale or np.inf for rule in rules])
    z = np.clip((z - [rule.mean for rule in rules]) / scales, -LIMIT, LIMIT)
    gaps = np.isnan(numbers)
    z[gaps] = 0.0
    indicators = np.array([rule.tells_missing for rule in rules], bool)
    return np.hstack([z, gaps[:, indicators]]).astype(np.float32)


class DenseMoments:
    """Sums up what the rules of some columns need to know, chunk by chunk, in float64."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns, self._rows = tuple(columns), 0
        width = len(self._columns)
        self._low, self._high = np.full(width, np.inf), np.full(width, -np.inf)
        # Of numbers, then of their logarithms: how many, mean, and sums of squares and cubes about it.
        self._moments = np.zeros((4, 2 * width))
        self._sample: list[np.ndarray] = []  # rows 0, every, 2 * every, ...
        self._every, self._most = 1, max(FEWEST, min(SAMPLE, SAMPLE_NUMBERS // max(width, 1)))

    def add(self, numbers: np.ndarray) -> None:
        """Add rows of the training split: (rows, columns), NaN where missing."""
        if not len(numbers):
            return
        self._sample.append(np.array(numbers[-self._rows % self._every :: self._every], np.float64))
        while sum(map(len, self._sample)) > self._most:
            self._sample = [np.concatenate(self._sample)[::2]]
            self._every *= 2
        self._rows += len(numbers)
        self._low = np.fmin(self._low, np.fmin.reduce(numbers, axis=0))
        self._high = np.fmax(self._high, np.fmax.reduce(numbers, axis=0))
        both = np.hstack([numbers, np.log1p(np.maximum(numbers, 0.0))])
        self._moments = _merged(self._moments, _moments(both))

    def rules(self) -> tuple[DenseRule, ...]:
        """The rules of all columns."""
        width = len(self._columns)
        count, mean, squares, cubes = self._moments
        scale = np.sqrt(squares / np.maximum(count, 1))
        deviation = np.where(scale > 0, scale, 1.0)
        skewness = (cubes / np.maximum(count, 1) / deviation**3)[:width]
        varies = self._low < self._high
        rules = []
        for place, column in enumerate(self._columns):
            missing = 1 - float(count[place]) / self._rows if self._rows else 0.0
            sample = self._sample_of(place)
            cut = _without_outliers(sample, scale[place])
            skewed = skewness[place] > SKEWED
            if cut is not None:  # the skewness is that of outliers too
                skewed = ((cut - cut.mean()) ** 3).mean() > SKEWED * cut.std() ** 3
            log = bool(self._low[place] >= 0 and skewed)
            at = place + width * log
            if log:
                cut = _without_outliers(np.log1p(np.maximum(sample, 0.0)), scale[at])
            if cut is not None:
                center, spread = float(cut.mean()), float(cut.std())
            else:
                center, spread = float(mean[at]), float(scale[at]) if varies[place] else 0.0
            rules.append(DenseRule(column, log, center, spread, missing, robust=cut is not None))
        return tuple(rules)

    def _sample_of(self, place: int) -> np.ndarray:
        """The numbers of a column in the sample."""
        sample = np.concatenate([part[:, place] for part in self._sample] or [np.empty(0)])
        return sample[~np.isnan(sample)]


def _without_outliers(sample: np.ndarray, deviation: float) -> np.ndarray | None:
    """A sample with its outliers cut, if the standard deviation of all numbers is due to these."""
    if len(sample) < FEWEST:
        return None
    low, high = np.percentile(sample, PERCENTILES)
    distance = high - low
    if not distance or deviation <= FLAT * distance:
        return None
    return np.clip(sample, low - distance, high + distance)


def _moments(numbers: np.ndarray) -> np.ndarray:
    """Of each column how many there are, their mean, and the sums of squares and cubes about it."""
    there = ~np.isnan(numbers)
    count = there.sum(axis=0)
    mean = np.where(there, numbers, 0.0).sum(axis=0) / np.maximum(count, 1)
    about = np.where(there, numbers - mean, 0.0)
    return np.stack([count, mean, (about**2).sum(axis=0), (about**3).sum(axis=0)])


def _merged(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The moments of two sets of rows together (Chan, Golub and LeVeque 1979; Pebay 2008)."""
    (n, mean, squares, cubes), (m, other_mean, other_squares, other_cubes) = one, other
    total = np.maximum(n + m, 1)
    delta = other_mean - mean
    return np.stack([
        n + m,
        mean + delta * m / total,
        squares + other_squares + delta**2 * n * m / total,
        cubes
        + other_cubes
        + delta**3 * n * m * (n - m) / total**2
        + 3 * delta * (n * other_squares - m * squares) / total,
    ])  # fmt: skip
