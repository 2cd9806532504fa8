"""Clicks: targets are 0 or 1, a model returns logits, and probabilities are served."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mixdim._util.lazy import import_later
from mixdim.tasks.metrics import (
    accuracy,
    auc,
    calibration,
    calibration_error,
    labelled_rows,
    log_loss,
)
from mixdim.tasks.task import ByTime, Pace, Task

if TYPE_CHECKING:
    import torch
    from torch import Tensor

import_later(globals(), torch="torch")

SURE = 1e-12  # a probability of exactly 0 or 1 has no logit


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    return torch.nn.functional.binary_cross_entropy_with_logits(logits, targets)


def _constant_logit(mean_target: float) -> float:
    """The logit of the share of clicks, finite also where there are none."""
    share = min(max(mean_target, 1e-6), 1 - 1e-6)
    return math.log(share / (1 - share))


BINARY = Task(
    name="binary",
    labels=(0.0, 1.0),
    wrong_target="label is not 0 or 1",
    target_advice='--target "COLUMN >= NUMBER" makes labels of numbers, --task rating learns them',
    loss=_loss,
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
    constant_output=_constant_logit,
    baseline="logistic",
    default_model="dlrm",
    any_features_model="dlrm",
    paper_preset="paper-ctr",
    pace=Pace(
        least_epochs=1,
        most_epochs=20,
        most_samples=20_000_000,  # so clicks of more rows are seen once
        patient_epochs=2,
        table_lr=lambda train_rows: 3e-3,
        by_time=ByTime(epochs=8, most_samples=30_000_000, table_lr=1e-2, table_decay=1.5),
    ),
    penalized_pace=None,
    prediction=lambda logits: torch.sigmoid(logits),
    output_of=lambda probabilities: torch.logit(probabilities.double(), eps=SURE),
    output_name="probability",
    graph_operator="Sigmoid",
)
