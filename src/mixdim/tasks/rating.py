"""Ratings: targets are any finite numbers, and a model returns them as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixdim._util.lazy import import_later
from mixdim.tasks.metrics import finite_rows, mae, mse, rmse
from mixdim.tasks.task import Pace, Task

if TYPE_CHECKING:
    import torch
    from torch import Tensor

import_later(globals(), torch="torch")

MANY_RATINGS = 500_000  # from so many rows on: ratings are learnt in more and smaller steps


def _loss(ratings: Tensor, targets: Tensor) -> Tensor:
    return torch.nn.functional.mse_loss(ratings, targets)


RATING = Task(
    name="rating",
    labels=None,
    wrong_target="target is not a number",
    target_advice=None,
    loss=_loss,
    metrics={"mse": mse, "rmse": rmse, "mae": mae},
    objective_words="mean squared error",
    curve_metrics=(),
    rows=finite_rows,
    constant_output=lambda mean_target: mean_target,
    baseline="biases",
    default_model="mf",
    any_features_model="deepfm",
    paper_preset="paper-cf",
    pace=Pace(
        least_epochs=5,
        most_epochs=100,
        most_samples=100_000_000,
        patient_epochs=5,
        table_lr=lambda train_rows: 5e-3 if train_rows >= MANY_RATINGS else 1e-2,
    ),
    penalized_pace=Pace(
        least_epochs=5,
        most_epochs=20,
        most_samples=100_000_000,
        patient_epochs=4,
        table_lr=lambda train_rows: 1e-2,
        schedule="linear",
        penalty=1.3,
    ),
    prediction=lambda ratings: ratings,
    output_of=lambda ratings: ratings,
    output_name="rating",
    graph_operator="",
)
