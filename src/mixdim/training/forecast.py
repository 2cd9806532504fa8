"""How long a training run will still take: all steps, evaluations and the test, by their own speeds.

Knows no model and no clock: it is told how long things took.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mixdim.training.schedule import Schedule

FORWARD_SHARE = 1 / 3  # of a step: until a split was measured, a guess at the cost of a row there
TESTS = 2  # the test split is measured with the best weights and with the last


@dataclass
class Speed:
    """Seconds a row. The first part of some work warms caches up: it counts only while it is alone.

    >>> speed = Speed()
    >>> speed.add(100, 5.0)
    >>> speed.seconds_a_row()
    0.05
    >>> speed.add(200, 2.0)
    >>> speed.seconds_a_row()
    0.01
    """

    rows: int = 0
    seconds: float = 0.0
    first: float | None = None

    def add(self, rows: int, seconds: float) -> None:
        """Note that so many rows took so long."""
        if rows == 0:
            return
        if self.first is None:
            self.first = seconds / rows
            return
        self.rows += rows
        self.seconds += seconds

    def seconds_a_row(self) -> float | None:
        """The mean so far; None before the first rows."""
        return self.seconds / self.rows if self.rows else self.first


@dataclass
class Forecast:
    """The time that a run will still take; `validation` and `test` are the rows of these splits."""

    schedule: Schedule
    validation: int
    test: int
    steps: Speed = field(default_factory=Speed)
    measuring: Speed = field(default_factory=Speed)

    def seconds_left(self, step: int, evaluated_step: int) -> float | None:
        """After this step and evaluation, unless the run stops early; None before two steps."""
        a_sample = self.steps.seconds_a_row()
        if a_sample is None or self.steps.rows == 0:
            return None
        a_row = self.measuring.seconds_a_row()
        if a_row is None:
            a_row = FORWARD_SHARE * a_sample
        last = self.schedule.total_steps
        samples = self.schedule.samples_after(last) - self.schedule.samples_after(step)
        evaluations = self.schedule.evaluations_until(last) - self.schedule.evaluations_until(
            evaluated_step
        )
        return a_sample * samples + a_row * (evaluations * self.validation + TESTS * self.test)
