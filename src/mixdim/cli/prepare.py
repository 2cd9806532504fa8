"""The command `prepare` and its raw formats. Thin: the work is in mixdim.data."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from mixdim.cli.making import Out, Overwrite, Seed, make_folder
from mixdim.cli.parsing import separator_of
from mixdim.runs.progress import progress_bars

if TYPE_CHECKING:
    from mixdim.data.folder import Meta

# polars is an extra: each command imports what it needs when it runs.

prepare_app = typer.Typer(
    help="Turn raw files into a prepared folder: once, fast, in bounded memory.",
    epilog="Example: `mixdim prepare movielens ml-1m.zip --out ml-1m`",
    rich_markup_mode="markdown",
)

MinCount = Annotated[
    int | None, typer.Option(help="Rarer values share the out-of-vocabulary row.", show_default="1")
]
MaxBad = Annotated[int, typer.Option(help="Malformed rows to skip before giving up.")]
VocabularyOf = Annotated[
    Path | None,
    typer.Option(help="An earlier prepared folder: new rows get its ids and are all in test."),
]

CRITEO_EXAMPLES = """Examples:

- `mixdim prepare criteo train.txt --out criteo --min-count 4`
- `mixdim prepare criteo tomorrow.txt --out tomorrow --vocabulary-of criteo`
"""


@prepare_app.command(epilog=CRITEO_EXAMPLES)
def criteo(
    raw: Annotated[list[Path], typer.Argument(help="Tab-separated files, plain or .gz.")],
    out: Out,
    layout: Annotated[str, typer.Option(help="kaggle, or terabyte (day_0 to day_23).")] = "kaggle",
    min_count: MinCount = None,
    rows: Annotated[int | None, typer.Option(help="Only the first rows.")] = None,
    split: Annotated[
        str | None, typer.Option(help="days, or test with --vocabulary-of.", show_default="days")
    ] = None,
    vocabulary_of: VocabularyOf = None,
    max_bad: MaxBad = 0,
    overwrite: Overwrite = False,
) -> None:
    """Prepare the Criteo data set: days 1-6 train, day 7 validates and tests."""
    from mixdim.data.public.criteo import prepare_criteo

    make_folder(
        out,
        partial(
            prepare_criteo,
            raw,
            out,
            layout=layout,
            min_count=min_count,
            rows=rows,
            split=split,
            vocabulary_of=vocabulary_of,
            max_bad=max_bad,
            overwrite=overwrite,
        ),
        partial(_unknown_values, out),
    )


MOVIELENS_EXAMPLES = """Examples:

- `mixdim prepare movielens ml-latest.zip --out ml --split time`
- `mixdim prepare movielens ml-1m.zip --out clicks --as clicks --every 4`
- `mixdim prepare movielens new/ratings.csv --out new-ml --vocabulary-of ml`
"""


@prepare_app.command(epilog=MOVIELENS_EXAMPLES)
def movielens(
    raw: Annotated[Path, typer.Argument(help="The zip, folder or ratings file of any release.")],
    out: Out,
    form: Annotated[
        str | None,
        typer.Option(
            "--as",
            help="ratings of user and item; clicks: rated 4 or more, 8 fields.",
            show_default="ratings",
        ),
    ] = None,
    every: Annotated[int, typer.Option(help="Take ratings 1, N+1, 2N+1, ... only.")] = 1,
    split: Annotated[
        str | None, typer.Option(help="random (80/10/10) or time.", show_default="random")
    ] = None,
    seed: Seed = 0,
    min_count: MinCount = None,
    vocabulary_of: VocabularyOf = None,
    max_bad: MaxBad = 0,
    overwrite: Overwrite = False,
) -> None:
    """Prepare MovieLens: ratings, or clicks with all facts of the release about movies and users."""
    from mixdim.data.public.movielens import OF_MOVIES, OF_USERS, prepare_movielens

    def notes(meta: Meta) -> list[str]:
        """The facts that this release lacks, and unknown values."""
        known = {feature.name for feature in meta.features}
        lacking = [name for name in (*OF_MOVIES, *OF_USERS) if name not in known]
        is_clicks = meta.task == "binary"
        absent = [f"not in this release: {', '.join(lacking)}"] if is_clicks and lacking else []
        return [*absent, *_unknown_values(out, meta)]

    make_folder(
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
            vocabulary_of=vocabulary_of,
            max_bad=max_bad,
            overwrite=overwrite,
        ),
        notes,
    )


TABLE_EXAMPLES = """Examples:

- `mixdim prepare table x.csv` looks at the file and proposes a command
- `mixdim prepare table x.csv --out x --target click --categorical site,user`
- `mixdim prepare table x.csv --out x --target label --categorical 'C*' --dense 'I*'`
- `mixdim prepare table x.csv --out x --target "rating >= 8" --where "rating > 0" --categorical user`
- `mixdim prepare table buys.csv --out x --categorical user,item --negatives 4 --negatives-of item`
- `mixdim prepare table x.csv --out x --target click --categorical site,user --split column:part`
- `mixdim prepare table days/ --out x --target click --categorical site,user --split time:day`
- `mixdim prepare table x.tsv --out x --columns user,item,click --target click --categorical user,item`
- `mixdim prepare table new.csv --out new --vocabulary-of x`
"""


@prepare_app.command(epilog=TABLE_EXAMPLES)
def table(
    raw: Annotated[
        list[Path], typer.Argument(help="CSV, TSV, either as .gz, or Parquet; or a folder of them.")
    ],
    out: Annotated[Path | None, typer.Option(help="The prepared folder to make.")] = None,
    target: Annotated[
        str | None, typer.Option(help='Column to predict, or what makes its labels: "rating >= 8".')
    ] = None,
    categorical: Annotated[
        str | None, typer.Option(help="Columns of ids: A,B,... or patterns 'C*', or ranges C1..C9.")
    ] = None,
    dense: Annotated[
        str | None, typer.Option(help="Columns of numbers, standardised; likewise.")
    ] = None,
    negatives: Annotated[
        int | None,
        typer.Option(help="Without --target: negatives to draw for each positive."),
    ] = None,
    negatives_of: Annotated[
        str | None, typer.Option(help="Column that negatives differ in, such as item.")
    ] = None,
    negatives_for: Annotated[
        str | None,
        typer.Option(
            help="Columns that say who a user is; negatives are pairs that no row has.",
            show_default="the other categorical column with most values",
        ),
    ] = None,
    dense_as_is: Annotated[
        bool, typer.Option("--dense-as-is", help="Keep numbers as they are, 0 where missing.")
    ] = False,
    bag: Annotated[
        list[str] | None, typer.Option(help="A column of several ids and its separator: TAGS:|")
    ] = None,
    separator: Annotated[str | None, typer.Option(help="Between columns; guessed if not given.")] = None,
    encoding: Annotated[
        str | None, typer.Option(help="Of the text, such as latin-1.", show_default="utf-8")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Names for the columns of files without a header: A,B,...")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="binary (0 or 1, yes or no, ...) or rating (any number).", show_default="binary"
        ),
    ] = None,
    where: Annotated[
        str | None, typer.Option(help='Only rows that meet it: "rating > 0 and city is not null".')
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="random, position, time:COLUMN (or time:COLUMN:%d/%m/%Y), or column:COLUMN.",
            show_default="random",
        ),
    ] = None,
    seed: Seed = 0,
    min_count: MinCount = None,
    vocabulary_of: VocabularyOf = None,
    max_bad: MaxBad = 0,
    overwrite: Overwrite = False,
) -> None:
    """Prepare any table; with nothing but its files, look at it and propose the command."""
    from mixdim.data.table import prepare_table
    from mixdim.data.table_files import TextFormat

    separator = separator_of(separator)
    names = None if columns is None else _names(columns)
    if not (out or target or categorical or dense or bag or where or vocabulary_of or negatives):
        from mixdim.data.proposal import propose
        from mixdim.data.proposal_text import text_of
        from mixdim.data.public.movielens import is_movielens

        if len(raw) == 1 and is_movielens(raw[0]):
            typer.echo(f"{raw[0]} is MovieLens: one command prepares all of it\n")
            typer.echo(f"  mixdim prepare movielens {quote(str(raw[0]))} --out movielens")
            return
        form = TextFormat(separator, encoding or "utf-8", None if names is None else tuple(names))
        with progress_bars() as progress:
            found = propose(raw, form, progress=progress)
        typer.echo(text_of(found))
        return
    needed: dict[str, object] = {"--out": out}
    if vocabulary_of is None:
        is_labelled = negatives is None and negatives_of is None
        needed |= {"--target": target} if is_labelled else {"--negatives": negatives}
        needed |= {} if is_labelled else {"--negatives-of": negatives_of}
        needed |= {"--categorical": categorical}
    lacking = ", ".join(name for name, value in needed.items() if value is None)
    if out is None or lacking:
        raise ValueError(f"missing option {lacking}; with nothing but files, the command proposes all")
    make_folder(
        out,
        partial(
            prepare_table,
            raw,
            out,
            target=target,
            negatives=negatives,
            negatives_of=negatives_of,
            negatives_for=None if negatives_for is None else _names(negatives_for),
            categorical=None if categorical is None else _names(categorical),
            dense=None if dense is None else _names(dense),
            dense_as_is=dense_as_is or None,
            bags=None if bag is None else dict(_bag(entry) for entry in bag),
            separator=separator,
            encoding=encoding,
            columns=names,
            task=task,
            where=where,
            split=split,
            seed=seed,
            min_count=min_count,
            vocabulary_of=vocabulary_of,
            max_bad=max_bad,
            overwrite=overwrite,
        ),
        lambda meta: [
            *_kept_by_where(meta),
            *_validation(meta),
            *_negatives(meta),
            *_dense_rules(meta),
            *_unknown_values(out, meta),
        ],
    )


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


def _validation(meta: Meta) -> list[str]:
    if not meta.options.get("validation_drawn"):
        return []
    return ["validation is a tenth of train, drawn by --seed: the column names none"]


def _negatives(meta: Meta) -> list[str]:
    drawn = meta.rows.get("negatives")
    if drawn is None:
        return []
    options, kept = meta.options, meta.rows["kept"]
    column, users = options["negatives_of"], ",".join(options["negatives_for"])
    lacking = kept * options["negatives"] - drawn
    fewer = f", {lacking:,} fewer as a user has every {column}" if lacking else ""
    each, power = options["negatives"], options["negatives_power"]
    return [
        f"negatives: {drawn:,}, {each} for each of {kept:,} positives{fewer}; {column} is drawn by",
        f"count^{power} in train, never one that the same {users} has in that split;",
        "other columns are copied",
    ]


def _dense_rules(meta: Meta) -> list[str]:
    """How many dense columns there are of each kind; `inspect` has the rules."""
    if not meta.dense_rules:
        return []
    logs = sum(rule.log for rule in meta.dense_rules)
    gaps = sum(rule.tells_missing for rule in meta.dense_rules)
    constant = [rule.column for rule in meta.dense_rules if not rule.scale]
    by = "an earlier training split" if "vocabulary_of" in meta.options else "the training split"
    parts = [f"dense: {len(meta.dense_rules)} standardised by {by}"]
    parts += [f"{logs} of them log(1 + x)"] if logs else []
    robust = [rule.column for rule in meta.dense_rules if rule.robust]
    parts += [f"without outliers: {', '.join(robust)}"] if robust else []
    parts += [f"{gaps} more for missing values"] if gaps else []
    parts += [f"always 0 as training has one value: {', '.join(constant)}"] if constant else []
    return [", ".join(parts)]


def _unknown_values(out: Path, meta: Meta) -> list[str]:
    from mixdim.data.unknown_values import unknown_report

    return unknown_report(out, meta)
