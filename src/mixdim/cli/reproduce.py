"""The command that makes the paper's figures. Thin: the work is in experiments.reproduce.reproduce."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from mixdim.cli.outcome import stopped_by
from mixdim.cli.progress import progress_bars

if TYPE_CHECKING:
    from mixdim.experiments.report.findings import Finding

# matplotlib, polars and scipy are extras: the command imports what it needs when it runs.

REPRODUCE_EXAMPLES = """Examples:

- `mixdim reproduce all --out smoke`
- `mixdim reproduce fig2b fig2c --scale small --out small`
- `mixdim reproduce fig3a --scale small --data ml-1m --out small`
- `mixdim reproduce all --scale paper --data criteo --data ml-latest --out paper`
"""


def reproduce(
    figures: Annotated[
        list[str],
        typer.Argument(help="Of fig1, fig2a ... fig9, table1, claim-16x, ..., some, or all."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for pictures and findings; made if needed.")] = Path(
        "reproduction"
    ),
    scale: Annotated[
        str, typer.Option(help="smoke (minutes for all), small (two hours) or paper.")
    ] = "smoke",
    data: Annotated[
        list[Path] | None,
        typer.Option(help="A prepared folder, of clicks or of ratings; may be given for each."),
    ] = None,
    records: Annotated[
        Path | None, typer.Option(help="File of runs, to share; OUT/records.jsonl if not given.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Runs at a time. For times worth reading: 1.")] = 1,
) -> None:
    """Make figures, tables and claims of the paper from your own runs.

    Runs that the records hold already are not made again: figures share them.
    """
    from mixdim.experiments.reproduce.reproduce import reproduce as make
    from mixdim.experiments.reproduce.reproduce import scale_of
    from mixdim.experiments.sweeps.sweep import SweepStopped

    try:
        with progress_bars(slow="runs") as progress:
            made = make(
                figures,
                scale_of(scale),
                out,
                data=data or [],
                records=records,
                jobs=jobs,
                generating=progress,
                progress=progress,
            )
    except SweepStopped as stopped:
        raise stopped_by(stopped.signal_name, f"{stopped}; the same command goes on from here") from None
    typer.echo("\n\n".join(map(_in_words, made.findings)))
    runs = records or out / "records.jsonl"
    if runs.is_file():  # some figures need no runs
        page = quote(str(out / "report.html"))
        told = f"--records {quote(str(runs))} --figures {quote(str(out))} --out {page}"
        typer.echo(f"\nnext: mixdim report {told}")
    if made.failed:
        for record in made.failed:
            typer.echo(f"failed: {record.config['model']}, run {record.key}: {record.error}", err=True)
        raise typer.Exit(1)


def _in_words(finding: Finding) -> str:
    pictures = ", ".join(str(path) for path in finding.figure_paths) or "no picture"
    measured = finding.measured.replace("\n", "\n    ")
    return (
        f"{finding.id}: {finding.title}\n  paper: {finding.paper_claim}\n  here: {measured}\n"
        f"  data: {finding.data}\n  {pictures}"
    )
