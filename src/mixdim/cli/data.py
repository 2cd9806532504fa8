"""The commands about data: prepare, generate, download, inspect. Thin: the work is in mixdim.data."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from mixdim.cli.progress import progress_bars

if TYPE_CHECKING:
    from mixdim.data.folder import Meta

# polars and matplotlib are extras: each command imports what it needs when it runs.

GENERATE_EXAMPLES = """Examples:

- `mixdim generate criteo-like --rows 100000 --out small`
- `mixdim generate criteo-like --realistic --rows 300000 --out clicks`
- `mixdim generate criteo-like --realistic --unseen 0.3 --rows 300000 --out clicks`
"""

prepare_app = typer.Typer(
    help="Turn raw files into a prepared folder: once, fast, in bounded memory.",
    epilog="Example: `mixdim prepare movielens ml-1m.zip --out ml-1m`",
    rich_markup_mode="markdown",
)

Out = Annotated[Path, typer.Option(help="The prepared folder to make.")]
MinCount = Annotated[int, typer.Option(help="Rarer values share the out-of-vocabulary row.")]
MaxBad = Annotated[int, typer.Option(help="Malformed rows to skip before giving up.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a prepared folder.")]
Seed = Annotated[int, typer.Option(help="Decides everything that is random.")]


@prepare_app.command(epilog="Example: `mixdim prepare criteo train.txt --out criteo --min-count 4`")
def criteo(
    raw: Annotated[list[Path], typer.Argument(help="Tab-separated files, plain or .gz.")],
    out: Out,
    layout: Annotated[str, typer.Option(help="kaggle, or terabyte (day_0 to day_23).")] = "kaggle",
    min_count: MinCount = 1,
    rows: Annotated[int | None, typer.Option(help="Only the first rows.")] = None,
    max_bad: MaxBad = 0,
    overwrite: Overwrite = False,
) -> None:
    """Prepare the Criteo data set: days 1-6 train, day 7 validates and tests."""
    from mixdim.data.prepare import prepare_criteo

    _make(
        out,
        partial(
            prepare_criteo,
            raw,
            out,
            layout=layout,
            min_count=min_count,
            rows=rows,
            max_bad=max_bad,
            overwrite=overwrite,
        ),
    )


MOVIELENS_EXAMPLES = """Examples:

- `mixdim prepare movielens ml-latest.zip --out ml --split time`
- `mixdim prepare movielens ml-1m.zip --out clicks --as clicks --every 4`
"""


@prepare_app.command(epilog=MOVIELENS_EXAMPLES)
def movielens(
    raw: Annotated[Path, typer.Argument(help="The zip, folder or ratings file of any release.")],
    out: Out,
    form: Annotated[
        str, typer.Option("--as", help="ratings of user and item; clicks: rated 4 or more, 8 fields.")
    ] = "ratings",
    every: Annotated[int, typer.Option(help="Take ratings 1, N+1, 2N+1, ... only.")] = 1,
    split: Annotated[str, typer.Option(help="random (80/10/10) or time.")] = "random",
    seed: Seed = 0,
    min_count: MinCount = 1,
    max_bad: MaxBad = 0,
    overwrite: Overwrite = False,
) -> None:
    """Prepare MovieLens: ratings, or clicks with all that the release says of movies and users."""
    from mixdim.data.movielens_facts import OF_MOVIES, OF_USERS
    from mixdim.data.prepare import prepare_movielens

    def missing(meta: Meta) -> list[str]:
        """What this release has not."""
        known = {feature.name for feature in meta.features}
        lacking = [name for name in (*OF_MOVIES, *OF_USERS) if name not in known]
        return [f"not in this release: {', '.join(lacking)}"] if form == "clicks" and lacking else []

    _make(
        out,
        partial(
            prepare_movielens,
            raw,
            out,
            form=form,
            every=every,
            split=split,
            seed=seed,
            min_count=min_count,
            max_bad=max_bad,
            overwrite=overwrite,
        ),
        missing,
    )


TABLE_EXAMPLES = """Examples:

- `mixdim prepare table x.csv` looks at the file and proposes a command
- `mixdim prepare table x.csv --out x --target click --categorical site,user`
- `mixdim prepare table x.csv --out x --target label --categorical 'C*' --dense 'I*'`
- `mixdim prepare table x.csv --out x --target "rating >= 8" --where "rating > 0" --categorical user`
"""


@prepare_app.command(epilog=TABLE_EXAMPLES)
def table(
    raw: Annotated[list[Path], typer.Argument(help="CSV, TSV, either as .gz, or Parquet.")],
    out: Annotated[Path | None, typer.Option(help="The prepared folder to make.")] = None,
    target: Annotated[
        str | None, typer.Option(help='Column to predict, or what makes its labels: "rating >= 8".')
    ] = None,
    categorical: Annotated[
        str | None, typer.Option(help="Columns of ids: A,B,... or patterns: 'C*'")
    ] = None,
    dense: Annotated[str, typer.Option(help="Columns of numbers: X,Y,... or patterns.")] = "",
    bag: Annotated[
        list[str] | None, typer.Option(help="A column of several ids and its separator: TAGS:|")
    ] = None,
    separator: Annotated[str | None, typer.Option(help="Between columns; guessed if not given.")] = None,
    encoding: Annotated[str, typer.Option(help="Of the text, such as utf-8 or latin-1.")] = "utf-8",
    task: Annotated[
        str, typer.Option(help="binary (0 or 1, yes or no, ...) or rating (any number).")
    ] = "binary",
    where: Annotated[
        str | None, typer.Option(help="Only rows that meet it: \"rating > 0 and city != 'Oz'\".")
    ] = None,
    split: Annotated[str, typer.Option(help="random, position, or time:COLUMN.")] = "random",
    seed: Seed = 0,
    min_count: MinCount = 1,
    max_bad: MaxBad = 0,
    overwrite: Overwrite = False,
) -> None:
    """Prepare any table; with nothing but its files, look at it and propose the command."""
    from mixdim.data.prepare import prepare_table
    from mixdim.data.proposal import propose

    separator = {"\\t": "\t", "tab": "\t"}.get(separator or "", separator)
    if not (out or target or categorical or dense or bag or where):
        typer.echo(str(propose(raw, separator=separator, encoding=encoding)))
        return
    if out is None or target is None or categorical is None:
        needed = {"--out": out, "--target": target, "--categorical": categorical}
        lacking = ", ".join(name for name, value in needed.items() if value is None)
        raise ValueError(f"missing option {lacking}; with nothing but files, the command proposes all")
    _make(
        out,
        partial(
            prepare_table,
            raw,
            out,
            target=target,
            categorical=_names(categorical),
            dense=_names(dense),
            bags=dict(_bag(entry) for entry in bag or []),
            separator=separator,
            encoding=encoding,
            task=task,
            where=where,
            split=split,
            seed=seed,
            min_count=min_count,
            max_bad=max_bad,
            overwrite=overwrite,
        ),
        _kept_by_where,
    )


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
    _make(out, partial(maker, out, rows=rows, seed=seed, scale=scale, overwrite=overwrite, **given))


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


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _bag(entry: str) -> tuple[str, str]:
    name, colon, separator = entry.partition(":")
    if not (name and colon and separator):
        raise ValueError(f"--bag must be a column and its separator such as TAGS:|, got {entry!r}")
    return name, separator


def _kept_by_where(meta: Meta) -> list[str]:
    kept, left_out = meta.rows["kept"], meta.rows.get("left_out")
    return [] if left_out is None else [f"{kept:,} of {kept + left_out:,} rows kept by --where"]


def _make(
    out: Path, make: Callable[..., Meta], notes: Callable[[Meta], list[str]] = lambda meta: []
) -> None:
    """Make a prepared folder, showing the progress, and say what is in it."""
    with progress_bars() as progress:
        meta = make(progress=progress)
    sizes = ", ".join(f"{name} {stop - start:,}" for name, (start, stop) in meta.splits.items())
    typer.echo(f"{out}: {len(meta.features)} features, rows: {sizes}")
    for note in notes(meta):
        typer.echo(note)
    rejected = meta.rows.get("rejected") or {}
    if rejected:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in rejected.items())
        typer.echo(f"skipped malformed rows: {reasons}")
    typer.echo(f"next: mixdim inspect {quote(str(out))}")
