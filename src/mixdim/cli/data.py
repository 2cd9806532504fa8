"""The commands about data: download, inspect. Thin: the work is in mixdim.data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from mixdim.runs.progress import progress_bars

# polars and matplotlib are extras: each command imports what it needs when it runs.


def download(
    name: Annotated[
        str,
        typer.Argument(
            help="movielens-100k, -1m, -10m, -20m, -25m, -latest, -latest-small, or criteo-kaggle."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Directory for the file.")] = Path(),
) -> None:
    """Download a data set from its official host, resuming a partial download."""
    from mixdim.data.public.download import fetch, licence_of

    typer.echo(licence_of(name))
    with progress_bars(unit="B") as progress:
        found = fetch(name, out, progress=progress)
    typer.echo(str(found))


def inspect(
    folder: Annotated[Path, typer.Argument(help="A prepared folder.")],
    plot: Annotated[
        Path | None, typer.Option(help="Draw popularity histograms (Fig. 4): .png, .svg, .pdf.")
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(help="Only so many features, with as many of their most popular values."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show how a prepared data set looks: popularity, vocabularies, splits."""
    from mixdim.data import Dataset
    from mixdim.data.inspect import inspect as inspect_folder

    found = inspect_folder(folder, top=top)
    if plot is not None:
        from mixdim.runs.figures.plots import save_figure
        from mixdim.runs.figures.popularity import popularity_figure

        save_figure(popularity_figure(Dataset(folder).counts, title=f"Popularity in {folder}"), plot)
    typer.echo(json.dumps(found.to_dict(), indent=2) if as_json else str(found))
