"""What is to be predicted: clicks ("binary") or ratings ("rating"), and all that depends on which.

Knows nothing about models, but the name of the one to take if nobody says; nothing about data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mixdim.training.metrics import (
    Metric,
    Rows,
    accuracy,
    auc,
    calibration,
    calibration_error,
    finite_rows,
    labelled_rows,
    log_loss,
    mae,
    mse,
    rmse,
)


@dataclass(frozen=True)
class Task:
    """What a model's outputs mean, how they are learnt, and how they are measured.

    - `loss(outputs, targets)`: what training minimises.
    - `metrics`: by name; the first is the objective, the loss that runs are compared by.
    - `objective_words`: the same for people.
    - `curve_metrics`: what a learning curve keeps beside the objective.
    - `rows(outputs, targets, name)`: both as float64 (rows,), or an error if they are not of this task.
    - `prediction(outputs)`: what an output says of the target.
    - `constant_output(mean_target)`: the output with the least loss, if it is the same for all rows.
    - `paper_preset`: the paper's protocol for it.
    - `default_model`: what is taken if nothing is said.
    """

    name: str
    loss: Callable[[Tensor, Tensor], Tensor]
    metrics: Mapping[str, Metric]
    objective_words: str
    curve_metrics: tuple[str, ...]
    rows: Callable[[Any, Any, str], Rows]
    prediction: Callable[[Tensor], Tensor]
    constant_output: Callable[[float], float]
    paper_preset: str
    default_model: str

    @property
    def objective(self) -> str:
        """The name of the metric to minimise.

        >>> task_of("binary").objective, task_of("rating").objective
        ('log_loss', 'mse')
        """
        return next(iter(self.metrics))

    def measure(self, outputs: Any, targets: Any) -> dict[str, float | int | None]:
        """Return the number of rows and every metric; a metric that is undefined is None.

        >>> task_of("rating").measure([3.0, 5.0], [4.0, 4.0])
        {'rows': 2, 'mse': 1.0, 'rmse': 1.0, 'mae': 1.0}
        >>> task_of("rating").measure([], [])
        {'rows': 0, 'mse': None, 'rmse': None, 'mae': None}
        >>> task_of("binary").measure([0.5, float("nan")], [0, 1])
        Traceback (most recent call last):
        ValueError: outputs must be finite, got 1 value that is not: nan at row 1
        """
        outputs, targets = self.rows(outputs, targets, "outputs")
        rows, metrics = len(outputs), self.metrics.items()
        return {
            "rows": rows,
            **{name: metric(outputs, targets) if rows else None for name, metric in metrics},
        }


def _logit(mean_target: float) -> float:
    """The logit of the share of clicks, finite also where there are none."""
    share = min(max(mean_target, 1e-6), 1 - 1e-6)
    return math.log(share / (1 - share))


def _itself(output: Any) -> Any:
    return output


BINARY = Task(
    name="binary",
    loss=F.binary_cross_entropy_with_logits,
    metrics={
        "log_loss": log_loss,
        "accuracy": accuracy,
        "auc": auc,
        "calibration": calibration,
        "calibration_error": calibration_error,
    },
    objective_words="log loss",
    curve_metrics=("accuracy",),
    rows=labelled_rows,
    prediction=torch.sigmoid,
    constant_output=_logit,
    paper_preset="paper-ctr",
    default_model="dlrm",
)
RATING = Task(
    name="rating",
    loss=F.mse_loss,
    metrics={"mse": mse, "rmse": rmse, "mae": mae},
    objective_words="mean squared error",
    curve_metrics=(),
    rows=finite_rows,
    prediction=_itself,
    constant_output=_itself,
    paper_preset="paper-cf",
    default_model="mf",
)
TASKS = {task.name: task for task in (BINARY, RATING)}


def task_of(name: str) -> Task:
    """Return the task that a data set names.

    >>> task_of("ranking")
    Traceback (most recent call last):
    ValueError: task must be one of binary, rating, got 'ranking'
    """
    if name not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, got {name!r}")
    return TASKS[name]
