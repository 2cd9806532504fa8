"""The commands of the lab: demo, generate, reproduce. Thin: the work is in mixdim.lab."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from mixdim.cli.making import Out, Overwrite, Seed, make_folder
from mixdim.cli.outcome import stopped_by
from mixdim.runs.progress import progress_bars

if TYPE_CHECKING:
    from mixdim.data.folder import Meta
    from mixdim.runs.report.findings import Finding

# matplotlib, polars and scipy are extras: each command imports what it needs when it runs.

GENERATE_EXAMPLES = """Examples:

- `mixdim generate criteo-like --rows 100000 --out small`
- `mixdim generate criteo-like --realistic --rows 300000 --out clicks`
- `mixdim generate criteo-like --realistic --unseen 0.3 --rows 300000 --out clicks`
"""


def generate(
    kind: Annotated[str, typer.Argument(help="criteo-like or movielens-like.")],
    rows: Annotated[int, typer.Option(help="Rows to make.")],
    out: Out,
    seed: Seed = 0,
    scale: Annotated[float, typer.Option(help="Cardinalities, as a share of the real ones.")] = 0.01,
    skew: Annotated[float | None, typer.Option(help="Popularity falls as rank to this power.")] = None,
    realistic: Annotated[
        bool,
        typer.Option("--realistic", help="Clicks on which compression ranks as on real ones."),
    ] = False,
    unseen: Annotated[
        float | None,
        typer.Option(help="--realistic: share of C3's test lookups new to training; 0.4 if not given."),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Make synthetic data with a planted truth and a known best possible loss."""
    from mixdim.lab.synthetic import generate as generators

    makers: dict[str, Callable[..., Meta]] = {
        "criteo-like": generators.generate_criteo_like,
        "movielens-like": generators.generate_movielens_like,
    }
    if kind not in makers:
        raise ValueError(f"what to generate must be {' or '.join(makers)}, got {kind!r}")
    if realistic and kind != "criteo-like":
        raise ValueError(f"--realistic is an option of criteo-like, got {kind!r}")
    if unseen is not None and not realistic:
        raise ValueError("--unseen is a dial of --realistic: give both, or neither")
    maker = makers[kind]
    if realistic:
        maker = generators.generate_realistic_clicks
    dials = {"skew": skew, "unseen": unseen}
    given = {name: value for name, value in dials.items() if value is not None}
    make_folder(
        out, partial(maker, out, rows=rows, seed=seed, scale=scale, overwrite=overwrite, **given)
    )


def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for data, runs and pictures; made if needed.")
    ] = Path("demo"),
) -> None:
    """Plan, generate data, train uniform and mixed dimensions, and compare them: a few minutes.

    The results of an earlier demo in the same folder are replaced.
    """
    # It draws, and matplotlib is an extra.
    from mixdim.lab.demo import DemoStopped, run_demo

    try:
        run_demo(out, echo=typer.echo, progress=progress_bars)
    except DemoStopped as stopped:
        raise stopped_by(stopped.signal_name, str(stopped)) from None


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
    from mixdim.lab.reproduce.reproduce import reproduce as make
    from mixdim.lab.reproduce.reproduce import scale_of
    from mixdim.runs.sweeps.sweep import SweepStopped

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
