"""The weights that a run begins with, where they follow from its data. Knows no loop.

A model that contains its baseline may begin as it: MF with the shrunken biases, DLRM with first-order
weights as the logistic regression, with nothing of its own. So it starts where the baseline ends.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from mixdim.data import Dataset
from mixdim.layer.embedding import FeatureEmbeddings
from mixdim.models import DLRM, MatrixFactorization, WithFirstOrder
from mixdim.training.baselines import shrunken_biases
from mixdim.training.evaluation import Progress
from mixdim.training.first_order import LogisticRegression, fit_logistic, moments


def begin(
    model: nn.Module, dataset: Dataset, *, from_baseline: bool, progress: Progress | None = None
) -> dict[str, Any] | None:
    """Set how numbers are standardised and, if asked for, the weights of the baseline.

    Returns what the logistic regression reaches, if there was one; where it diverges, weights stay at 0.
    """
    if isinstance(model, WithFirstOrder):
        model.standardise_by(*moments(dataset))
    if from_baseline and isinstance(model, MatrixFactorization):
        model.start_biases(*map(torch.from_numpy, shrunken_biases(dataset).biases))
    if not from_baseline or not isinstance(model, WithFirstOrder):
        return None
    try:
        fitted = fit_logistic(dataset, float(model.constant), progress=progress)
    except FloatingPointError:  # `baselines_of` says so
        return None
    _begin_as(model, fitted.model)
    return fitted.measured


def _begin_as(model: WithFirstOrder, logistic: LogisticRegression) -> None:
    weights, deep = model.weights, model.deep
    assert isinstance(weights, FeatureEmbeddings)
    assert isinstance(deep, DLRM)
    for name, of_ids in logistic.of_ids().items():
        weights.fit_dense(name, of_ids)
    model.start_numbers(logistic.shift, logistic.dense)
    deep.start_with_zero()
