"""A run beside its baselines: what simple models reach, in words. Summaries in; measures nothing.

Summaries from before there were baselines have none, and get no line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from mixdim.tasks import TASKS

Summary = Mapping[str, Any]
FEW_STEPS = 500  # no model of this package has learnt much by then, with the usual learning rates
MOST_OF_THE_GAIN = 0.8  # of logistic regression; on a sample of Criteo dense columns alone have 0.54
NAMES = {"constant": "the constant", "biases": "shrunken biases", "logistic": "logistic regression"}


def baseline_losses(summary: Summary, split: str = "test") -> dict[str, float]:
    """The loss of each baseline on a split, by name; empty if there is none.

    >>> found = {"constant": {"test": {"mse": 1.25}}, "biases": {"test": {"mse": 0.83}}}
    >>> baseline_losses({"baselines": found, "test": {"best": {"mse": 0.8}}})
    {'constant': 1.25, 'biases': 0.83}
    """
    objective = _objective(summary)
    found = {n: of[split].get(objective) for n, of in (summary.get("baselines") or {}).items()}
    return {name: loss for name, loss in found.items() if loss is not None}


def baselines_in_words(summaries: Sequence[Summary]) -> str:
    """What the baselines reach on test, of one data set or on average of several; "" without any.

    >>> found = {"constant": {"test": {"mse": 1.25}}, "biases": {"test": {"mse": 0.83}}}
    >>> run = {"baselines": found, "test": {"best": {"mse": 0.8}}, "data_fingerprint": "f00d"}
    >>> baselines_in_words([run, run, {**run, "data_fingerprint": "cafe"}])
    'constant 1.2500, biases 0.8300 (means over 2 data sets)'
    """
    of_data = {one["data_fingerprint"]: losses for one in summaries if (losses := baseline_losses(one))}
    names = dict.fromkeys(name for losses in of_data.values() for name in losses)
    means = {n: fmean(losses[n] for losses in of_data.values() if n in losses) for n in names}
    several = f" (means over {len(of_data)} data sets)" if len(of_data) > 1 else ""
    return ", ".join(f"{name} {loss:.4f}" for name, loss in means.items()) + several


def baselines_line(summaries: Sequence[Summary]) -> str | None:
    """The same as a line to print; None without any."""
    words = baselines_in_words(summaries)
    return f"baselines on test: {words}" if words else None


def warning_below_baseline(summary: Summary) -> str | None:
    """Say that a run is worse in validation than a baseline, and what to try; None if it is not."""
    losses = baseline_losses(summary, "validation")
    best, last, objective = *(summary["validation"][w] for w in ("best", "last")), _objective(summary)
    if not losses or best[objective] is None:
        return None
    name = min(losses, key=lambda one: losses[one])
    if best[objective] <= losses[name]:
        return None
    return (
        f"warning: in validation this model is worse than {NAMES.get(name, name)}: {objective} "
        f"{best[objective]:.4f} against {losses[name]:.4f}; {_remedy(summary, best, last)}"
    )


def warning_of_start(summary: Summary) -> str | None:
    """Say that no step of training was better than the baseline that the model began as."""
    if summary["validation"]["best"]["step"] > 0:
        return None
    return (
        "warning: in validation nothing that this model learnt is better than the baseline it began as, "
        "so the run ends as that baseline: try --tune, or a smaller --table-lr"
    )


def advice_on_boosting(summary: Summary) -> str | None:
    """Say that gradient boosting is worth trying where dense columns carry most of the signal."""
    known = summary.get("baselines") or {}
    alone, losses = known.get("logistic", {}).get("dense_alone"), baseline_losses(summary, "validation")
    if alone is None or losses["logistic"] >= losses["constant"]:
        return None
    share = (losses["constant"] - alone) / (losses["constant"] - losses["logistic"])
    if share < MOST_OF_THE_GAIN:
        return None
    return (
        f"dense columns alone give {min(share, 1):.0%} of what logistic regression gains over the "
        "constant: gradient boosting on the raw columns is worth trying beside this model"
    )


def _remedy(summary: Summary, best: Summary, last: Summary) -> str:
    steps = summary["steps"]
    if steps < FEW_STEPS:
        took = "1 step" if steps == 1 else f"{steps:,} steps"
        return f"it took only {took}: try a smaller --batch-size, or more --epochs with --patience"
    if best["step"] == last["step"]:
        return "it was best at its end: try more --epochs with --patience"
    can_be_tuned = "tuning" not in summary and not summary.get("distributed")
    tune = "--tune, or " if can_be_tuned else ""
    return f"it was best before its end: try {tune}a smaller --budget"


def _objective(summary: Summary) -> str:
    objectives = {task.objective for task in TASKS.values()}
    return next(name for name in summary["test"]["best"] if name in objectives)  # a task's first metric
