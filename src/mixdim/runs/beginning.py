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
from mixdim.training.first_order import LogisticRegression, fit_logistic, moments
from mixdim.training.group import ALONE, Group


def begin(
    model: Model,
    dataset: Dataset,
    *,
    from_baseline: bool,
    progress: Progress | None = None,
) -> dict[str, Any] | None:
    """Set how numbers are standardized and, if the run wants it, the weights of the baseline.

    Returns what the logistic regression reaches, if there was one; where it diverges, weights stay at 0.
    """
    baseline, measured = fit_baseline(model, dataset, from_baseline=from_baseline, progress=progress)
    if baseline is not None:
        model.start_from(baseline)
    return measured


def fit_baseline(
    model: Model,
    dataset: Dataset,
    *,
    from_baseline: bool,
    progress: Progress | None = None,
    group: Group = ALONE,
) -> tuple[Baseline | None, dict[str, Any] | None]:
    """Set how numbers are standardized, and find the baseline and what it reaches.

    In a group, process 0 fits it, and others know the shapes of its weights of ids alone. So it needs no
    memory beside the tables if it is fitted before these are made.
    """
    first_order = model.first_order
    if first_order is not None:
        first_order.standardize_by(*moments(dataset))
    if not from_baseline:
        return None, None
    if first_order is None:
        biases = map(torch.from_numpy, shrunken_biases(dataset).biases)
        return Baseline(dict(zip(dataset.single_valued, biases, strict=True))), None
    fitted: list[LogisticRegression] = []

    def fit() -> dict[str, Any] | None:
        try:
            logistic, measured = fit_logistic(dataset, float(first_order.constant), progress=progress)
        except FloatingPointError:  # `baselines_of` says so
            return None
        fitted.append(logistic)
        return {
            "of_numbers": logistic.dense.tolist(),
            "shift": logistic.shift.item(),
            "measured": measured,
        }

    told = group.first(fit, ValueError, OSError)
    if told is None:
        return None, None
    of_ids = {n: torch.empty(len(found), 1, device="meta") for n, found in dataset.counts.items()}
    for logistic in fitted:  # others have the shapes alone
        of_ids = logistic.of_ids()
    of_numbers, shift = torch.tensor(told["of_numbers"]), torch.tensor(told["shift"])
    return Baseline(of_ids, of_numbers, shift), dict(told["measured"])
