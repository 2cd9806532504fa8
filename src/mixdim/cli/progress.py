"""Progress bars on standard error: one for each stage of a command. Knows nothing about the stages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text


class Show(Protocol):
    """Tells how far a stage is; the note, such as a loss, stands behind the bar."""

    def __call__(self, stage: str, done: int, total: int | None, note: str = "", /) -> None:
        """Show that `done` of `total` are done."""


class _Pace(ProgressColumn):
    """Rows, or bytes, per second; of what is slow, how many are done."""

    def __init__(self, unit: str, slow: str | None) -> None:
        super().__init__()
        self.unit, self.slow = unit, slow

    def render(self, task: Task) -> Text:
        if task.description == self.slow:
            return Text(f"{task.completed:,.0f} of {task.total or 0:,.0f}")
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f} {self.unit}/s")


@contextmanager
def progress_bars(unit: str = "rows", *, slow: str | None = None) -> Iterator[Show]:
    """A bar for each stage, on standard error; yields what to call with stage, done and total.

    `slow` names a stage whose steps take seconds or longer: it shows how many are done, not a speed.
    """
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        _Pace(unit, slow),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    bars = Progress(*columns, console=Console(stderr=True))
    tasks: dict[str, TaskID] = {}

    def show(stage: str, done: int, total: int | None, note: str = "", /) -> None:
        if not tasks:
            bars.start()  # only now: without a stage there is nothing to show
        if stage not in tasks:
            tasks[stage] = bars.add_task(stage, total=total, note=note)
        bars.update(tasks[stage], completed=done, total=total, note=note)

    try:
        yield show
    finally:
        if tasks:
            bars.stop()
