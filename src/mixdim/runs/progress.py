"""How far some work is, on standard error: bars, or lines in a log. Knows nothing about the stages."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib.util import find_spec
from typing import Any, Protocol

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

from mixdim._util.text import Note

SECONDS_BETWEEN_LINES = 10.0  # at first; then a tenth of the time that has passed, up to five minutes
MOST_SECONDS_BETWEEN_LINES = 300.0


class Show(Protocol):
    """Tells how far a stage is; the note, such as a loss, stands behind the bar."""

    def __call__(self, stage: str, done: int, total: int | None, note: str = "", /) -> None:
        """Show that `done` of `total` are done."""


class TimeLeft(TimeRemainingColumn):
    """The time until the work is done as its note says or, where that says none, by the bar's speed."""

    def render(self, task: Task) -> Text:
        """A clock that runs down."""
        ends = task.fields["ends"]
        if ends is None:
            return super().render(task)
        return Text(_in_words(max(ends - task.get_time(), 0.0)), style="progress.remaining")


def fields_of(note: str, now: float) -> dict[str, Any]:
    """What a bar keeps of a note: its text, and when the work will be done, if it says so."""
    left = note.seconds_left if isinstance(note, Note) else None
    return {"note": note, "ends": None if left is None else now + left}


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

    Where standard error is no terminal, and no notebook with ipywidgets, a plain line now and then
    instead. `slow` names a stage whose
    steps take seconds or longer: it shows how many are done, not a speed.
    """
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        _Pace(unit, slow),
        TimeLeft(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    console = Console(stderr=True)
    in_notebook = console.is_jupyter and find_spec("ipywidgets") is not None
    if not (console.is_terminal or in_notebook):
        yield plain_lines(slow=slow)
        return
    bars = Progress(*columns, console=console)
    tasks: dict[str, TaskID] = {}

    def show(stage: str, done: int, total: int | None, note: str = "", /) -> None:
        if not tasks:
            bars.start()  # only now: without a stage there is nothing to show
        if stage not in tasks:
            tasks[stage] = bars.add_task(stage, total=total, **fields_of(note, bars.get_time()))
        bars.update(tasks[stage], completed=done, total=total, **fields_of(note, bars.get_time()))

    try:
        yield show
    finally:
        if tasks:
            bars.stop()


@contextmanager
def shown(progress: Any, **how: Any) -> Iterator[Any]:
    """What to call with progress: bars for True, nobody for None and False, else what is given."""
    if progress is not True:
        yield progress or None
        return
    with progress_bars(**how) as show:
        yield show


def plain_lines(*, slow: str | None = None, clock: Callable[[], float] = time.monotonic) -> Show:
    """What to call with progress where there is no terminal: it prints a line now and then.

    The first line comes after ten seconds, of the `slow` stage with its first note: a step may take
    hours.
    """
    begun = clock()
    last, is_announced = begun, False
    stage_begun: dict[str, tuple[float, int, int | None]] = {}  # when, and what was done by then

    def show(stage: str, done: int, total: int | None, note: str = "", /) -> None:
        nonlocal last, is_announced
        now = clock()
        if stage not in stage_begun or done < stage_begun[stage][1] or total != stage_begun[stage][2]:
            stage_begun[stage] = (now, done, total)  # begun, or begun anew
        elapsed = now - begun
        between = min(max(SECONDS_BETWEEN_LINES, elapsed / 10), MOST_SECONDS_BETWEEN_LINES)
        announces = stage == slow and note != "" and not is_announced
        if now - last < between and not announces:
            return
        last, is_announced = now, is_announced or announces
        since, before, _ = stage_begun[stage]
        parts = [f"{stage}: {done:,}" + ("" if total is None else f" of {total:,}")]
        parts.append(f"{_in_words(elapsed)} elapsed")
        left = None
        if isinstance(note, Note):
            left = note.seconds_left
        elif total is not None and before < done < total:
            left = (now - since) * (total - done) / (done - before)
        if left is not None:
            parts.append(f"about {_in_words(left)} left")
        print(", ".join(parts) + (f"; {note}" if note else ""), file=sys.stderr, flush=True)

    return show


def _in_words(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
