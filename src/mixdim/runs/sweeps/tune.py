"""A small search for a run's weight decay, by validation alone. Draws nothing, and reads no test loss.

Every trial is a run of a sweep, of a quarter of the epochs, recorded beside the run's folder: what is
finished there is not made again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mixdim.data import Dataset
from mixdim.runs.config import RunConfig
from mixdim.runs.sweeps.records import Record
from mixdim.runs.sweeps.sweep import RunRequest, run_sweep
from mixdim.tasks import task_of
from mixdim.training.evaluation import Progress

WEIGHT_DECAYS = (0.0, 0.1, 0.3, 0.6, 1.0)
SHARE_OF_EPOCHS = 4  # a trial has one in so many, at least one

Echo = Callable[[str], None]


@dataclass(frozen=True)
class Tuned:
    """The options with the weight decay that was best in validation, and what was tried."""

    config: RunConfig
    tried: dict[str, Any]  # as it stands in summary.json


def trials_of(out: Path) -> Path:
    """Where the trials of a run are recorded: beside its folder."""
    return out.resolve().with_name(f"{out.resolve().name}-tuning.jsonl")


def tune_weight_decay(
    given: RunConfig,
    out: Path,
    *,
    weight_decays: Sequence[float] = WEIGHT_DECAYS,
    progress: Progress | None = None,
    echo: Echo = lambda line: None,
    sweep: Callable[..., list[Record]] = run_sweep,
) -> Tuned:
    """Try weight decays for the run that `out` shall hold, and choose the best in validation."""
    if given.weight_decay is not None:
        raise ValueError("give --tune or --weight-decay, not both: tuning chooses the weight decay")
    if given.data is None:
        raise ValueError("data is missing: give --data")
    dataset = Dataset(given.data)
    config, task = given.resolved(dataset), task_of(dataset.task)
    assert config.epochs is not None
    start, stop = dataset.splits["validation"]
    if start == stop:
        raise ValueError(f"--tune chooses by validation, and {dataset.path} has no rows for that")
    epochs = max(1, config.epochs // SHARE_OF_EPOCHS)
    short = replace(config, epochs=epochs, ranking_users=0)  # validation alone decides
    trials = [replace(short, weight_decay=decay) for decay in weight_decays]
    records = trials_of(out)
    listed = ", ".join(f"{decay:g}" for decay in weight_decays)
    echo(f"tuning: {len(trials)} runs of at most {epochs} epochs, weight decay {listed}: {records}")
    found = sweep([RunRequest(trial) for trial in trials], records, progress=progress)
    losses = {}
    for record in found:
        decay = record.config["weight_decay"]
        if record.summary is None:
            echo(f"  weight decay {decay:g}: failed: {record.error}")
            continue
        losses[decay] = record.summary["validation"]["best"][task.objective]
        echo(f"  weight decay {decay:g}: validation {task.objective} {losses[decay]:.4f}")
    if not losses:
        raise ValueError(f"no run of the tuning came to its end: {found[0].error}")
    chosen = min(losses, key=lambda decay: losses[decay])
    echo(f"chosen: weight decay {chosen:g}, the best in validation of {len(losses)} that were tried")
    tried = [
        {"weight_decay": decay, "validation": {task.objective: losses.get(decay)}}
        for decay in weight_decays
    ]
    return Tuned(
        replace(given, weight_decay=chosen),
        {"chosen": {"weight_decay": chosen}, "epochs": epochs, "tried": tried},
    )
