"""A run that was trained: its model with the weights it learned, to measure and to predict with.

Knows nothing about how it was trained.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import nn

from mixdim.data import Dataset
from mixdim.experiments.runs.config import RunConfig, read_config
from mixdim.experiments.runs.folder import CONFIG, PLAN, SUMMARY
from mixdim.experiments.runs.models import build_model
from mixdim.experiments.runs.rounded import rounded
from mixdim.experiments.runs.summary import read_summary
from mixdim.files import write_atomically
from mixdim.planning.plan import Plan
from mixdim.training import Checkpoints, evaluate, load_weights
from mixdim.training.checkpoints import CheckpointError
from mixdim.training.evaluation import Progress, outputs_of
from mixdim.training.tasks import task_of

WEIGHTS = ("best", "last")


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """A run that came to its end: its summary, the curve of its validations, and its model.

    The model holds the best weights; that of a run which was finished before is read when asked for.
    """

    summary: dict[str, Any]
    curve: tuple[dict[str, Any], ...]
    make_model: Callable[[], nn.Module]

    @cached_property
    def model(self) -> nn.Module:
        """The model with the weights that were best in validation."""
        return self.make_model()


@dataclass(frozen=True, eq=False)
class OpenedRun:
    """A run read back, finished or not: its config, and its model with the best or the last weights."""

    config: RunConfig
    plan: Plan
    model: nn.Module
    step: int


def open_run(path: Path, *, num_dense: int, weights: str = "best") -> OpenedRun:
    """Read a run's model back with its "best" or "last" weights, rounded if the run says so."""
    if weights not in WEIGHTS:
        raise ValueError(f"weights must be {' or '.join(WEIGHTS)}, got {weights!r}")
    for name in (CONFIG, PLAN):
        if not (path / name).is_file():
            raise FileNotFoundError(f"{path} is not a run: it has no {name}")
    config = read_config(path / CONFIG)
    plan = Plan.load(path / PLAN)
    model = build_model(config, plan, num_dense=num_dense, mean=0.0)  # the mean comes with the weights
    checkpoints = Checkpoints(path / "checkpoint")
    newest = checkpoints.newest()
    if weights == "best":
        best = None if newest is None else newest.state["best"]
        chosen = checkpoints.best(None if best is None else best["step"])
    elif newest is None:
        raise CheckpointError(f"{path} has no checkpoint yet")
    else:
        chosen = newest
    load_weights(model, chosen)
    return OpenedRun(config, plan, rounded(model, config.quantise), chosen.step)


def evaluate_run(
    path: Path,
    data: Path,
    *,
    split: str = "test",
    weights: str = "best",
    slice_by: str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure a run's model on a split of a data set."""
    dataset = Dataset(data)
    run = open_for(path, dataset, weights)
    assert run.config.batch_size is not None
    metrics = evaluate(
        run.model,
        dataset,
        split,
        batch_size=run.config.batch_size,
        slice_by=slice_by or run.config.slice_by,
        progress=progress,
    )
    return {"run": str(path), "weights": weights, "step": run.step, "split": split, **metrics}


def predict_run(
    path: Path,
    data: Path,
    out: Path,
    *,
    split: str = "test",
    weights: str = "best",
    progress: Progress | None = None,
) -> int:
    """Write what a run's model says of each row of a split as Parquet; returns the number of rows.

    Columns: `row` in the prepared folder, `prediction` (a probability if targets are clicks, otherwise a
    rating) and `target`.
    """
    dataset = Dataset(data)
    run = open_for(path, dataset, weights)
    assert run.config.batch_size is not None
    found = outputs_of(run.model, dataset, split, batch_size=run.config.batch_size, progress=progress)
    predictions = task_of(dataset.task).prediction(torch.from_numpy(found.outputs))
    start, stop = dataset.splits[split]
    table = pl.DataFrame({
        "row": np.arange(start, stop),
        "prediction": predictions.numpy(),
        "target": found.targets,
    })  # fmt: skip
    written = io.BytesIO()
    table.write_parquet(written)
    write_atomically(out, written.getvalue())
    return len(table)


def open_for(path: Path, dataset: Dataset, weights: str = "best") -> OpenedRun:
    """Open a run, having checked that the data's ids mean what the run learned."""
    run = open_run(path, num_dense=dataset.num_dense, weights=weights)
    check_features(run.plan, dataset, str(path))
    if (path / SUMMARY).is_file():
        learned = read_summary(path).get("vocabulary_fingerprint")
        if learned != dataset.vocabulary_fingerprint:
            raise ValueError(
                f"the ids of {dataset.path} come from another vocabulary than those {path} was trained "
                "with, so they mean other values"
            )
    return run


def check_features(plan: Plan, dataset: Dataset, owner: str) -> None:
    """Refuse data whose features are not those of a plan."""
    check_rows({feature.name: feature.rows for feature in plan.features}, dataset, owner)


def check_rows(planned: Mapping[str, int], dataset: Dataset, owner: str) -> None:
    """Refuse data whose features, or their rows, are others than those planned."""
    found = dataset.cardinalities
    if list(planned.items()) == list(found.items()):
        return
    different = [name for name in (*planned, *found) if planned.get(name) != found.get(name)]
    how = (
        f"{different[0]!r} has {found.get(different[0], 'no')} rows instead of "
        f"{planned.get(different[0], 'none')}"
        if different
        else "their order differs"
    )
    raise ValueError(f"{dataset.path} has other features than {owner}: {how}")
