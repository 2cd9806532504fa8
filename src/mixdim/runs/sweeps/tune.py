"""A small search for what holds a run back, its penalty or weight decay, by validation alone.

Every trial is a run of a sweep, of a quarter of the epochs, recorded beside the run's folder: what is
finished there is not made again. No test loss is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mixdim.data import Dataset
from mixdim.runs.config import RunConfig
from mixdim.runs.sweeps.records import Record
from mixdim.runs.sweeps.sweep import RunRequest, run_sweep
from mixdim.tasks import task_of
from mixdim.training.evaluation import Progress

# Of a run that has a penalty it is tuned, of another the weight decay.
TRIED: Mapping[str, Sequence[float]] = {
    "penalty": (0.65, 0.9, 1.3, 1.8, 2.6),
    "weight_decay": (0.0, 0.1, 0.3, 0.6, 1.0),
}
SHARE_OF_EPOCHS = 4  # a trial has one in so many, at least one

Echo = Callable[[str], None]


@dataclass(frozen=True)
class Tuned:
    """The options with the value that was best in validation, and what was tried."""

    config: RunConfig
    tried: dict[str, Any]  # as it stands in summary.json


def trials_of(out: Path) -> Path:
    """Where the trials of a run are recorded: beside its folder."""
    return out.resolve().with_name(f"{out.resolve().name}-tuning.jsonl")


def tune(
    given: RunConfig,
    out: Path,
    *,
    tried: Mapping[str, Sequence[float]] = TRIED,
    progress: Progress | None = None,
    echo: Echo = lambda line: None,
    sweep: Callable[..., list[Record]] = run_sweep,
) -> Tuned:
    """Try penalties or weight decays for the run that `out` shall hold; choose by validation."""
    if given.data is None:
        raise ValueError("data is missing: give --data")
    dataset = Dataset(given.data)
    config, task = given.resolved(dataset), task_of(dataset.task)
    option = "penalty" if config.penalty else "weight_decay"
    if getattr(given, option) is not None:
        flag, words = option.replace("_", "-"), option.replace("_", " ")
        raise ValueError(f"give --tune or --{flag}, not both: tuning chooses the {words}")
    assert config.epochs is not None
    start, stop = dataset.splits["validation"]
    if start == stop:
        raise ValueError(f"--tune chooses by validation, and {dataset.path} has no rows for that")
    words, values = option.replace("_", " "), tried[option]
    epochs = max(1, config.epochs // SHARE_OF_EPOCHS)
    short = replace(config, epochs=epochs, ranking_users=0)  # validation alone decides
    trials = [_with(short, option, value) for value in values]
    records = trials_of(out)
    listed = ", ".join(f"{value:g}" for value in values)
    echo(f"tuning: {len(trials)} runs of at most {epochs} epochs, {words} {listed}: {records}")
    found = sweep([RunRequest(trial) for trial in trials], records, progress=progress)
    losses = {}
    for record in found:
        value = record.config[option]
        if record.summary is None:
            echo(f"  {words} {value:g}: failed: {record.error}")
            continue
        losses[value] = record.summary["validation"]["best"][task.objective]
        echo(f"  {words} {value:g}: validation {task.objective} {losses[value]:.4f}")
    if not losses:
        raise ValueError(f"no run of the tuning came to its end: {found[0].error}")
    chosen = min(losses, key=lambda value: losses[value])
    echo(f"chosen: {words} {chosen:g}, the best in validation of {len(losses)} that were tried")
    of_values = [{option: value, "validation": {task.objective: losses.get(value)}} for value in values]
    return Tuned(
        _with(given, option, chosen),
        {"chosen": {option: chosen}, "epochs": epochs, "tried": of_values},
    )


def _with(config: RunConfig, option: str, value: float) -> RunConfig:
    """A config with another value of an option."""
    return RunConfig.of(**{option: value}).merged_with(config)
