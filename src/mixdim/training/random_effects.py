"""Biases of ids as random effects, with their variances: by EM on training rows. Knows no model.

target = mean + sum over features b[id] + noise, where b and noise are normal around 0, each feature with
a variance of its own: so training rows alone say how much to shrink, and how much of a rating is noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from mixdim.training.inputs import BaselineData, TrainingData, num_rows

MAX_ROWS = 10_000_000  # to learn biases from: of more, a random part
ROWS_AT_ONCE = 1 << 16

MAX_ROUNDS = 200
SWEEPS = 2  # of a regression, a round
MOST_DRAWS, ROWS_OF_DRAWS = 16, 200_000  # so many rows together, if that is more than one draw
TOLERANCE = 1e-3  # it has settled if no bias moves by more, in deviations of targets
SETTLED = 3e-3  # and no variance by a larger share of itself
LEAST = 1e-6  # of a variance, as a share of that of the targets: 0 would be there for ever


class Rows(NamedTuple):
    """Rows of a split, in memory."""

    ids: np.ndarray  # (rows, single-valued features)
    targets: np.ndarray  # float64 (rows,)


class Effects(NamedTuple):
    """Biases of ids, and the variances that shrink them."""

    biases: list[np.ndarray]  # of each single-valued feature, float64 (ids,)
    noise: float  # the variance of a target around mean and biases
    variances: list[float]  # of the biases of each feature
    train_rows: int

    @property
    def shrinkages(self) -> list[float]:
        """By feature: how many ratings of its own an id needs to move half of the way from 0."""
        return [self.noise / variance for variance in self.variances]

    def predicted(self, ids: np.ndarray, mean: float) -> np.ndarray:
        """Mean and biases of rows: (rows, features) -> (rows,)."""
        predictions = np.full(len(ids), mean)
        for column, own in zip(ids.T, self.biases, strict=True):
            predictions += own[column]
        return predictions


def effects_of(data: BaselineData) -> Effects:
    """The biases of a data set of ratings, as random effects."""
    train = rows_of(data, "train", at_most=MAX_ROWS)
    sizes = [len(data.counts[name]) for name in data.single_valued]
    return fit_effects(train, sizes, mean=data.mean_target)


def fit_effects(
    rows: Rows,
    sizes: Sequence[int],
    *,
    mean: float,
    tolerance: float = TOLERANCE,
    settled: float = SETTLED,
    max_rounds: int = MAX_ROUNDS,
) -> Effects:
    """Fit the biases of ids and all variances, by turns; `sizes` are the ids of each feature.

    Given the variances, the biases are the ridge regression with noise / variance as the shrinkage of a
    feature. How unsure they are is found by drawing: biases and noise are drawn with these variances,
    the same regression is fitted to the targets that they make, and what it misses is a draw of the
    error (Papandreou & Yuille 2010). The variance of a feature is then the mean of bias^2 + error^2 over
    the ids that occur, and the noise the mean over rows of what is left^2 + (sum of errors)^2. Errors of
    a user and an item that meet in one row alone go together: taken as independent, they would leave far
    too much to noise where most ids occur once. Draws are the same in every round, and in every run. An
    id that no row has gets 0.

    >>> rows = Rows(np.array([[0], [0], [1], [1]]), np.array([5.0, 4.0, 2.0, 1.0]))
    >>> found = fit_effects(rows, [3], mean=3.0)
    >>> found.biases[0].round(2), round(found.noise, 2), round(found.variances[0], 2)
    (array([ 1.35, -1.35,  0.  ]), 0.45, 1.99)
    """
    total = float(np.square(rows.targets - mean).mean()) if len(rows.targets) else 0.0
    biases = [np.zeros(size) for size in sizes]
    if total == 0.0 or not sizes:  # nothing to explain
        return Effects(biases, 1.0, [LEAST] * len(sizes), len(rows.targets))
    columns = list(np.ascontiguousarray(rows.ids.T))
    counts = [np.bincount(ids, minlength=size) for ids, size in zip(columns, sizes, strict=True)]
    own = _Ridge(columns, counts, rows.targets - mean)
    rng = np.random.default_rng(0)
    draws = [_Draw(columns, counts, rng) for _ in range(_num_draws(len(rows.targets)))]
    noise, variances, smallest = total / 2, [total / 2 / len(sizes)] * len(sizes), LEAST * total
    for _ in range(max_rounds):
        shrinkages, before = [noise / variance for variance in variances], [noise, *variances]
        moved = own.sweep(shrinkages)
        missed = [draw.errors(noise, variances, shrinkages) for draw in draws]
        for feature, count in enumerate(counts):
            unsure = np.mean([np.square(errors[feature]) for errors, _ in missed], axis=0)
            found = float((own.biases[feature] ** 2 + unsure)[count > 0].mean())
            variances[feature] = max(found, smallest)
        of_rows = float(np.mean([np.square(together).mean() for _, together in missed]))
        noise = max(float(np.square(own.left).mean()) + of_rows, smallest)
        now = [noise, *variances]
        if moved <= tolerance * total**0.5 and all(
            abs(one - other) <= settled * one for one, other in zip(now, before, strict=True)
        ):
            break
    return Effects(own.biases, noise, variances, len(rows.targets))


def _num_draws(rows: int) -> int:
    """Of little data more draws are averaged; of much, one is enough."""
    return max(1, min(MOST_DRAWS, ROWS_OF_DRAWS // rows))


class _Ridge:
    """Biases that come nearer to the ridge regression of some targets with every sweep."""

    def __init__(
        self, columns: Sequence[np.ndarray], counts: Sequence[np.ndarray], left: np.ndarray
    ) -> None:
        self.columns, self.counts, self.left = columns, counts, left
        self.biases = [np.zeros(len(count)) for count in counts]

    def sweep(self, shrinkages: Sequence[float]) -> float:
        """Set the biases of each feature to the best, given all others; returns how far they moved."""
        for _ in range(SWEEPS):
            moved = 0.0
            parts = zip(self.columns, self.counts, self.biases, shrinkages, strict=True)
            for ids, count, own, shrinkage in parts:
                # (left + count * own) / (shrinkage + count) - own, where left is that of the id's rows
                step = np.bincount(ids, self.left, minlength=len(own)) - shrinkage * own
                step /= shrinkage + count
                own += step
                self.left -= step[ids]
                moved = max(moved, float(np.abs(step).max()))
        return moved


class _Draw:
    """Biases and noise that are drawn, and the regression of the targets that they make."""

    def __init__(
        self,
        columns: Sequence[np.ndarray],
        counts: Sequence[np.ndarray],
        generator: np.random.Generator,
    ) -> None:
        self.biases = [generator.standard_normal(len(count)) for count in counts]
        self.noise = generator.standard_normal(len(columns[0]))
        self.of_rows = [own[ids] for own, ids in zip(self.biases, columns, strict=True)]
        self.ridge = _Ridge(columns, counts, np.zeros(len(columns[0])))
        self.fitted = np.zeros(len(columns[0]))

    def errors(
        self, noise: float, variances: Sequence[float], shrinkages: Sequence[float]
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """What the regression misses of the biases, by feature, and of all those of a row together."""
        targets = noise**0.5 * self.noise
        for variance, of_rows in zip(variances, self.of_rows, strict=True):
            targets += variance**0.5 * of_rows
        self.ridge.left = targets - self.fitted
        self.ridge.sweep(shrinkages)
        self.fitted = targets - self.ridge.left
        drawn = zip(variances, self.biases, self.ridge.biases, strict=True)
        by_feature = [variance**0.5 * own - found for variance, own, found in drawn]
        return by_feature, self.ridge.left - noise**0.5 * self.noise


def rows_of(
    data: TrainingData, split: str, *, with_ids: bool = True, at_most: int | None = None
) -> Rows:
    """All rows of a split, or a random part of them in whole batches, always the same one."""
    part = at_most is not None and num_rows(data, split) > at_most
    batches = data.batches(split, batch_size=ROWS_AT_ONCE, shuffle=part)
    columns = len(data.single_valued) if with_ids else 0
    ids, targets = [np.empty((0, columns), np.int32)], [np.empty(0)]
    for batch in islice(batches, -(-at_most // ROWS_AT_ONCE) if part and at_most else None):
        ids.append(batch.ids[:, :columns].numpy(force=True))
        targets.append(batch.target.numpy(force=True))
    return Rows(np.concatenate(ids), np.concatenate(targets))
