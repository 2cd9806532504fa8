"""The demo: everything once, small: plan, generate, inspect, train uniform and mixed, compare, report.

Its data is synthetic: it shows how mixdim is used, and is no evidence about Criteo or MovieLens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from mixdim._util.files import make_folder
from mixdim._util.text import align
from mixdim.data import Dataset
from mixdim.data.inspect import inspect
from mixdim.lab.paper.captions import listed
from mixdim.lab.synthetic.generate import generate_criteo_like, generate_movielens_like
from mixdim.lab.synthetic.planted import CRITEO_KAGGLE_ROWS
from mixdim.planning.budget import BYTES_PER_PARAMETER, format_bytes
from mixdim.planning.from_counts import plan
from mixdim.planning.plan import Plan
from mixdim.runs.config import RunConfig
from mixdim.runs.figures.frontier import frontier_figure
from mixdim.runs.figures.plots import save_figure, widths_figure
from mixdim.runs.plans import plan_of
from mixdim.runs.report.findings import Finding
from mixdim.runs.report.page import write_report
from mixdim.runs.sweeps.measure import SolvedRun, known_baselines, train_and_measure
from mixdim.runs.sweeps.objective import best_possible, common_task, objective_of
from mixdim.runs.sweeps.records import Record, append_record
from mixdim.training import Stopped
from mixdim.training.baselines import Baselines

TEMPERATURES = (0.0, 0.2, 0.3, 0.4)  # of the plans for Criteo Kaggle
UNIFORM_DIM = 2  # the budget of the paper's Fig. 2a: as much as uniform width 2
RIVAL_DIM = 32  # the uniform width whose quality the paper matches within that budget
SYNTHETIC = "Synthetic data, one seed"
LARGE = 10_000  # rows of a feature that is printed; the picture has all
NEAR_BEST = 0.01  # a smaller model is recommended that is so near the best

Echo = Callable[[str], None]
Bars = Callable[[], AbstractContextManager[Callable[..., None]]]  # shows stage, done, total and a note


class DemoStopped(Exception):  # noqa: N818  # nothing went wrong
    """A signal stopped the demo; nothing of it is worth resuming."""

    def __init__(self, signal_name: str) -> None:
        self.signal_name = signal_name
        super().__init__(f"stopped by {signal_name}; the same command begins anew")


@dataclass(frozen=True)
class DemoSet:
    """A data set to generate, and what to train on it: each temperature within each budget.

    The budgets are what uniform widths of `uniform_dims` cost, so that uniform can spend them wholly.
    """

    name: str  # as `mixdim generate` calls it
    rows: int
    scale: float  # cardinalities, as a share of the real ones
    config: RunConfig
    uniform_dims: tuple[int, ...] = (4, 8, 16)  # with less, most rows sit at width 1 anyway
    temperatures: tuple[float, ...] = (0.0, 0.3)


# Few epochs, for the demo to take minutes; all else is chosen from the data, as for any run.
DEMO_SETS = (
    DemoSet(
        "criteo-like",
        rows=700_000,
        scale=0.002,
        config=RunConfig(model="dlrm", epochs=1),
    ),
    DemoSet("movielens-like", rows=400_000, scale=0.01, config=RunConfig(model="mf", epochs=14)),
)
MAKERS = {"criteo-like": generate_criteo_like, "movielens-like": generate_movielens_like}

OWN_DATA = """The same with your own data; `mixdim train --help` has more:

  mixdim prepare table clicks.csv --out clicks --target click --categorical site,user --dense age
  mixdim inspect clicks --plot popularity.png
  mixdim plan --plan-from clicks --temperature 0.3 --budget 2M
  mixdim train --data clicks --model dlrm --temperature 0.3 --budget 2M --out mixed
  mixdim train --data clicks --model dlrm --temperature 0 --budget 2M --out uniform
  mixdim evaluate mixed --data clicks

  mixdim download movielens-1m --out raw
  mixdim prepare movielens raw/ml-1m.zip --out ml-1m
  mixdim train --data ml-1m --model mf --temperature 0.3 --budget 2^15 --out ml-1m-mixed"""


def run_demo(
    out: Path, *, echo: Echo, progress: Bars, demo_sets: Sequence[DemoSet] = DEMO_SETS
) -> list[dict[str, Any]]:
    """Run the demo in the folder `out`, replacing what an earlier one left; returns the summaries."""
    make_folder(out)
    (out / "records.jsonl").unlink(missing_ok=True)
    echo("== Plan: the widths of Criteo Kaggle's features ==\n")
    widths = _plan_criteo(out, echo)
    records = {demo_set.name: _train_on(demo_set, out, echo, progress) for demo_set in demo_sets}
    runs = {name: [r.summary for r in own if r.summary] for name, own in records.items()}
    echo("\n== Results: the test split, with the weights that were best in validation ==\n")
    for demo_set in demo_sets:
        of_set = runs[demo_set.name]
        echo(f"{demo_set.name}, {demo_set.config.model}:\n{results_table(of_set)}")
        echo(f"{mixed_against_uniform(of_set)}\n{beside_results(of_set)}\n")
    echo("This is synthetic data, one seed and small MLPs: it shows how mixdim works, and is no")
    echo("evidence about real data. The best possible loss is that of someone who knows the truth.")
    pictures = _save(frontier_figure(runs, f"{SYNTHETIC}: loss against parameters"), out, "frontier")
    echo(f"Loss against parameters: {_listed(pictures)}\n")
    echo(f"{OWN_DATA}\n")
    frontier = Finding(
        "frontier",
        "Uniform and mixed within equal budgets",
        "Mixed dimensions have lower loss at each budget.",
        listed("By data", (f"{name}: {mixed_against_uniform(run)}" for name, run in runs.items())),
        pictures,
        f"{SYNTHETIC}, small MLPs: no evidence about real data.",
    )
    report = out / "report.html"
    everything = [record for own in records.values() for record in own]
    write_report(everything, report, [widths, frontier], title="The demo of mixdim")
    echo(f"All of it on one page, for your browser: {report}")
    return [run for of_set in runs.values() for run in of_set]


def _plan_criteo(out: Path, echo: Echo) -> Finding:
    """Plan at several temperatures within one budget, print the widths, draw them (Fig. 6)."""
    rows = sum(CRITEO_KAGGLE_ROWS.values())
    budget = UNIFORM_DIM * rows
    size = format_bytes(BYTES_PER_PARAMETER * budget)
    echo(f"The 26 categorical features of Criteo Kaggle have {rows:,} rows.")
    echo(f"The budget, that of uniform width {UNIFORM_DIM}, is {budget:,} parameters or {size}.")
    echo("For each temperature, the largest base_dim that fits, and the width of each large feature:\n")
    plans = {t: plan(CRITEO_KAGGLE_ROWS, temperature=t, budget=budget) for t in TEMPERATURES}
    echo(_comparison(plans))
    title = f"Criteo Kaggle within the budget of uniform width {UNIFORM_DIM} (the paper's Fig. 6)"
    figure = widths_figure({f"temperature {t:g}": p for t, p in plans.items()}, title=title)
    pictures = _save(figure, out, "fig6")
    echo(f"\nAll features (the paper's Fig. 6): {_listed(pictures)}")
    base_dims = (f"temperature {t:g}: base_dim {p.base_dim}" for t, p in plans.items())
    return Finding(
        "fig6",
        title,
        "Higher temperatures give popular embeddings more dimensions; 0 is uniform.",
        listed("The largest base_dim that fits", base_dims),
        pictures,
        f"{rows:,} rows in 26 features; popularity is one over a feature's rows.",
    )


def _comparison(plans: Mapping[float, Plan]) -> str:
    """One line a large feature, one column a temperature."""
    first = next(iter(plans.values()))
    large = [number for number, feature in enumerate(first.features) if feature.rows >= LARGE]
    lines = [["feature", "rows", *(f"temp {t:g}" for t in plans)]]
    for number in sorted(large, key=lambda i: first.features[i].rows):
        feature = first.features[number]
        widths = [str(p.features[number].blocks[0].dim) for p in plans.values()]
        lines.append([feature.name, f"{feature.rows:,}", *widths])
    shares = [f"1/{p.compression(uniform_dim=RIVAL_DIM):.1f}" for p in plans.values()]
    lines += [
        ["base_dim", "", *(str(p.base_dim) for p in plans.values())],
        ["parameters", "", *(f"{p.num_parameters / 1e6:.1f}M" for p in plans.values())],
        [f"of uniform {RIVAL_DIM}", "", *shares],
    ]
    return "\n".join(align(lines))


def _train_on(demo_set: DemoSet, out: Path, echo: Echo, progress: Bars) -> list[Record]:
    """Generate, inspect, plan, and train every config."""
    folder = out / "data" / demo_set.name
    echo(f"\n== {demo_set.name}: synthetic data with a planted truth, and {demo_set.config.model} ==\n")
    command = f"mixdim generate {demo_set.name} --rows {demo_set.rows} --scale {demo_set.scale:g}"
    echo(f"$ {command} --out {folder}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with progress() as show:
        MAKERS[demo_set.name](
            folder, rows=demo_set.rows, scale=demo_set.scale, overwrite=True, progress=show
        )
    dataset = Dataset(folder)
    echo(f"\n$ mixdim inspect {folder}\n{_glance(folder)}")
    configs = [
        replace(demo_set.config, data=str(folder), temperature=temperature, budget=str(budget))
        for budget in (dim * sum(dataset.cardinalities.values()) for dim in demo_set.uniform_dims)
        for temperature in demo_set.temperatures
    ]
    echo("\nWithin each budget, uniform (temperature 0) and mixed, each in a run folder of its own:\n")
    echo(_plans_table(configs, dataset) + "\n")
    records: list[Record] = []
    with progress() as show:
        for config in configs:
            folder_of_run = _run_folder(config, demo_set, out)
            records.append(_run(config, folder_of_run, dataset, show, known_baselines(records)))
            append_record(out / "records.jsonl", records[-1])
    last = _run_folder(configs[-1], demo_set, out)
    echo(f"\nTo repeat the last one: mixdim train --config {last / 'config.toml'} --out again")
    return records


def _run(
    config: RunConfig,
    folder: Path,
    dataset: Dataset,
    show: Callable[..., None],
    baselines: dict[str, Baselines],
) -> Record:
    """One run, with one bar: of its training steps, since measuring takes moments."""
    name = f"temp {config.temperature:g}, {int(config.budget or 0):,}"
    start, stop = dataset.splits["train"]

    def show_training(stage: str, done: int, total: int, note: str) -> None:
        if stage == "training":
            show(name, done, total, note)

    resolved = config.resolved(dataset)
    key = resolved.key(dataset.fingerprint)
    solved = SolvedRun(resolved, key, known_baselines=baselines)
    try:
        record = train_and_measure(solved, folder, overwrite=True, progress=show_training)
    except Stopped as stopped:
        raise DemoStopped(stopped.signal_name) from None
    summary = record.summary
    assert summary is not None
    objective = objective_of([summary])
    samples = summary["epochs_run"] * (stop - start)  # fewer than planned, if it stopped early
    show(name, samples, samples, f"test {objective} {summary['test']['best'][objective]:.4f}")
    return record


def _run_folder(config: RunConfig, demo_set: DemoSet, out: Path) -> Path:
    name = f"{demo_set.name}-temperature-{config.temperature:g}-budget-{config.budget}"
    return out / "runs" / name


def _glance(folder: Path) -> str:
    """The few facts of an inspection that say whether widths should differ."""
    found = inspect(folder)
    largest = max(found.features, key=lambda feature: feature.rows)
    splits = ", ".join(f"{split.name} {split.rows:,}" for split in found.splits)
    return (
        f"samples: {splits}; {len(found.features)} features with "
        f"{sum(feature.rows for feature in found.features):,} rows in all\n"
        f"popularity: of {largest.name}'s {largest.rows:,} rows, the top 1% have "
        f"{largest.top_1_percent:.1%} of the queries, the top 10% {largest.top_10_percent:.1%}"
    )


def _plans_table(configs: Sequence[RunConfig], dataset: Dataset) -> str:
    lines = [["budget", "temperature", "base_dim", "widths", "parameters"]]
    for config in configs:
        answer = plan_of(config.resolved(dataset), dataset)
        widths = [block.dim for block in answer.blocks]
        lines.append([
            f"{int(config.budget or 0):,}",
            f"{answer.temperature:g}",
            str(answer.base_dim),
            f"{min(widths)} to {max(widths)}",
            f"{answer.num_parameters:,}",
        ])  # fmt: skip
    return "\n".join(align(lines))


def results_table(runs: Sequence[Mapping[str, Any]]) -> str:
    """One line a run on the same data; "above best" is its loss minus the best possible one."""
    task = common_task(runs)
    metrics = [task.objective, *task.curve_metrics]
    lines = [
        ["temperature", "base_dim", "in embeddings", "parameters", *metrics, "above best", "seconds"]
    ]
    for run in runs:
        found, bound = run["test"]["best"], best_possible(run)
        lines.append([
            f"{run['temperature']:g}",
            str(run["base_dim"]),
            f"{run['embedding_parameters']:,}",
            f"{run['num_parameters']:,}",
            *(f"{found[metric]:.4f}" for metric in metrics),
            "-" if bound is None else f"{found[task.objective] - bound:.4f}",
            f"{run['seconds']:.1f}",
        ])  # fmt: skip
    return "\n".join(align(lines))


def mixed_against_uniform(runs: Sequence[Mapping[str, Any]]) -> str:
    """The loss of each mixed run minus that of the uniform run of its budget, whatever the sign."""
    objective = objective_of(runs)
    uniform = {run["budget"]: run["test"]["best"][objective] for run in runs if run["temperature"] == 0}
    differences = [
        f"{run['test']['best'][objective] - uniform[run['budget']]:+.4f} within {run['budget']:,}"
        for run in runs
        if run["temperature"] != 0
    ]
    return f"mixed minus uniform, test {objective}: {', '.join(differences)}"


def beside_results(runs: Sequence[Mapping[str, Any]]) -> str:
    """What baselines reach on the same split, what training never saw, and which run to take."""
    objective, unknown = objective_of(runs), runs[0].get("unknown_lookups") or {}
    losses = {name: found["test"][objective] for name, found in runs[0]["baselines"].items()}
    baselines = ", ".join(f"{name} {loss:.4f}" for name, loss in losses.items())
    shares = {name: found["test"] for name, found in unknown.items()}
    most = max(shares, key=lambda name: shares[name], default=None)
    seen = "none" if most is None else f"at most {shares[most]:.2%}, in {most}"
    best = min(run["validation"]["best"][objective] for run in runs)
    near = [run for run in runs if run["validation"]["best"][objective] <= best * (1 + NEAR_BEST)]
    taken = min(near, key=lambda run: run["embedding_parameters"])
    return (
        f"baselines, test {objective}: {baselines}\n"
        f"unknown values, share of a feature's lookups in test: {seen}\n"
        f"recommended, the fewest in embeddings within {NEAR_BEST:.0%} of the best in validation: "
        f"temperature {taken['temperature']:g}, base_dim {taken['base_dim']}"
    )


def _save(figure: Figure, out: Path, name: str) -> tuple[Path, ...]:
    """Write a picture as png and svg; returns where."""
    pictures = (out / f"{name}.png", out / f"{name}.svg")
    for picture in pictures:
        save_figure(figure, picture)
    return pictures


def _listed(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths))
