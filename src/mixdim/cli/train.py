"""The commands about training: train, evaluate. Thin: the work is in mixdim.runs."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from mixdim._util.text import align
from mixdim.cli.flags import flag, with_flags
from mixdim.cli.outcome import FAILED, stopped_by
from mixdim.runs.config import TRAINING, RunConfig, read_config
from mixdim.runs.progress import progress_bars

# polars is an extra: each command imports what it needs when it runs.

TRAIN_EXAMPLES = """Examples:

- `mixdim train --data ml-1m --model mf --temperature 0.3 --budget 2^15 --out run`
- `mixdim train --data criteo --model dlrm --temperature 0.3 --budget 2M --out run`
- `mixdim train --data criteo --model dlrm --temperature 0 --base-dim 16 --out uniform`
- `mixdim train --data ml-1m --base-dim 16 --print-config > run.toml`
- `mixdim train --config run.toml --seed 1 --out run-1`
- `mixdim train --data criteo --out run`
- `mixdim train --data criteo --base-dim 8 --budget 4MB --bands octaves --min-dim 0 --out run`
- `mixdim train --data criteo --method cut --base-dim 4 --budget 4MB --out run`
- `mixdim train --data criteo --method mixed --bits 8 --base-dim 16 --budget 4MB --out run`
- `mixdim train --data criteo --plan plan.json --out run`
- `mixdim train --data ml-1m --model mf --base-dim 16 --tune --out run`
- `mixdim train --data criteo --base-dim 16 --preset paper-ctr --out run`
- `mixdim train --resume --out run`
- `torchrun --nproc-per-node 2 -m mixdim train --distributed --data criteo --budget 64MB --out run`
"""

Data = Annotated[Path, typer.Option(help="A prepared folder.")]
RunFolder = Annotated[Path, typer.Argument(help="A folder that `mixdim train` made.")]
Split = Annotated[str, typer.Option(help="train, validation or test.")]
Weights = Annotated[str, typer.Option(help="best (of the validations) or last.")]


@with_flags
def train(
    given: Mapping[str, Any],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the run; made if needed. Required, but with --print-config."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file of these options; flags go before it.")
    ] = None,
    print_config: Annotated[
        bool,
        typer.Option("--print-config", help="Print the options of this run as TOML; train nothing."),
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")] = False,
    *,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune",
            help="First try 5 penalties or weight decays, and take the best in validation.",
            rich_help_panel=TRAINING,
        ),
    ] = False,
) -> None:
    """Train a model with mixed dimensions on a prepared data set.

    Widths follow from --budget or --base-dim, and --temperature; --temperature 0 --base-dim 16 is
    uniform width 16. Without any of them, all vectors are 16 wide and served in 4 bits.
    """
    from mixdim.training import Stopped

    options = RunConfig.of(**given).merged_with(RunConfig() if config is None else read_config(config))
    if print_config:
        if resume or tune:
            raise ValueError("--print-config shows a new run: leave out --resume and --tune")
        typer.echo(_complete(options).to_toml(comments=True), nl=False)
        return
    if out is None:
        raise ValueError("Missing option '--out'.")
    world = os.environ.get("WORLD_SIZE", "1")  # torchrun sets it
    if world != "1" and not options.distributed:
        raise ValueError(f"torchrun started {world} processes: add --distributed, or leave torchrun out")
    if tune and options.distributed:
        raise ValueError("--tune does not work with --distributed")
    speaks = not options.distributed or os.environ.get("RANK", "0") == "0"  # one of all processes
    with warnings.catch_warnings():
        if not speaks:
            warnings.simplefilter("ignore")
        try:
            summary = _trained(options, out, resume=resume, overwrite=overwrite, tune=tune)
        except Stopped as stopped:
            if not speaks:
                raise typer.Exit(FAILED) from None
            again = f"continue with: mixdim train --resume --out {quote(str(out))}"
            if options.distributed:
                again = "go on with the same command and --resume"
            raise stopped_by(stopped.signal_name, f"{stopped}; {again}") from None
    if speaks:
        typer.echo(_results(summary))
        typer.echo(f"next: mixdim evaluate {quote(str(out))} --data {quote(summary['data'])}")


def _trained(
    options: RunConfig, out: Path, *, resume: bool, overwrite: bool, tune: bool
) -> dict[str, Any]:
    """Train the run, and return its summary."""
    from mixdim.runs.folder import check_folder
    from mixdim.runs.run import Run

    told: dict[str, Any] = {"resume": resume, "progress": True, "echo": typer.echo}
    if tune:
        check_folder(out, resume=resume, overwrite=overwrite)  # before the search
        options, told["tuned"] = _tuned(options, out)
    run = Run.create(out, options, resume=resume, overwrite=overwrite)
    if not options.distributed:
        return run.train(**told)
    from mixdim.distributed.process_group import init

    with init() as group:
        return run.train(group=group, **told)


def _complete(options: RunConfig) -> RunConfig:
    """What would be run, having checked it; without data, what no data decides."""
    from mixdim.runs.resolution import without_data
    from mixdim.runs.train import planned

    return without_data(options) if options.data is None else planned(options).config


def evaluate(
    run: RunFolder,
    data: Data,
    split: Split = "test",
    weights: Weights = "best",
    slice_by: Annotated[str | None, flag("slice_by", panel="")] = None,
    ranking_users: Annotated[int | None, flag("ranking_users", panel="")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure a trained model on a split of a data set."""
    from mixdim.runs.run import Run

    found = Run.open(run).evaluate(
        data, split, weights=weights, slice_by=slice_by, ranking_users=ranking_users, progress=True
    )
    typer.echo(
        json.dumps(found, indent=2) if as_json else _metrics_table({f"{split}, {weights}": found})
    )


def _tuned(options: RunConfig, out: Path) -> tuple[RunConfig, dict[str, Any]]:
    """Search for the penalty or weight decay; finished trials of an earlier call are not made again."""
    from mixdim.runs.sweeps.sweep import SweepStopped
    from mixdim.runs.sweeps.tune import tune

    try:
        with progress_bars(slow="runs") as progress:
            found = tune(options, out, progress=progress, echo=typer.echo)
    except SweepStopped as stopped:
        raise stopped_by(stopped.signal_name, f"{stopped}; the same command goes on") from None
    return found.config, found.tried


def _results(summary: dict[str, Any]) -> str:
    """What a reader wants to know of a finished run."""
    from mixdim.planning.budget import format_bytes
    from mixdim.runs.summary import advice_after

    is_last = summary["validation"]["best"]["step"] == summary["validation"]["last"]["step"]
    shown = {"best": "best, also the last"} if is_last else {"best": "best", "last": "last"}
    table = _metrics_table({
        f"{split}, {label}": summary[split][which]
        for split in ("validation", "test")
        for which, label in shown.items()
    } | {
        f"{split}, best before quantizing": of_split["best"]
        for split, of_split in summary.get("before_quantizing", {}).items()
    })  # fmt: skip
    best_possible = [
        f"best possible {name.removeprefix('bayes_')} of this synthetic test split: {values['test']:.4f}"
        for name, values in summary.items()
        if name.startswith("bayes_")
    ]
    cost = (
        f"{summary['epochs_run']} epochs in {summary['seconds']:.1f} s, "
        f"{summary['samples_per_second']:,.0f} samples/s in training"
    )
    if "embedding_bytes" in summary:  # not of a run that was finished before there was this
        parts = summary.get("bytes_by_part", {"embeddings": summary["embedding_bytes"]})
        sizes = (f"{name} of {format_bytes(size)}" for name, size in parts.items())
        cost += f"; {' and '.join(sizes)} in {summary['bits']} bits"
    tuning = summary.get("tuning") or {"chosen": {}}
    searched = [
        f"{option.replace('_', ' ')} {value:g} was chosen of {len(tuning['tried'])} that were tried, "
        "by validation alone"
        for option, value in tuning["chosen"].items()
    ]
    return "\n".join([table, "", cost, *searched, *best_possible, *advice_after(summary)])


def _metrics_table(results: dict[str, dict[str, Any]]) -> str:
    """One line for each result and each of its slices, one column a metric; then what was ranked."""
    from mixdim.tasks import RANKING, TASKS

    metrics = {name for task in TASKS.values() for name in task.metrics}
    names = [name for name in next(iter(results.values())) if name in metrics]
    names += [name for name in RANKING if any(name in result for result in results.values())]
    lines = [["", "rows", *names]]
    for label, result in results.items():
        lines.append([label, *_cells(result, names)])
        for slice_name, of_slice in result.get("slices", {}).items():
            lines.append([f"  {slice_name}", *_cells(of_slice, names)])
    ranked: dict[str, list[str]] = {}
    for label, result in results.items():
        if "ranking" in result:
            ranked.setdefault(result["ranking"], []).append(label.partition(",")[0])
    of_what = [f"{', '.join(RANKING)} of {' and '.join(of)}: {what}" for what, of in ranked.items()]
    return "\n".join([*align(lines), *of_what])


def _cells(metrics: dict[str, Any], names: list[str]) -> list[str]:
    values = (metrics.get(name) for name in names)
    return [f"{metrics['rows']:,}", *("-" if value is None else f"{value:.4f}" for value in values)]
