"""What a run reports as it goes: progress, journal lines, and the time it took. Knows no model."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

from mixdim._util.text import Note
from mixdim.training.evaluation import Progress
from mixdim.training.forecast import Forecast
from mixdim.training.journal import Journal
from mixdim.training.resumption import TrainingState
from mixdim.training.schedule import Schedule


class Clock:
    """The seconds of a run, those before a resumption included, and since its last checkpoint."""

    def __init__(self) -> None:
        self.start(0.0)

    def start(self, seconds_before: float) -> None:
        """Begin, or go on after so many seconds."""
        self._start = time.perf_counter() - seconds_before
        self._saved = time.perf_counter()

    def seconds(self) -> float:
        """The whole run."""
        return time.perf_counter() - self._start

    def since_checkpoint(self) -> float:
        """Since the last checkpoint or, without one, since this process began."""
        return time.perf_counter() - self._saved

    def checkpoint_written(self) -> None:
        """Count from now."""
        self._saved = time.perf_counter()


@dataclass(frozen=True)
class ProgressLog:
    """Where a run reports its steps, and by which clock."""

    journal: Journal
    schedule: Schedule
    clock: Clock
    forecast: Forecast
    progress: Progress | None

    def step(self, state: TrainingState, loss: float | None) -> None:
        """Show how far training is, with the last loss that was read."""
        if self.progress is None:
            return
        rows, epochs = self.schedule.rows, self.schedule.options.epochs
        epoch, _ = self.schedule.place_after(state.step - 1)
        done = min(self.schedule.samples_after(state.step), (epoch + 1) * rows)
        note = f"epoch {epoch + 1}/{epochs}" + ("" if loss is None else f", loss {loss:.4f}")
        left = self.forecast.seconds_left(state.step, state.evaluated_step)
        self.progress("training", done, epochs * rows, Note(note, left))

    def losses(self, state: TrainingState) -> None:
        """Write the mean loss since the last such line into the journal, and forget these losses."""
        mean = statistics.fmean(state.losses)
        state.losses.clear()
        self.write(state, "train", loss=mean)

    def write(self, state: TrainingState, kind: str, **facts: Any) -> None:
        """Write a line about where the run is, with some facts."""
        times = {"seconds": self.clock.seconds(), "train_seconds": state.train_seconds}
        place = {"kind": kind, "step": state.step, "epoch": self.schedule.epochs_after(state.step)}
        self.journal.write({**place, **facts, **times})
