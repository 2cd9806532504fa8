"""The commands about training: train, evaluate. Thin: the work is in mixdim.runs."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mixdim._util.text import align
from mixdim.cli.outcome import FAILED, stopped_by
from mixdim.cli.parsing import parse_bands
from mixdim.cli.progress import progress_bars

if TYPE_CHECKING:
    from mixdim.runs.config import RunConfig

# polars is an extra: each command imports what it needs when it runs.

TRAIN_EXAMPLES = """Examples:

- `mixdim train --data ml-1m --model mf --temperature 0.3 --budget 2^15 --out run`
- `mixdim train --data criteo --model dlrm --temperature 0.3 --budget 2M --out run`
- `mixdim train --data criteo --model dlrm --temperature 0 --base-dim 16 --out uniform`
- `mixdim train --config run.toml --seed 1 --out run-1`
- `mixdim train --data criteo --base-dim 8 --budget 4MB --bands octaves --min-dim 0 --out run`
- `mixdim train --data criteo --method cut --base-dim 4 --budget 4MB --out run`
- `mixdim train --data criteo --method mixed --bits 8 --base-dim 16 --budget 4MB --out run`
- `mixdim train --data criteo --plan plan.json --out run`
- `mixdim train --data ml-1m --model mf --base-dim 16 --tune --out run`
- `mixdim train --data criteo --base-dim 16 --preset paper-ctr --out run`
- `mixdim train --resume --out run`
- `torchrun --nproc-per-node 2 -m mixdim train --distributed --data criteo --budget 64MB --out run`
"""
ABOUT_MODEL, ABOUT_WIDTHS, ABOUT_TRAINING = "Model", "Widths", "Training (defaults: the preset)"

Data = Annotated[Path, typer.Option(help="A prepared folder.")]
Run = Annotated[Path, typer.Argument(help="A folder that `mixdim train` made.")]
Split = Annotated[str, typer.Option(help="train, validation or test.")]
Weights = Annotated[str, typer.Option(help="best (of the validations) or last.")]


def _option(panel: str, help_text: str, *names: str) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel=panel)


def train(
    out: Annotated[Path, typer.Option(help="Folder for the run; made if needed.")],
    data: Annotated[Path | None, typer.Option(help="A prepared folder.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file of these options; flags go before it.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")] = False,
    model: Annotated[
        str | None, _option(ABOUT_MODEL, "dlrm (for clicks), mf or ncf (for ratings).")
    ] = None,
    bottom: Annotated[str | None, _option(ABOUT_MODEL, "DLRM: hidden widths below: 64,32.")] = None,
    top: Annotated[str | None, _option(ABOUT_MODEL, "DLRM: hidden widths above: 64,32.")] = None,
    hidden: Annotated[str | None, _option(ABOUT_MODEL, "NCF: hidden widths: 128,128,32.")] = None,
    biases: Annotated[
        bool | None, _option(ABOUT_MODEL, "MF: a number for each user and item.", "--biases/--no-biases")
    ] = None,
    from_baseline: Annotated[
        bool | None,
        _option(
            ABOUT_MODEL,
            "MF's biases, or DLRM's first-order weights, begin as those of the baseline, not with 0.",
            "--from-baseline/--no-from-baseline",
        ),
    ] = None,
    mean: Annotated[
        bool | None, _option(ABOUT_MODEL, "MF, NCF: start from the mean target.", "--mean/--no-mean")
    ] = None,
    first_order: Annotated[
        bool | None,
        _option(
            ABOUT_MODEL,
            "DLRM: also a weight for each id and number.",
            "--first-order/--no-first-order",
        ),
    ] = None,
    init: Annotated[str | None, _option(ABOUT_MODEL, "xavier, he_fan_in or he_fan_out.")] = None,
    temperature: Annotated[
        float | None, _option(ABOUT_WIDTHS, "0 is uniform; 0.3 if not given.")
    ] = None,
    base_dim: Annotated[int | None, _option(ABOUT_WIDTHS, "Width of the most popular block.")] = None,
    budget: Annotated[
        str | None, _option(ABOUT_WIDTHS, "Of the embeddings: 2000000, 2M, 2^21, 64MB, width:2.")
    ] = None,
    bands: Annotated[
        str | None, _option(ABOUT_WIDTHS, "Bands a feature, or octaves; 1 for dlrm, 8 for mf and ncf.")
    ] = None,
    rounding: Annotated[str | None, _option(ABOUT_WIDTHS, "power_of_two, integer or fill.")] = None,
    min_dim: Annotated[
        int | None, _option(ABOUT_WIDTHS, "1, or 0: the rarest blocks share one row.")
    ] = None,
    method: Annotated[
        str | None, _option(ABOUT_WIDTHS, "Instead of a temperature: cut, octaves, robe, ...")
    ] = None,
    bits: Annotated[
        int | None,
        _option(ABOUT_WIDTHS, "Bits of a number when served: 8 or 4 quantize after training."),
    ] = None,
    plan: Annotated[Path | None, _option(ABOUT_WIDTHS, "A saved plan, instead of all these.")] = None,
    preset: Annotated[
        str | None,
        _option(ABOUT_TRAINING, "auto, chosen from the data, or paper-ctr, paper-cf: the paper's."),
    ] = None,
    optimizer: Annotated[str | None, _option(ABOUT_TRAINING, "amsgrad, adam, adagrad or sgd.")] = None,
    lr: Annotated[float | None, _option(ABOUT_TRAINING, "Learning rate.")] = None,
    table_lr: Annotated[
        float | None, _option(ABOUT_TRAINING, "Learning rate of the embeddings; --lr if not given.")
    ] = None,
    weight_decay: Annotated[
        float | None, _option(ABOUT_TRAINING, "Decoupled, of rows as they are asked for; 0: none.")
    ] = None,
    batch_size: Annotated[int | None, _option(ABOUT_TRAINING, "Samples a step.")] = None,
    epochs: Annotated[int | None, _option(ABOUT_TRAINING, "At most.")] = None,
    patience: Annotated[
        int | None, _option(ABOUT_TRAINING, "Evaluations without improvement; 0: never stop.")
    ] = None,
    evaluations_per_epoch: Annotated[
        int | None, _option(ABOUT_TRAINING, "Looks at the validation split.")
    ] = None,
    checkpoint_every: Annotated[
        int | None, _option(ABOUT_TRAINING, "Steps; every 5 minutes if not given.")
    ] = None,
    shuffle: Annotated[
        bool | None, _option(ABOUT_TRAINING, "The order of rows.", "--shuffle/--no-shuffle")
    ] = None,
    unknown_dropout: Annotated[
        bool | None,
        _option(
            ABOUT_TRAINING,
            "Ids become unknown with probability 1/(1 + count), to train that row.",
            "--unknown-dropout/--no-unknown-dropout",
        ),
    ] = None,
    tune: Annotated[
        bool,
        _option(ABOUT_TRAINING, "First try 5 weight decays, and take the best in validation.", "--tune"),
    ] = False,
    seed: Annotated[int | None, _option(ABOUT_TRAINING, "Decides everything that is random.")] = None,
    slice_by: Annotated[
        str | None, _option(ABOUT_TRAINING, "Feature whose popularity cuts the metrics.")
    ] = None,
    distributed: Annotated[
        bool,
        _option(ABOUT_TRAINING, "On all processes that torchrun started.", "--distributed"),
    ] = False,
    tensorboard: Annotated[
        bool | None,
        _option(ABOUT_TRAINING, "Also write curves there.", "--tensorboard/--no-tensorboard"),
    ] = None,
) -> None:
    """Train a model with mixed dimensions on a prepared data set.

    Give --budget or --base-dim, and --temperature; --temperature 0 --base-dim 16 is uniform width 16.
    """
    given = {
        "data": None if data is None else str(data),
        "plan": None if plan is None else str(plan),
        **{"model": model, "biases": biases, "mean": mean, "init": init, "first_order": first_order},
        "from_baseline": from_baseline,
        **{
            name: _widths(text, name)
            for name, text in (("bottom", bottom), ("top", top), ("hidden", hidden))
        },
        **{"temperature": temperature, "base_dim": base_dim, "budget": budget},
        **{"bands": parse_bands(bands), "rounding": rounding, "min_dim": min_dim},
        **{"method": method, "bits": bits},
        **{"preset": preset, "optimizer": optimizer, "lr": lr, "table_lr": table_lr},
        "weight_decay": weight_decay,
        **{"batch_size": batch_size, "epochs": epochs, "patience": patience, "shuffle": shuffle},
        **{"evaluations_per_epoch": evaluations_per_epoch, "checkpoint_every": checkpoint_every},
        **{"seed": seed, "slice_by": slice_by, "tensorboard": tensorboard},
        "unknown_dropout": unknown_dropout,
        "distributed": distributed or None,
    }
    from mixdim.runs.config import RunConfig, config_of, read_config
    from mixdim.runs.train import train_run
    from mixdim.training import Stopped

    options = config_of(given).over(RunConfig() if config is None else read_config(config))
    if options.distributed:
        if tune:
            raise ValueError("--tune is not there with --distributed")
        _train_distributed(options, out, resume=resume, overwrite=overwrite)
        return
    tuned = None
    if tune:
        options, tuned = _tuned(options, out, resume=resume, overwrite=overwrite)
    try:
        with progress_bars(unit="samples") as progress:
            run = train_run(
                options,
                out,
                resume=resume,
                overwrite=overwrite,
                progress=progress,
                echo=typer.echo,
                tuned=tuned,
            )
    except Stopped as stopped:
        line = f"{stopped}; continue with: mixdim train --resume --out {quote(str(out))}"
        raise stopped_by(stopped.signal_name, line) from None
    typer.echo(_results(run.summary))
    typer.echo(f"next: mixdim evaluate {quote(str(out))} --data {quote(run.summary['data'])}")


def _train_distributed(options: RunConfig, out: Path, *, resume: bool, overwrite: bool) -> None:
    """Train on all processes; the first of them speaks."""
    from mixdim.runs.distributed import train_distributed
    from mixdim.training import Stopped

    speaks = os.environ.get("RANK", "0") == "0"
    told: Any = {"resume": resume, "overwrite": overwrite}
    try:
        if speaks:
            with progress_bars(unit="samples") as progress:
                summary = train_distributed(options, out, progress=progress, echo=typer.echo, **told)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the first says them
                train_distributed(options, out, **told)
            return
    except Stopped as stopped:
        if not speaks:
            raise typer.Exit(FAILED) from None
        line = f"{stopped}; go on with the same command and --resume"
        raise stopped_by(stopped.signal_name, line) from None
    typer.echo(_results(summary))
    typer.echo(f"next: mixdim evaluate {quote(str(out))} --data {quote(summary['data'])}")


def evaluate(
    run: Run,
    data: Data,
    split: Split = "test",
    weights: Weights = "best",
    slice_by: Annotated[
        str | None, typer.Option(help="Feature whose popularity cuts the metrics.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure a trained model on a split of a data set."""
    from mixdim.runs.trained import evaluate_run

    with progress_bars(unit="samples") as progress:
        found = evaluate_run(
            run, data, split=split, weights=weights, slice_by=slice_by, progress=progress
        )
    typer.echo(
        json.dumps(found, indent=2) if as_json else _metrics_table({f"{split}, {weights}": found})
    )


def _tuned(
    options: RunConfig, out: Path, *, resume: bool, overwrite: bool
) -> tuple[RunConfig, dict[str, Any]]:
    """Search for the weight decay; trials that an earlier call finished are not made again."""
    from mixdim.runs.folder import make_run_folder
    from mixdim.runs.sweeps.sweep import SweepStopped
    from mixdim.runs.sweeps.tune import tune_weight_decay

    if out.exists():
        make_run_folder(out, resume=resume, overwrite=overwrite)  # say now what would be said later
    try:
        with progress_bars(slow="runs") as progress:
            found = tune_weight_decay(options, out, progress=progress, echo=typer.echo)
    except SweepStopped as stopped:
        raise stopped_by(stopped.signal_name, f"{stopped}; the same command goes on") from None
    return found.config, found.tried


def _widths(text: str | None, name: str) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(width) for width in text.split(",") if width.strip()]
    except ValueError:
        raise ValueError(f"--{name} must be widths such as 512,256, got {text!r}") from None


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
        size = format_bytes(summary["embedding_bytes"])
        cost += f"; embeddings of {size} in {summary['bits']} bits"
    tuning = summary.get("tuning")
    searched = [] if tuning is None else [
        f"weight decay {tuning['chosen']['weight_decay']:g} was chosen of {len(tuning['tried'])} that "
        "were tried, by validation alone"
    ]  # fmt: skip
    return "\n".join([table, "", cost, *searched, *best_possible, *advice_after(summary)])


def _metrics_table(results: dict[str, dict[str, Any]]) -> str:
    """One line for each result and each of its slices, one column a metric."""
    from mixdim.training.tasks import TASKS

    metrics = {name for task in TASKS.values() for name in task.metrics}
    names = [name for name in next(iter(results.values())) if name in metrics]
    lines = [["", "rows", *names]]
    for label, result in results.items():
        lines.append([label, *_cells(result, names)])
        for slice_name, of_slice in result.get("slices", {}).items():
            lines.append([f"  {slice_name}", *_cells(of_slice, names)])
    return "\n".join(align(lines))


def _cells(metrics: dict[str, Any], names: list[str]) -> list[str]:
    values = (metrics[name] for name in names)
    return [f"{metrics['rows']:,}", *("-" if value is None else f"{value:.4f}" for value in values)]
