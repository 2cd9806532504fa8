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

MAX_ROUNDS = 100
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

    Given the variances and all other biases, what is known of a bias with n ratings is normal: its mean
    is b = (sum of what is left of the targets) / (n + noise / variance), its variance
    noise / (n + noise / variance). Given these, the variance of a feature is the mean of b² and of the
    latter over the ids that occur, and the noise that of what is left, squared, with the latter of all
    features. (Coordinate ascent of the evidence, where the biases of a row are taken as independent.) An
    id that no row has gets 0.

    >>> rows = Rows(np.array([[0], [0], [1], [1]]), np.array([5.0, 4.0, 2.0, 1.0]))
    >>> found = fit_effects(rows, [3], mean=3.0)
    >>> found.biases[0].round(2), round(found.noise, 2), round(found.variances[0], 2)
    (array([ 1.33, -1.33,  0.  ]), 0.5, 2.0)
    """
    total = float(np.square(rows.targets - mean).mean()) if len(rows.targets) else 0.0
    biases = [np.zeros(size) for size in sizes]
    if total == 0.0:  # nothing to explain
        return Effects(biases, 1.0, [LEAST] * len(sizes), len(rows.targets))
    columns = list(np.ascontiguousarray(rows.ids.T))
    counts = [np.bincount(ids, minlength=size) for ids, size in zip(columns, sizes, strict=True)]
    left, smallest = rows.targets - mean, LEAST * total
    noise, variances = total / 2, [total / 2 / max(len(sizes), 1)] * len(sizes)
    for _ in range(max_rounds):
        moved, unsure, before = 0.0, 0.0, [noise, *variances]
        for feature, (ids, own, count) in enumerate(zip(columns, biases, counts, strict=True)):
            shrinkage = noise / variances[feature]
            # (left + count * own) / (shrinkage + count) - own, where left is that of the id's rows
            step = np.bincount(ids, left, minlength=len(own)) - shrinkage * own
            step /= shrinkage + count
            own += step
            left -= step[ids]
            moved = max(moved, float(np.abs(step).max()))
            of_ids, occurs = noise / (shrinkage + count), count > 0
            variances[feature] = max(float((own**2 + of_ids)[occurs].mean()), smallest)
            unsure += float(count @ of_ids) / len(left)
        noise = max(float(left @ left) / len(left) + unsure, smallest)
        now = [noise, *variances]
        if moved <= tolerance * total**0.5 and all(
            abs(one - other) <= settled * one for one, other in zip(now, before, strict=True)
        ):
            break
    return Effects(biases, noise, variances, len(left))


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
