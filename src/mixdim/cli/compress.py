"""The command that makes a trained run small. Thin: the work is in mixdim.runs."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from mixdim._util.text import align
from mixdim.cli.flags import option
from mixdim.planning.budget import format_bytes

# polars is an extra: the command imports what it needs when it runs.

COMPRESS_EXAMPLES = """Examples:

- `mixdim compress run --budget 4MB --out small`
- `mixdim compress run --budget 1/16 --bits 8 --out small`
- `mixdim compress run --budget 1/8 --bands 1 --out small --overwrite`
"""


def compress(
    run: Annotated[Path, typer.Argument(help="A folder that `mixdim train` made.")],
    budget: Annotated[
        str, typer.Option(help="Of the embeddings: bytes (4MB), or a share of what they take (1/8).")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the small run.")],
    bits: Annotated[
        int, typer.Option(help="Bits of a number: 8 or 4 quantize the embeddings too.")
    ] = 32,
    bands: Annotated[
        str, typer.Option(help="Bands of popularity a feature at most, or octaves of counts.")
    ] = "8",
    by_loss: Annotated[
        bool,
        typer.Option(
            "--by-loss/--by-counts",
            help="Whether directions count by how much the loss feels them, or all alike.",
        ),
    ] = True,
    data: Annotated[
        Path | None, typer.Option(help="A prepared folder; that of the run if not given.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")] = False,
) -> None:
    """Compress the embeddings of a trained run, without training.

    Bands of each feature get the widths that lose least of what was learned, weighted by popularity,
    within the budget; the rarest may share one row. `mixdim evaluate` and `mixdim predict` work on the
    new folder.
    """
    from mixdim.runs.run import Run

    found = Run.open(run).compress(
        out,
        budget,
        bits,
        bands=option("bands").parse(bands),
        by_loss=by_loss,
        data=data,
        overwrite=overwrite,
        progress=True,
    )
    typer.echo(f"{found.plan}\n")
    typer.echo(_before_and_after(found.before, found.after))
    ratio = found.bytes_before / found.bytes_after
    typer.echo(
        f"embeddings of {format_bytes(found.bytes_before)} are {format_bytes(found.bytes_after)} now, "
        f"{ratio:.1f}x smaller; the whole model was {format_bytes(found.model_bytes[0])} and is "
        f"{format_bytes(found.model_bytes[1])}"
    )
    typer.echo(f"next: mixdim evaluate {quote(str(out))} --data {quote(str(found.data))}")


def _before_and_after(before: dict[str, Any], after: dict[str, Any]) -> str:
    from mixdim.tasks import TASKS

    metrics = {name for task in TASKS.values() for name in task.metrics}
    names = [name for name in before if name in metrics and before[name] is not None]
    lines = [["validation", *names]]
    for label, found in (("before", before), ("after", after)):
        lines.append([label, *(f"{found[name]:.4f}" for name in names)])
    return "\n".join(align(lines))
