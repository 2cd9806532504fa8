"""What simple models reach on the same split: the constant, shrunken biases, a logistic regression.

Knows nothing about the model that is compared with them. All is a function of the data alone, so every
run on one data set has the same baselines, whatever its seed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np

from mixdim.tasks import Task, task_of
from mixdim.training.evaluation import Progress
from mixdim.training.first_order import fit_logistic
from mixdim.training.inputs import TrainingData, num_rows

log = logging.getLogger("mixdim.training")

HELD_OUT = ("validation", "test")
SHRINKAGES = (30.0, 10.0, 3.0, 1.0)  # the best in validation is taken; each starts from the one before
WITHOUT_VALIDATION = 10.0
MAX_ROWS = 10_000_000  # to learn biases from: of more, a random part
MAX_ROUNDS, TOLERANCE = 30, 1e-3  # biases have settled if none moves by more, in deviations of targets
ROWS_AT_ONCE = 1 << 16

Baselines = dict[
    str, dict[str, Any]
]  # by name: "validation" and "test" with metrics, and how it was made


class BaselineData(TrainingData, Protocol):
    """A `mixdim.data.Dataset`, or anything else to train on that knows its mean target."""

    @property
    def mean_target(self) -> float:
        """The mean target of the training split."""


class Rows(NamedTuple):
    """Rows of a split, in memory."""

    ids: np.ndarray  # (rows, single-valued features)
    targets: np.ndarray  # float64 (rows,)


class Shrunken(NamedTuple):
    """Biases, and how they were found."""

    biases: list[np.ndarray]  # of each single-valued feature, float64 (ids,)
    shrinkage: float
    tried: int  # shrinkages
    train_rows: int


def baselines_of(
    data: BaselineData,
    *,
    logistic: dict[str, Any] | None = None,
    progress: Progress | None = None,
) -> Baselines:
    """Measure the baselines of a data set: "constant", and "biases" of ratings or "logistic" of clicks.

    - constant: the mean rating, or the logit of the share of clicks, in training.
    - biases: see `fit_biases`; the shrinkage is the best of SHRINKAGES in validation. Bags and dense
      columns are left out.
    - logistic: see `mixdim.training.first_order`; what was `measured` of one before may be given. Left
      out, with a word in the log, if it diverges.
    """
    task = task_of(data.task)
    with_ids = task.baseline == "biases"
    held_out = {split: _rows_of(data, split, with_ids=with_ids) for split in HELD_OUT}
    constant = task.constant_output(data.mean_target)
    found: Baselines = {
        "constant": {
            split: task.measure(np.full(len(rows.targets), constant), rows.targets)
            for split, rows in held_out.items()
        }
    }
    if task.baseline == "logistic":
        try:
            found["logistic"] = logistic or fit_logistic(data, constant, progress=progress).measured
        except FloatingPointError as error:  # no reason to lose the run that it is compared with
            log.warning("no logistic regression to compare with: %s", error)
    elif data.single_valued:
        found["biases"] = _measure_biases(data, task, held_out)
    return found


def fit_biases(
    rows: Rows,
    sizes: Sequence[int],
    *,
    mean: float,
    shrinkage: float,
    start: Sequence[np.ndarray] | None = None,
    tolerance: float = TOLERANCE,
    max_rounds: int = MAX_ROUNDS,
) -> list[np.ndarray]:
    """Return b, a number for each id of each feature: the biases of Koren 2009.

    They minimise sum over rows (target - mean - sum over features b[id])² + shrinkage * sum b², by
    turns: given those of all other features, those of one are b[v] = (sum of what is left of the targets
    of v) / (shrinkage + count of v). An id that no row has gets 0.

    >>> fit_biases(Rows(np.array([[0], [0], [1]]), np.array([5.0, 5, 2])), [3], mean=4, shrinkage=2)
    [array([ 0.5       , -0.66666667,  0.        ])]
    """
    biases = [np.zeros(size) for size in sizes] if start is None else [one.copy() for one in start]
    columns = list(np.ascontiguousarray(rows.ids.T))
    counts = [np.bincount(ids, minlength=size) for ids, size in zip(columns, sizes, strict=True)]
    left = rows.targets - mean
    settled = tolerance * float(left.std())
    for ids, own in zip(columns, biases, strict=True):
        left -= own[ids]
    for _ in range(max_rounds):
        moved = 0.0
        for ids, own, count in zip(columns, biases, counts, strict=True):
            # (left + count * own) / (shrinkage + count) - own, where left is that of the id's rows
            step = np.bincount(ids, left, minlength=len(own)) - shrinkage * own
            step /= shrinkage + count
            own += step
            left -= step[ids]
            moved = max(moved, float(np.abs(step).max()))
        if moved <= settled:
            break
    return biases


def shrunken_biases(data: BaselineData) -> Shrunken:
    """The biases of a data set of ratings, by the shrinkage of SHRINKAGES that is best in validation."""
    train, judge = _rows_of(data, "train", at_most=MAX_ROWS), _rows_of(data, "validation")
    sizes, mean = [len(data.counts[name]) for name in data.single_valued], data.mean_target
    tried = SHRINKAGES if len(judge.targets) else (WITHOUT_VALIDATION,)
    best, least, biases = None, np.inf, None
    for shrinkage in tried:
        biases = fit_biases(train, sizes, mean=mean, shrinkage=shrinkage, start=biases)
        errors = _predicted(judge.ids, biases, mean) - judge.targets
        loss = float(np.square(errors).mean()) if len(errors) else 0.0
        if loss < least:
            least, best = loss, Shrunken(biases, shrinkage, len(tried), len(train.targets))
    assert best is not None
    return best


def _measure_biases(data: BaselineData, task: Task, held_out: dict[str, Rows]) -> dict[str, Any]:
    """The metrics of the shrunken biases, and how they were found."""
    found, mean = shrunken_biases(data), data.mean_target
    return {
        "train_rows": found.train_rows,
        "shrinkage": found.shrinkage,
        "shrinkages_tried": found.tried,
        **{
            split: task.measure(_predicted(rows.ids, found.biases, mean), rows.targets)
            for split, rows in held_out.items()
        },
    }


def _predicted(ids: np.ndarray, biases: Sequence[np.ndarray], mean: float) -> np.ndarray:
    predictions = np.full(len(ids), mean)
    for column, own in zip(ids.T, biases, strict=True):
        predictions += own[column]
    return predictions


def _rows_of(
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
