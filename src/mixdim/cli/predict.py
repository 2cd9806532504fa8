"""The command `predict`. Thin: the work is in mixdim.runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mixdim.cli.parsing import separator_of
from mixdim.runs.progress import progress_bars

PREDICT_EXAMPLES = """Examples:

- `mixdim predict run --data ml-1m --out predictions.parquet`
- `mixdim predict run --raw new.csv --out predictions.parquet`
- `mixdim predict model.onnx --data ml-1m --out predictions.parquet`
"""


def predict(
    run: Annotated[
        Path, typer.Argument(help="A folder that `mixdim train` made, or an exported ONNX file.")
    ],
    out: Annotated[Path, typer.Option(help="The Parquet file to write.")],
    data: Annotated[
        Path | None,
        typer.Option(help="A prepared folder; with --raw the one the run was trained with, if moved."),
    ] = None,
    raw: Annotated[
        Path | None, typer.Option(help="A raw file instead, with or without the target.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="train, validation or test; of --data.", show_default="test")
    ] = None,
    weights: Annotated[str, typer.Option(help="best (of the validations) or last.")] = "best",
    max_bad: Annotated[int, typer.Option(help="--raw: malformed rows to skip before giving up.")] = 0,
    encoding: Annotated[
        str | None, typer.Option(help="--raw: of a table's text, if another than it was trained with.")
    ] = None,
    separator: Annotated[
        str | None, typer.Option(help="--raw: between a table's columns, likewise.")
    ] = None,
) -> None:
    """Write a trained model's predictions: columns row, prediction and, if known, target.

    A row is that of the prepared folder or, with --raw, that of the raw file: counted from 0, without
    its header.
    """
    if raw is None and data is None:
        raise ValueError(
            "give --data, a prepared folder, or --raw, a file as the data was prepared from"
        )
    of_raw = {"--max-bad": max_bad, "--encoding": encoding, "--separator": separator}
    if raw is None and any(of_raw.values()):
        named = next(name for name, value in of_raw.items() if value)
        raise ValueError(f"{named} is for the rows of --raw: give both, or neither")
    if raw is not None and split is not None:
        raise ValueError("--raw predicts all rows of a file: leave --split out")
    if raw is not None and (raw / "meta.json").is_file():
        raise ValueError(f"{raw} is a prepared folder: give it as --data")
    if run.suffix in (".onnx", ".pt2") and not run.exists():
        raise FileNotFoundError(f"there is no file {run}")
    if run.is_file():
        if data is None:
            raise ValueError(f"{run} is an exported file, which predicts a prepared folder: give --data")
        from mixdim.runs.predict import predict_with_file

        with progress_bars(unit="samples") as progress:
            rows = predict_with_file(run, data, out, split=split or "test", progress=progress).rows
        typer.echo(f"{out}: {rows:,} predictions")
        return
    from mixdim.runs.run import Run

    opened = Run.open(run)
    found = opened.predict(
        raw or opened.dataset(data),
        out,
        split=split,
        weights=weights,
        data=data,
        max_bad=max_bad,
        encoding=encoding,
        separator=separator_of(separator),
        progress=True,
    )
    typer.echo(f"{out}: {found.rows:,} predictions" + (f", ids as in {found.data}" if raw else ""))
    for line in found.notes:
        typer.echo(line)
