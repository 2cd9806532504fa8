"""Which step of a run is what: its batch, the end of an epoch, an evaluation, so many samples seen.

Knows nothing about what a step does.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any

from mixdim.training.inputs import Batch, TrainingData
from mixdim.training.options import TrainingOptions
from mixdim.training.rates import rate_factor

LINES_PER_EPOCH = 20  # of the training loss in the journal, or one every hundred steps


@dataclass(frozen=True)
class Schedule:
    """The steps of a run over `rows` samples; they count from 1, epochs and positions from 0.

    >>> from mixdim.training.options import preset
    >>> schedule = Schedule(rows=10_000, options=preset("paper-ctr"))
    >>> schedule.steps_per_epoch, schedule.total_steps, schedule.samples_after(2)
    (3, 3, 8192)
    """

    rows: int
    options: TrainingOptions

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch; the last may be smaller."""
        return -(-self.rows // self.options.batch_size)

    @property
    def total_steps(self) -> int:
        """Steps of all epochs, unless the run stops early."""
        return self.options.epochs * self.steps_per_epoch

    def rate_factor(self, done: int) -> float:
        """What the learning rates are multiplied by in the step that follows so many."""
        return rate_factor(self.options.schedule, done, self.total_steps)

    @property
    def journal_every(self) -> int:
        """Steps between two lines of the training loss."""
        return max(1, min(100, self.steps_per_epoch // LINES_PER_EPOCH))

    @cached_property
    def _positions_to_evaluate(self) -> set[int]:
        wanted = min(self.options.evaluations_per_epoch, self.steps_per_epoch)
        return {-(-self.steps_per_epoch * i // wanted) for i in range(1, wanted + 1)}

    def evaluates_after(self, step: int) -> bool:
        """Whether to evaluate after this step: evenly within an epoch, and at its end."""
        return step > 0 and (step - 1) % self.steps_per_epoch + 1 in self._positions_to_evaluate

    def place_after(self, step: int) -> tuple[int, int]:
        """The epoch of the next batch, and its position in the epoch."""
        return divmod(step, self.steps_per_epoch)

    def epochs_after(self, step: int) -> float:
        """Epochs done; a begun one counts in part."""
        return step / self.steps_per_epoch

    def batches(
        self, data: TrainingData, *, after: int, part: tuple[int, int] | None = None
    ) -> Generator[Batch, None, None]:
        """The batches of the steps after this one, or a share of each, without end."""
        first, position = self.place_after(after)
        # Said only if it is wanted: data of a user's own may know nothing of it.
        more: dict[str, Any] = {"unknown_dropout": True} if self.options.unknown_dropout else {}
        if part is not None:
            more["part"] = part
        for epoch in count(first):
            yield from data.batches(
                "train",
                batch_size=self.options.batch_size,
                shuffle=self.options.shuffle,
                seed=self.options.seed,
                epoch=epoch,
                position=position if epoch == first else 0,
                **more,
            )

    def samples_after(self, step: int) -> int:
        """Samples seen, those of earlier epochs again and again."""
        epochs, position = self.place_after(step)
        return epochs * self.rows + position * self.options.batch_size
