"""The experiments of the theory: two-block, allocation, completion. Thin: see mixdim.lab.trials."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mixdim._util.files import make_folder
from mixdim.runs.progress import Show, progress_bars

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mixdim.lab.trials.records import Record

# scipy and matplotlib are extras: each command imports what it needs when it runs.

theory_app = typer.Typer(
    help="Run the theory's experiments: records, a picture and a table each.",
    epilog="Example: `mixdim theory two-block --out theory`",
    rich_markup_mode="markdown",
)

Out = Annotated[Path, typer.Option(help="Folder for records and pictures; made if needed.")]
Seeds = Annotated[int, typer.Option(help="Random repetitions of everything.")]


@theory_app.command(epilog="Example: `mixdim theory two-block --out theory --rates 0.3,0.2,0.12`")
def two_block(
    out: Out,
    size: Annotated[int, typer.Option(help="Rows of each block, and columns.")] = 200,
    rates: Annotated[
        str, typer.Option(help="Shares of the samples that the rare block gets (epsilon).")
    ] = "0.3,0.25,0.2,0.15,0.12",
    rare_rank: Annotated[int, typer.Option(help="Rank of the rare block; the other's is 1/rate.")] = 1,
    seeds: Seeds = 5,
) -> None:
    """How many samples recover a matrix of a popular and a rare block? About a minute."""
    from mixdim.lab.figures.theory import two_block_figure
    from mixdim.lab.trials.findings import two_block_table
    from mixdim.lab.trials.two_block import TwoBlockOptions, two_block_records

    options = TwoBlockOptions(size, _numbers(rates, "rates"), rare_rank, seeds)
    _deliver(out, "two-block", partial(two_block_records, options), two_block_figure, two_block_table)


@theory_app.command(epilog="Example: `mixdim theory allocation --out theory --decays 0.8 --spread 0`")
def allocation(
    out: Out,
    row_sizes: Annotated[str, typer.Option(help="Rows of each block.")] = "50,100,400,1600,6400",
    col_sizes: Annotated[str, typer.Option(help="Columns of each block.")] = "200,800,3200",
    decays: Annotated[
        str, typer.Option(help="Singular values fall as k to minus this power.")
    ] = "0.5,0.8,1.2",
    temperatures: Annotated[
        str, typer.Option(help="Of the power law; 0 is uniform.")
    ] = "0,0.2,0.4,0.6,1",
    budgets: Annotated[
        str, typer.Option(help="Shares of the parameters that leave no error.")
    ] = "0.01,0.02,0.05,0.1,0.2,0.3",
    spread: Annotated[
        float, typer.Option(help="Standard deviation of the log of a block's largest singular value.")
    ] = 0.5,
    seeds: Seeds = 10,
) -> None:
    """What error does a budget buy, uniform, by the power law and at the optimum? Seconds."""
    from mixdim.lab.figures.theory import allocation_figure
    from mixdim.lab.trials.allocation import AllocationOptions, allocation_records
    from mixdim.lab.trials.findings import allocation_table

    options = AllocationOptions(
        _whole_numbers(row_sizes, "row-sizes"),
        _whole_numbers(col_sizes, "col-sizes"),
        decays=_numbers(decays, "decays"),
        temperatures=_numbers(temperatures, "temperatures"),
        budgets=_numbers(budgets, "budgets"),
        spread=spread,
        seeds=seeds,
    )
    _deliver(
        out, "allocation", partial(allocation_records, options), allocation_figure, allocation_table
    )


@theory_app.command(epilog="Example: `mixdim theory completion --out theory --size 100 --rank 4`")
def completion(
    out: Out,
    size: Annotated[int, typer.Option(help="Rows and columns of the matrix.")] = 60,
    rank: Annotated[int, typer.Option(help="Of the matrix.")] = 3,
    features: Annotated[int, typer.Option(help="Sides of the tensor.")] = 3,
    feature_size: Annotated[int, typer.Option(help="Rows of each feature of the tensor.")] = 12,
    tensor_rank: Annotated[int, typer.Option(help="Width of the tensor's factors.")] = 2,
    shares: Annotated[
        str, typer.Option(help="Of the entries that are seen.")
    ] = "0.05,0.1,0.15,0.2,0.25,0.3,0.4,0.5,0.7,1",
    seeds: Seeds = 5,
) -> None:
    """What share of a matrix, or of a tensor, must be seen to complete it? Half a minute."""
    from mixdim.lab.figures.theory import completion_figure
    from mixdim.lab.trials.completion import CompletionOptions, completion_records
    from mixdim.lab.trials.findings import completion_table

    options = CompletionOptions(
        *(size, rank, features, feature_size, tensor_rank), _numbers(shares, "shares"), seeds
    )
    _deliver(
        out, "completion", partial(completion_records, options), completion_figure, completion_table
    )


def _deliver(
    out: Path,
    name: str,
    run: Callable[[Show], Iterator[Record]],
    draw: Callable[[Sequence[Record]], Figure],
    tell: Callable[[Sequence[Record]], str],
) -> None:
    """Run, write the records, then draw and tell what they say."""
    from mixdim.lab.trials.records import read_records, write_records
    from mixdim.runs.figures.plots import save_figure

    if out.exists() and not out.is_dir():  # before a minute of work is lost
        raise NotADirectoryError(f"{out} must be a folder, but is a file")
    with progress_bars(unit="points") as show:
        measured = list(run(show))
    make_folder(out)
    lines = out / f"{name}.jsonl"
    write_records(lines, measured)
    records = read_records(lines)
    figure = draw(records)
    for ending in ("png", "svg"):
        save_figure(figure, out / f"{name}.{ending}")
    typer.echo(tell(records))
    typer.echo(f"\n{lines}: {len(records):,} records; pictures: {name}.png, {name}.svg")


def _numbers(text: str, option: str) -> tuple[float, ...]:
    try:
        return tuple(float(entry) for entry in text.split(","))
    except ValueError:
        raise ValueError(f"--{option} must be numbers such as 0.3,0.2, got {text!r}") from None


def _whole_numbers(text: str, option: str) -> tuple[int, ...]:
    try:
        return tuple(int(entry) for entry in text.split(","))
    except ValueError:
        raise ValueError(f"--{option} must be whole numbers such as 50,100, got {text!r}") from None
