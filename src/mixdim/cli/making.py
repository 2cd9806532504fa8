"""A command that makes a prepared folder: its progress and its last lines.

Knows nothing about where the data comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from mixdim.runs.progress import progress_bars

if TYPE_CHECKING:
    from mixdim.data.folder import Meta

Out = Annotated[Path, typer.Option(help="The prepared folder to make.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a prepared folder.")]
Seed = Annotated[int, typer.Option(help="Decides everything that is random.")]


def make_folder(
    out: Path, make: Callable[..., Meta], notes: Callable[[Meta], Sequence[str]] = lambda meta: ()
) -> None:
    """Make a prepared folder, showing the progress, and say what is in it."""
    with progress_bars() as progress:
        meta = make(progress=progress)
    sizes = ", ".join(f"{name} {stop - start:,}" for name, (start, stop) in meta.splits.items())
    typer.echo(f"{out}: {len(meta.features)} features, rows: {sizes}")
    rejected = meta.rows.get("rejected") or {}
    if rejected:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in rejected.items())
        typer.echo(f"skipped malformed rows: {reasons}")
    for note in notes(meta):
        typer.echo(note)
    typer.echo(f"next: mixdim inspect {quote(str(out))}")
