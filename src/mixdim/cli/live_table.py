"""What stands on standard error while a sweep runs. Knows nothing about how runs are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column
from rich.text import Text

from mixdim.runs.progress import Show, TimeLeft, fields_of, plain_lines

if TYPE_CHECKING:
    from mixdim.runs.sweeps.records import Record


@contextmanager
def live_table(
    so_far: list[Record], table: Callable[[list[Record]], str]
) -> Iterator[tuple[Show, Callable[[Record], None]]]:
    """On standard error, while a sweep runs: a bar over its runs, and the table of results so far.

    Where that is no terminal, plain lines that say how far it is.

    Yields what to call with progress, and with a record, which is then added to `so_far`.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeLeft(),
        TextColumn("{task.fields[note]}", markup=False, table_column=Column(no_wrap=True)),
    )
    bar = Progress(*columns)
    task = bar.add_task("runs", **fields_of("", 0.0))
    console = Console(stderr=True)
    if not console.is_terminal:
        yield plain_lines(slow="runs"), so_far.append
        return
    with Live(bar, console=console, transient=True) as live:

        def progress(stage: str, done: int, total: int | None, note: str = "", /) -> None:
            bar.update(task, completed=done, total=total, **fields_of(note, bar.get_time()))

        def on_record(record: Record) -> None:
            so_far.append(record)
            failed = sum(not record.finished for record in so_far)
            bar.update(task, description=f"runs, {failed} failed" if failed else "runs")
            live.update(Group(bar, Text(table(so_far), no_wrap=True)))

        yield progress, on_record
