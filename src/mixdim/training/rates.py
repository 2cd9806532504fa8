"""Schedules of the learning rate: which share of its rates a run takes in a step. Knows no optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable


def _constant(step: int, total_steps: int) -> float:
    return 1.0


def _linear(step: int, total_steps: int) -> float:
    """Fall evenly; the step after the last would have 0."""
    return 1 - step / total_steps


def _cosine(step: int, total_steps: int) -> float:
    """Fall along half a cosine; the step after the last would have 0."""
    return (1 + math.cos(math.pi * step / total_steps)) / 2


SCHEDULES: dict[str, Callable[[int, int], float]] = {
    "constant": _constant,
    "linear": _linear,
    "cosine": _cosine,
}


def rate_factor(schedule: str, step: int, total_steps: int) -> float:
    """Return what rates are multiplied by in a step; steps count from 0 to total_steps - 1.

    >>> [rate_factor("linear", step, 4) for step in range(4)]
    [1.0, 0.75, 0.5, 0.25]
    """
    return SCHEDULES[schedule](step, total_steps)
