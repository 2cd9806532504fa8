"""The command line: reads options, calls the library, prints. Knows no mathematics."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Annotated

import typer

import mixdim
from mixdim._util.signals import Terminated
from mixdim.cli import compress as cli_compress
from mixdim.cli import data as cli_data
from mixdim.cli import lab as cli_lab
from mixdim.cli import lab_theory as cli_lab_theory
from mixdim.cli import predict as cli_predict
from mixdim.cli import prepare as cli_prepare
from mixdim.cli import report as cli_report
from mixdim.cli import serving as cli_serving
from mixdim.cli import sweep as cli_sweep
from mixdim.cli import train as cli_train
from mixdim.cli.flags import flag, option
from mixdim.cli.outcome import end_with, interruptible, warnings_as_lines
from mixdim.planning.budget import parse_bytes
from mixdim.planning.feature_file import FORMS, FeatureList, read_features
from mixdim.planning.methods import plan_by_method
from mixdim.planning.table import rule_in_words

app = typer.Typer(
    epilog="Start with: mixdim demo",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
PLAN_EXAMPLES = """Examples:

- `mixdim plan --cardinalities 6040,3706 --temperature 0.3 --budget 1MB`
- `mixdim plan --cardinalities user=60,item=37 --base-dim 32 --budget 2k`
- `mixdim plan --plan-from counts.json --bands 8 --base-dim 64 --budget 2M`
- `mixdim plan --plan-from features.csv --temperature 0.2 --budget 64MB --shards 4`
- `mixdim plan --plan-from ml-1m --bands 8 --temperature 0.4 --budget 2^15`
- `mixdim plan --plan-from ml-1m --bands octaves --min-dim 0 --temperature 0.5 --base-dim 8 --budget 9kB`
- `mixdim plan --plan-from ml-1m --method cut --base-dim 8 --budget 64kB`
- `mixdim plan --plan-from ml-1m --method mixed --bits 8 --base-dim 8 --budget 64kB`
- `mixdim plan --widths-from run --budget 2^15 --save plan.json`
"""
ROUNDING = "Of widths: power_of_two, integer or fill."
BITS = "Bits of a number when served: 1 to 6 or 8 quantize after training."


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; other than 0, a line has said what is wrong."""
    debug = False
    with warnings_as_lines(), interruptible() as interrupted:
        try:
            # Not command.main(): it would hide Ctrl-C and make any broken pipe a silent 1.
            command = typer.main.get_command(app)
            with command.make_context("mixdim", list(arguments) or ["--help"]) as context:
                debug = context.params["debug"]
                command.invoke(context)
            return 0
        except typer.Exit as end:
            return end.exit_code
        except (Exception, KeyboardInterrupt, Terminated) as error:
            is_late = interrupted() and not isinstance(error, KeyboardInterrupt)
            return end_with(KeyboardInterrupt() if is_late else error, arguments, debug=debug)


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def all_commands(
    _: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
) -> None:
    """Mixed dimension embeddings: wide vectors for popular ids, narrow ones for rare ids."""


@app.command(epilog=PLAN_EXAMPLES)
def plan(
    cardinalities: Annotated[
        str | None, typer.Option(help="Rows of each feature: 1460,583,... or user=6040,item=3706.")
    ] = None,
    plan_from: Annotated[
        Path | None, typer.Option(help=f"A prepared folder, or a file of features or counts: {FORMS}.")
    ] = None,
    widths_from: Annotated[
        Path | None,
        typer.Option(help="A trained run: widths from what its tables use, beside the power law."),
    ] = None,
    temperature: Annotated[
        float | None,
        flag("temperature", "0 gives every row one width, 1 widths in proportion to popularity."),
    ] = None,
    base_dim: Annotated[int | None, flag("base_dim")] = None,
    budget: Annotated[str | None, flag("budget")] = None,
    bands: Annotated[
        str | None,
        flag("bands", "Bands of equal popularity a feature, or octaves of counts; needs counts."),
    ] = None,
    ids_per_sample: Annotated[
        str | None, typer.Option(help="Mean ids per sample, of all features or tags=3.5,user=1.")
    ] = None,
    rounding: Annotated[str, flag("rounding", ROUNDING)] = "power_of_two",
    min_dim: Annotated[int, flag("min_dim")] = 1,
    method: Annotated[str | None, flag("method")] = None,
    bits: Annotated[int, flag("bits", BITS)] = 32,
    save: Annotated[Path | None, typer.Option(help="Write the plan to this JSON file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the widths: .png, .svg or .pdf.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    shards: Annotated[
        int | None, typer.Option(help="Also say what each of so many processes would hold.")
    ] = None,
) -> None:
    """Plan the width of every feature.

    Give two of --temperature, --base-dim and --budget; the third is solved. Given all three, --base-dim
    bounds the widths, and their scale is solved. With --widths-from, give --budget; --save keeps the
    plan from the spectrum, and `mixdim train --plan` trains it.
    """
    if widths_from is not None:
        if (
            cardinalities
            or plan_from
            or base_dim
            or ids_per_sample
            or method
            or bits != 32
            or not budget
        ):
            raise ValueError("--widths-from takes --budget, --temperature, --bands and --rounding only")
        from mixdim.runs.spectrum import plans_from_run  # it reads data with polars

        found = plans_from_run(
            widths_from,
            budget=budget,
            temperature=temperature,
            bands=option("bands").parse(bands),
            rounding=rounding,  # type: ignore[arg-type]  # checked there
        )
        if not as_json:
            typer.echo(f"{found}\n")
        drawn = {"power law": found.power_law, "spectrum": found.spectral}
        _deliver(found.spectral, save=save, plot=plot, as_json=as_json, drawn=drawn, shards=shards)
        return
    features = _features(cardinalities, plan_from)
    if method is not None:
        if temperature is not None or bands is not None or not (budget and features.counts):
            raise ValueError(
                "--method takes --plan-from with counts, --budget, --base-dim and --bits only"
            )
        _deliver(
            plan_by_method(method, features, parse_bytes(budget), base_dim=base_dim, bits=bits),
            save=save,
            plot=plot,
            as_json=as_json,
            shards=shards,
        )
        return
    answer = mixdim.plan(
        features.rows,
        temperature=temperature,
        base_dim=base_dim,
        budget=budget,
        counts=features.counts or None,
        bands=option("bands").parse(bands) or 1,
        ids_per_sample=_ids_per_sample(ids_per_sample) or features.ids_per_sample or None,
        rounding=rounding,  # type: ignore[arg-type]  # plan() checks it and lists the choices
        min_dim=min_dim,
    )
    _deliver(answer.quantized(bits), save=save, plot=plot, as_json=as_json, shards=shards)


@app.command(epilog="Example: `mixdim show plan.json --plot widths.svg`")
def show(
    file: Annotated[Path, typer.Argument(help="A plan that `mixdim plan --save` wrote.")],
    plot: Annotated[Path | None, typer.Option(help="Draw the widths: .png, .svg or .pdf.")] = None,
) -> None:
    """Print a saved plan."""
    _deliver(mixdim.Plan.load(file), save=None, plot=plot, as_json=False)


app.add_typer(cli_prepare.prepare_app, name="prepare")
app.command(epilog="Example: `mixdim demo --out demo`")(cli_lab.demo)
app.command(epilog=cli_lab.GENERATE_EXAMPLES)(cli_lab.generate)
app.command(epilog="Example: `mixdim download movielens-1m --out raw`")(cli_data.download)
app.command(epilog="Example: `mixdim inspect ml-1m --plot popularity.png`")(cli_data.inspect)


app.command(epilog=cli_train.TRAIN_EXAMPLES)(cli_train.train)
app.command(epilog="Example: `mixdim evaluate run --data ml-1m --split test --json`")(cli_train.evaluate)
app.command(epilog=cli_predict.PREDICT_EXAMPLES)(cli_predict.predict)
app.command(epilog=cli_compress.COMPRESS_EXAMPLES)(cli_compress.compress)
app.command(epilog=cli_serving.EXPORT_EXAMPLES)(cli_serving.export)
app.command("bench-serving", epilog=cli_serving.BENCH_EXAMPLES)(cli_serving.bench_serving)
app.command(epilog=cli_sweep.SWEEP_EXAMPLES)(cli_sweep.sweep)
app.command(epilog=cli_sweep.RECOMMEND_EXAMPLES)(cli_sweep.recommend)
app.command(epilog=cli_lab.REPRODUCE_EXAMPLES)(cli_lab.reproduce)
app.command(epilog=cli_report.REPORT_EXAMPLES)(cli_report.report)
app.add_typer(cli_lab_theory.theory_app, name="theory")


@app.command(epilog="Example: `mixdim doctor`, or `MIXDIM_KERNELS=off mixdim doctor`")
def doctor() -> None:
    """Say what this installation runs on, and whether the fast kernels are in use."""
    import torch

    from mixdim import kernels
    from mixdim.kernels.forms import forced as forced_form

    facts = {
        "mixdim": mixdim.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads",
        "kernels": kernels.status(),
        "interaction": forced_form()
        or "fused or split, by plan and batch size: "
        "FeatureEmbeddings.interaction_form(batch_size) says which",
    }
    width = max(len(name) for name in facts)
    for name, fact in facts.items():
        typer.echo(f"{name:{width}}  {fact}")


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(mixdim.__version__)


def _features(cardinalities: str | None, plan_from: Path | None) -> FeatureList:
    if (cardinalities is None) == (plan_from is None):
        raise ValueError("give either --cardinalities or --plan-from, or --widths-from")
    if plan_from is not None and plan_from.is_dir():
        from mixdim.data import Dataset  # it reads counts with polars, which is an extra

        dataset = Dataset(plan_from)
        return FeatureList(dataset.cardinalities, dataset.counts, dataset.ids_per_sample)
    if plan_from is not None:
        return read_features(plan_from)
    assert cardinalities is not None
    entries = [entry.strip() for entry in cardinalities.split(",")]
    named = [entry.split("=", 1) if "=" in entry else [str(i), entry] for i, entry in enumerate(entries)]
    try:
        rows = {name.strip(): int(text) for name, text in named}
    except ValueError:
        raise ValueError(
            f"--cardinalities must be whole numbers such as 1460,583 or user=6040, got {cardinalities!r}"
        ) from None
    if "" in rows:
        raise ValueError(f"--cardinalities has a feature without a name: {cardinalities!r}")
    if len(rows) < len(named):
        raise ValueError(f"--cardinalities names a feature twice: {cardinalities!r}")
    return FeatureList(rows, {}, {})


def _ids_per_sample(text: str | None) -> dict[str, float] | float | None:
    if text is None:
        return None
    try:
        if "=" not in text:
            return float(text)
        return {name.strip(): float(z) for name, z in (entry.split("=", 1) for entry in text.split(","))}
    except ValueError:
        raise ValueError(f"--ids-per-sample must be a number or tags=3.5,user=1, got {text!r}") from None


def _deliver(
    answer: mixdim.Plan,
    *,
    save: Path | None,
    plot: Path | None,
    as_json: bool,
    drawn: dict[str, mixdim.Plan] | None = None,
    shards: int | None = None,
) -> None:
    by_rank = None
    if shards is not None:
        from mixdim.distributed.placement import bytes_by_rank, rank_table

        by_rank = rank_table(bytes_by_rank(answer, shards))
    if by_rank is not None and as_json:
        raise ValueError("give --shards or --json, not both: a plan does not say who holds it")
    if save is not None:
        answer.save(save)
    if plot is not None:
        from mixdim.runs.figures.plots import (  # matplotlib is an extra
            save_figure,
            widths_figure,
        )

        plans = drawn or {rule_in_words(answer.provenance): answer}
        save_figure(widths_figure(plans), plot)
    typer.echo(answer.to_json() if as_json else str(answer), nl=not as_json)
    if by_rank is not None:
        typer.echo(f"\n{by_rank}")
