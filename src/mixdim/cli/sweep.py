"""The commands about many runs: sweep, recommend. Thin: the work is in mixdim.runs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from mixdim._util.arguments import unit_interval, whole_number
from mixdim._util.text import align
from mixdim.cli.flags import flag, option
from mixdim.cli.live_table import live_table
from mixdim.cli.outcome import stopped_by
from mixdim.cli.parsing import parse_list, parse_numbers
from mixdim.planning.budget import format_bytes, parse_budget
from mixdim.planning.methods import METHODS, WIDTHS
from mixdim.planning.sizing import nearest_rounding
from mixdim.runs.config import RunConfig, read_config

if TYPE_CHECKING:
    from mixdim.runs.sweeps.comparison import Comparison
    from mixdim.runs.sweeps.frame import Row
    from mixdim.runs.sweeps.records import Record
    from mixdim.runs.sweeps.sweep import RunRequest

# polars and matplotlib are extras: each command imports what it needs when it runs.

SWEEP_EXAMPLES = """Examples:

- `mixdim sweep --data ml-1m --model mf --budgets width:2,width:4 --seeds 5 --records mf.jsonl`
- `mixdim sweep --data ml-1m --budgets 2^15,2^17 --rounding power_of_two --records mf.jsonl`
- `mixdim sweep --data split-0,split-1,split-2 --budgets 2^15 --seeds 3 --records mf.jsonl --jobs 2`
- `mixdim sweep --config run.toml --budgets 1M,2M --records dlrm.jsonl`
- `mixdim sweep --data criteo --methods uniform,cut --bits 32,8 --bytes 1/8,1/32 --records m.jsonl`
"""
RECOMMEND_EXAMPLES = """Examples:

- `mixdim recommend --records mf.jsonl --loss-within 0.1%`
- `mixdim recommend --records mf.jsonl --records dlrm.jsonl --model mf --budget 2^17`
"""
FILL = "fill"
ROUNDING = f"Of widths: {FILL}, which spends what rounding leaves, integer or power_of_two."
SET_BY_THE_SWEEP = ("temperature", "base_dim", "budget", "method", "plan", "seed")


def sweep(
    records: Annotated[Path, typer.Option(help="The file of records: each run adds a line.")],
    budgets: Annotated[
        str | None,
        typer.Option(
            help="For embeddings: width:2,width:4 is what uniform widths 2 and 4 have; embeddings:1M, "
            "embeddings:4MB. For the whole model: 2^15,1M,4MB."
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="A prepared folder; of several, seed i takes folder i in turn.")
    ] = None,
    model: Annotated[str | None, flag("model", panel="")] = None,
    temperatures: Annotated[str | None, typer.Option(help="0 is uniform; 0,0.2,0.4.")] = None,
    methods: Annotated[
        str | None, typer.Option(help=f"Instead of temperatures, any of {', '.join(METHODS)}.")
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(
            "--bytes", help="Sizes of embeddings, with --methods: 1/8,1/32 of the reference, or 4MB."
        ),
    ] = None,
    reference_width: Annotated[
        int, typer.Option(help="With --methods: uniform dimensions of this width are the reference.")
    ] = 16,
    widths: Annotated[
        str, typer.Option(help="With --methods: base_dims that each method is tried at.")
    ] = ",".join(map(str, WIDTHS)),
    bits: Annotated[
        str | None,
        typer.Option(
            help="Bits of a number when served, such as 32,8,4: below 32 quantizes after training."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Train every configuration with seeds 0 to N-1.")] = 5,
    bands: Annotated[str | None, flag("bands", panel="")] = None,
    rounding: Annotated[str | None, flag("rounding", ROUNDING, panel="")] = None,
    preset: Annotated[str | None, flag("preset", panel="")] = None,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file of more options, as `mixdim train` takes.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Runs at a time; they divide the threads.")] = 1,
    plot: Annotated[
        Path | None, typer.Option(help="With --methods: draw loss against bytes; .png, .svg or .pdf.")
    ] = None,
) -> None:
    """Train at several temperatures, or by several methods, within the same budgets, with several seeds.

    Every method is tried at a few widths with the first seed; the best by validation is repeated with
    the others. Bytes are of all that grows with ids as it is served, in --bits a number.

    Finished runs are in the records and are not made again: after Ctrl-C, or a kill, repeat the
    command. A run that fails is recorded, and the sweep continues. Sweeps with the same records file
    may run at the same time and share the work.
    """
    from mixdim.runs.sweeps.comparison import run_comparison
    from mixdim.runs.sweeps.methods import run_name
    from mixdim.runs.sweeps.sweep import SweepStopped, run_sweep
    from mixdim.runs.sweeps.tables import comparison_table, sweep_table

    more = RunConfig() if config is None else read_config(config)
    for name in SET_BY_THE_SWEEP:
        if getattr(more, name) is not None:
            raise ValueError(f"{config}: a sweep sets {name} itself")
    flags = {"model": model, "bands": option("bands").parse(bands), "rounding": rounding}
    given = RunConfig.of(**flags, preset=preset).merged_with(more)
    if plot is not None:
        from mixdim.runs.figures.plots import check_picture, save_figure

        if methods is None:
            raise ValueError("--plot needs --methods; temperatures are drawn by `mixdim report`")
        check_picture(plot)  # not only after hours
    nearest_rounding(given.rounding or FILL, has_budget=True)
    every_bits = [32 if given.bits is None else given.bits]
    if bits is not None:
        every_bits = parse_numbers(bits, "bits", int, example="32,8")
    folders, seeds = parse_list(data or given.data or "", "data"), whole_number(seeds, "seeds")
    if methods is None:
        if sizes is not None or budgets is None:
            raise ValueError("give --budgets, or --methods and --bytes")
        usual = "0,0.2,0.4"
        texts = usual if temperatures is None else temperatures
        numbers = parse_numbers(texts, "temperatures", float, example=usual)
        chosen = [unit_interval(number, "temperature") for number in numbers]
        wanted = _runs(given, folders, chosen, parse_list(budgets, "budgets"), every_bits, seeds)
        make, table = partial(run_sweep, wanted), sweep_table
    else:
        if sizes is None or budgets is not None or temperatures is not None:
            raise ValueError("--methods takes --bytes, and neither --budgets nor --temperatures")
        comparison = _comparison(given, folders[0], methods, sizes, every_bits, reference_width, widths)
        make, table = partial(run_comparison, comparison, folders, seeds=seeds), comparison_table
    so_far: list[Record] = []
    try:
        with live_table(so_far, table) as (progress, on_record):
            found = make(records=records, jobs=jobs, progress=progress, on_record=on_record)
    except SweepStopped as stopped:
        typer.echo(table(so_far))
        raise stopped_by(stopped.signal_name, f"{stopped}; the same command goes on") from None
    typer.echo(table(found))
    if plot is not None and any(record.finished for record in found):
        from mixdim.runs.figures.methods import methods_figure

        save_figure(methods_figure(found), plot)
    failed = [record for record in found if not record.finished]
    for record in failed:
        typer.echo(f"failed: {run_name(record.config)}: {record.error}", err=True)
    if failed:
        raise typer.Exit(1)
    typer.echo(f"next: mixdim recommend --records {quote(str(records))} --loss-within 0.1%")


def recommend(
    records: Annotated[list[Path], typer.Option(help="What `mixdim sweep` wrote; may be repeated.")],
    loss_within: Annotated[
        str | None,
        typer.Option(help="The smallest model (0.1%) within so much of the best validation loss."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(help="The best model with at most so many parameters in all, or bytes: 4MB."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Only consider runs of this model.")] = None,
    data: Annotated[str | None, typer.Option(help="Only consider runs on these folders.")] = None,
) -> None:
    """Choose the cheapest measured configuration by validation loss, and print its command."""
    from mixdim.runs.sweeps.recommend import recommend as choose
    from mixdim.runs.sweeps.recommend import select, train_command
    from mixdim.runs.sweeps.records import read_records

    folders = None if data is None else parse_list(data, "data")
    found = select(read_records(records), model=model, data=folders)
    chosen, best, uniform = choose(
        found,
        loss_within=None if loss_within is None else _percent(loss_within),
        budget=None if budget is None else parse_budget(budget),
    )
    others = {"lowest loss": best, "uniform": uniform}
    method = "method" if any(record.config.get("method") for record in found) else "temperature"
    losses = [f"{split} {chosen['loss']}" for split in ("validation", "test")]
    lines = [["", method, "base_dim", "parameters", "embeddings", "model", *losses, "seeds"]]
    lines.append(["recommended", *_cells(chosen)])
    lines += [[label, *_cells(one)] for label, one in others.items() if one and one != chosen]
    typer.echo("\n".join(align(lines)) + "\n\n" + _rival(chosen, uniform))
    typer.echo(f"train it: {train_command(found[chosen['numbers'][0]])}")


def _runs(
    given: RunConfig,
    folders: list[str],
    temperatures: list[float],
    budgets: list[str],
    bits: list[int],
    seeds: int,
) -> list[RunRequest]:
    """Every budget at every temperature; seed after seed, so that a part of it is a comparison too."""
    from mixdim.runs.sweeps.sweep import within_budget

    def config(seed: int, temperature: float, bits: int) -> RunConfig:
        # No rounding does anything to uniform dimensions: by this name they are in earlier records.
        rounding = (given.rounding or FILL) if temperature > 0 else "power_of_two"
        return replace(
            given,
            data=folders[seed % len(folders)],
            temperature=temperature,
            rounding=rounding,
            bits=bits,
            seed=seed,
        )

    return [
        within_budget(config(seed, temperature, number), budget)
        for seed, budget, temperature, number in product(range(seeds), budgets, temperatures, bits)
    ]


def _comparison(
    given: RunConfig,
    folder: str,
    methods: str,
    sizes: str,
    bits: list[int],
    reference_width: int,
    widths: str,
) -> Comparison:
    """The runs of methods at equal bytes; says which methods are not possible."""
    from mixdim.data import Dataset
    from mixdim.runs.sweeps.comparison import comparison

    numbers = parse_numbers(widths, "widths", int, example="2,4,8")
    wanted = comparison(
        given,
        Dataset(folder),
        parse_list(methods, "methods"),
        parse_list(sizes, "bytes"),
        bits=bits,
        reference_width=whole_number(reference_width, "reference_width"),
        widths=[whole_number(width, "widths") for width in numbers],
    )
    for line in filter(None, [wanted.differences, *wanted.not_possible]):
        typer.echo(line, err=True)
    return wanted


def _cells(row: Row) -> list[str]:
    from mixdim.runs.sweeps.frame import base_dims, with_deviation

    return [
        row["method"],
        base_dims(row),
        f"{row['parameters']:,.0f}",
        format_bytes(int(row["embedding_bytes"])),
        format_bytes(int(row["num_bytes"])),
        *(with_deviation(row[split], row[f"{split}_std"]) for split in ("validation", "test")),
        str(row["seeds"]),
    ]


def _rival(chosen: Row, uniform: Row | None) -> str:
    """What uniform dimensions need for the same loss."""
    if chosen["uniform"]:
        return "uniform dimensions do best here"
    if uniform is None:
        return "no uniform configuration that was measured reaches this validation loss"
    times = uniform["num_bytes"] / chosen["num_bytes"]
    return f"uniform dimensions need {times:.3g} times the bytes of the model for this validation loss"


def _percent(text: str) -> float:
    """The share that a percentage is: 0.001 for 0.1%."""
    try:
        if text.endswith("%"):
            return float(text[:-1]) / 100
    except ValueError:
        pass
    raise ValueError(f"--loss-within must be a percentage such as 0.1%, got {text!r}")
