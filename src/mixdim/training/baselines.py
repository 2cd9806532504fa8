"""What simple models reach on the same split: the constant, biases, a logistic regression.

Knows nothing about the model that is compared with them. All is a function of the data alone, so every
run on one data set has the same baselines, whatever its seed.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from mixdim.tasks import Task, task_of
from mixdim.training.evaluation import Progress
from mixdim.training.first_order import fit_logistic
from mixdim.training.inputs import BaselineData
from mixdim.training.random_effects import Rows, effects_of, rows_of

log = logging.getLogger("mixdim.training")

HELD_OUT = ("validation", "test")

Baselines = dict[
    str, dict[str, Any]
]  # by name: "validation" and "test" with metrics, and how it was made


def baselines_of(
    data: BaselineData,
    *,
    logistic: dict[str, Any] | None = None,
    progress: Progress | None = None,
) -> Baselines:
    """Measure the baselines of a data set: "constant", and "biases" of ratings or "logistic" of clicks.

    - constant: the mean rating, or the logit of the share of clicks, in training.
    - biases: see `mixdim.training.random_effects`. Bags and dense columns are left out.
    - logistic: see `mixdim.training.first_order`; what was `measured` of one before may be given. Left
      out, with a word in the log, if it diverges.
    """
    task = task_of(data.task)
    with_ids = task.baseline == "biases"
    held_out = {split: rows_of(data, split, with_ids=with_ids) for split in HELD_OUT}
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


def _measure_biases(data: BaselineData, task: Task, held_out: dict[str, Rows]) -> dict[str, Any]:
    """The metrics of the biases, and how they were found."""
    found, mean = effects_of(data), data.mean_target
    return {
        "train_rows": found.train_rows,
        "shrinkage": found.shrinkages,
        **{
            split: task.measure(found.predicted(rows.ids, mean), rows.targets)
            for split, rows in held_out.items()
        },
    }
