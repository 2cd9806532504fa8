"""The weights that a run begins with, where they follow from its data. Knows no loop and no model.

A model that contains its baseline may begin as it, so that it starts where the baseline ends.
"""

from __future__ import annotations

from typing import Any

import torch

from mixdim.data import Dataset
from mixdim.models import Baseline, Model
from mixdim.training.baselines import shrunken_biases
from mixdim.training.evaluation import Progress
from mixdim.training.first_order import fit_logistic, moments


def begin(
    model: Model, dataset: Dataset, *, from_baseline: bool, progress: Progress | None = None
) -> dict[str, Any] | None:
    """Set how numbers are standardized and, if asked for, the weights of the baseline.

    Returns what the logistic regression reaches, if there was one; where it diverges, weights stay at 0.
    """
    first_order = model.first_order
    if first_order is not None:
        first_order.standardize_by(*moments(dataset))
    if not from_baseline:
        return None
    if first_order is None:
        biases = map(torch.from_numpy, shrunken_biases(dataset).biases)
        model.start_from(Baseline(dict(zip(dataset.single_valued, biases, strict=True))))
        return None
    try:
        fitted = fit_logistic(dataset, float(first_order.constant), progress=progress)
    except FloatingPointError:  # `baselines_of` says so
        return None
    logistic = fitted.model
    model.start_from(Baseline(logistic.of_ids(), logistic.dense, logistic.shift))
    return fitted.measured
