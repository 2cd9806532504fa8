"""Which loss do runs make small, and how small can it be? Summaries in, numbers out; draws nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mixdim.tasks import TASKS, Task

Summary = Mapping[str, Any]  # what `summary.json` of a run holds


def common_task(runs: Sequence[Summary]) -> Task:
    """The task of these runs, known by the loss that they made small; an error if they differ in it.

    >>> common_task([{"test": {"best": {"rows": 9, "mse": 0.5, "mae": 0.6}}}]).name
    'rating'
    """
    tasks = {task.objective: task for task in TASKS.values()}
    # Metrics stand in the order of their task, so the first loss is the one that was made small.
    firsts = (next((n for n in run["test"]["best"] if n in tasks), None) for run in runs)
    found = {name for name in firsts if name is not None}
    if len(found) != 1:
        raise ValueError(
            f"runs to compare must have one loss of {', '.join(tasks)}, "
            f"got {', '.join(sorted(found)) or 'none'} in {len(runs)} runs"
        )
    return tasks[found.pop()]


def objective_of(runs: Sequence[Summary]) -> str:
    """The loss that these runs made small: "log_loss" or "mse".

    >>> objective_of([{"test": {"best": {"rows": 9, "mse": 0.5, "mae": 0.6}}}])
    'mse'
    """
    return common_task(runs).objective


def best_possible(run: Summary) -> float | None:
    """The expected loss on the test split of someone who knows the planted truth; None for real data.

    >>> best_possible({"test": {"best": {"mse": 0.7}}, "bayes_mse": {"train": 0.56, "test": 0.57}})
    0.57
    """
    known = run.get(f"bayes_{objective_of([run])}")
    return None if known is None else float(known["test"])
