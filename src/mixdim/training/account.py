"""What a run says of itself as it goes: progress, and lines of its journal. Knows no model."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from mixdim.training.clock import Clock
from mixdim.training.evaluation import Progress
from mixdim.training.journal import Journal
from mixdim.training.resumption import TrainingState
from mixdim.training.schedule import Schedule


@dataclass(frozen=True)
class Account:
    """Where a run tells of its steps, and by which clock."""

    journal: Journal
    schedule: Schedule
    clock: Clock
    progress: Progress | None

    def tell(self, state: TrainingState, loss: float) -> None:
        """Show how far training is, and now and then write the mean loss into the journal."""
        rows, epochs = self.schedule.rows, self.schedule.options.epochs
        if self.progress is not None:
            epoch, _ = self.schedule.place_after(state.step - 1)
            done = min(self.schedule.samples_after(state.step), (epoch + 1) * rows)
            note = f"epoch {epoch + 1}/{epochs}, loss {loss:.4f}"
            self.progress("training", done, epochs * rows, note)
        if state.step % self.schedule.journal_every == 0:
            mean = statistics.fmean(state.losses)
            state.losses.clear()
            self.write(state, "train", loss=mean)

    def write(self, state: TrainingState, kind: str, **facts: Any) -> None:
        """Write a line about where the run is, with some facts."""
        times = {"seconds": self.clock.seconds(), "train_seconds": state.train_seconds}
        place = {"kind": kind, "step": state.step, "epoch": self.schedule.epochs_after(state.step)}
        self.journal.write({**place, **facts, **times})
