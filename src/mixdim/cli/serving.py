"""The commands about serving: export, bench-serving. Thin: the work is in mixdim.runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from mixdim.cli.parsing import parse_numbers

EXPORT_EXAMPLES = """Examples:

- `mixdim export run --out model.onnx`
- `mixdim export run --out model.onnx --bits 8 --overwrite`
- `mixdim export run --out model.pt2 --unknown refuse`
- `mixdim predict model.onnx --data ml-1m --out predictions.parquet`
"""
BENCH_EXAMPLES = "Example: `mixdim bench-serving run --data criteo`"

RunFolder = Annotated[Path, typer.Argument(help="A folder that `mixdim train` made.")]
DataOfRun = Annotated[
    Path | None, typer.Option(help="A prepared folder; the one of the run if not given.")
]


def export(
    run: RunFolder,
    out: Annotated[Path, typer.Option(help="The file to write: .onnx or .pt2.")],
    bits: Annotated[
        int | None,
        typer.Option(
            help="Bits of a number: 8 or 4 quantize the embeddings, 32 does not; default: as the run."
        ),
    ] = None,
    format: Annotated[str | None, typer.Option(help="onnx or pt2; if not given, as --out ends.")] = None,
    data: DataOfRun = None,
    split: Annotated[str, typer.Option(help="The rows to measure on: validation or test.")] = "test",
    unknown: Annotated[
        str, typer.Option(help="Ids that are no rows: clip (to the unknown id) or refuse (an error).")
    ] = "clip",
    weights: Annotated[str, typer.Option(help="best (of the validations) or last.")] = "best",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that exist.")] = False,
) -> None:
    """Write a trained model as a file for ONNX Runtime, or for PyTorch without mixdim.

    Beside it goes the file of its vocabularies, `<out>.vocabulary.json`. Then it is measured: bytes,
    loss before and after, and how long an answer takes.
    """
    from mixdim.runs.run import Run

    Run.open(run).export(
        out,
        bits=bits,
        format=format,
        unknown=unknown,
        weights=weights,
        data=data,
        split=split,
        overwrite=overwrite,
        progress=True,
        echo=typer.echo,
    )


def bench_serving(
    run: RunFolder,
    data: DataOfRun = None,
    batches: Annotated[str, typer.Option(help="Samples of a batch.")] = "1,32,256,2048",
    threads: Annotated[
        int, typer.Option(help="With one, times are of the processor; with more, of the clock.")
    ] = 1,
    seconds: Annotated[float, typer.Option(help="For each way and batch, about.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Time a model's answers: eager, as torch.onnx exports it, and as `mixdim export` does.

    All take turns, so that a noisy machine is noisy for all. Files are temporary.
    """
    from mixdim.runs.run import Run
    from mixdim.runs.serving_times import bench

    sizes = parse_numbers(batches, "batches", int, example="1,256")
    quiet: list[str] = []
    found = bench(
        Run.open(run),
        data=data,
        batches=sizes,
        threads=threads,
        seconds=seconds,
        echo=quiet.append if as_json else typer.echo,
    )
    if as_json:
        typer.echo(json.dumps(found, indent=2))
