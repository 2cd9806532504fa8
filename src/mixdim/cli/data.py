"""The commands about data: generate, download, inspect. Thin: the work is in mixdim.data."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mixdim.cli.making import Out, Overwrite, Seed, make_folder
from mixdim.cli.progress import progress_bars

if TYPE_CHECKING:
    from mixdim.data.folder import Meta

# polars and matplotlib are extras: each command imports what it needs when it runs.

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
    from mixdim.data import generate as generators

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
    from mixdim.data.download import fetch, licence_of

    typer.echo(licence_of(name))
    with progress_bars(unit="B") as progress:
        found = fetch(name, out, progress=progress)
    typer.echo(str(found))


def inspect(
    folder: Annotated[Path, typer.Argument(help="A prepared folder.")],
    plot: Annotated[
        Path | None, typer.Option(help="Draw popularity histograms (Fig. 4): .png, .svg, .pdf.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show how a prepared data set looks: popularity, vocabularies, splits."""
    from mixdim.data import Dataset
    from mixdim.data.inspection import inspect as inspect_folder

    found = inspect_folder(folder)
    if plot is not None:
        from mixdim.experiments.figures.drawing import save_figure
        from mixdim.experiments.figures.popularity import popularity_figure

        save_figure(popularity_figure(Dataset(folder).counts, title=f"Popularity in {folder}"), plot)
    typer.echo(json.dumps(found.to_dict(), indent=2) if as_json else str(found))
