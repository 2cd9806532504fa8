"""What came out of a run, once it is measured. Knows no loop."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mixdim.training.memory import peak_memory
from mixdim.training.progress_log import Clock
from mixdim.training.resumption import TrainingState
from mixdim.training.schedule import Schedule


@dataclass(frozen=True)
class Result:
    """What came out of a run; the model itself holds the best weights."""

    steps: int
    epochs_run: int
    seconds: float
    samples_per_second: float
    peak_memory_bytes: int
    slice_feature: str | None
    stopped_early: bool
    validation: dict[str, Any]  # "best" and "last", each with metrics, "slices", "step" and "epoch"
    test: dict[str, Any]


def result_of(
    state: TrainingState,
    schedule: Schedule,
    clock: Clock,
    slice_feature: str | None,
    *,
    best: Mapping[str, Any],
    last: Mapping[str, Any],
) -> Result:
    """Put together what the best and the last weights reach in test, and how the run came there."""
    assert state.best is not None
    assert state.last is not None
    validation = {"best": state.best, "last": state.last}
    test = {
        name: {"step": validation[name]["step"], "epoch": validation[name]["epoch"], **metrics}
        for name, metrics in (("best", best), ("last", last))
    }
    return Result(
        steps=state.step,
        epochs_run=math.ceil(schedule.epochs_after(state.step)),
        seconds=clock.seconds(),
        samples_per_second=schedule.samples_after(state.step) / max(state.train_seconds, 1e-9),
        peak_memory_bytes=peak_memory(),
        slice_feature=slice_feature,
        stopped_early=state.step < schedule.total_steps,
        validation=validation,
        test=test,
    )
