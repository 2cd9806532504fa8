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

from mixdim._util.files import write_atomically
from mixdim.data import Dataset
from mixdim.data.prediction_rows import opened_raw
from mixdim.data.unknown_values import unknown_report
from mixdim.models import Model
from mixdim.planning.plan import Plan
from mixdim.runs.config import RunConfig, read_config
from mixdim.runs.embeddings import served
from mixdim.runs.folder import CONFIG, PLAN, SUMMARY
from mixdim.runs.models import build_model
from mixdim.runs.summary import read_summary
from mixdim.tasks import task_of
from mixdim.training import Checkpoints, evaluate, load_weights
from mixdim.training.checkpoint import CheckpointError
from mixdim.training.evaluation import Progress, outputs_of

WEIGHTS = ("best", "last")


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """A run that came to its end: its summary, the curve of its validations, and its model.

    The model holds the best weights; that of a run which was finished before is read when asked for.
    """

    summary: dict[str, Any]
    curve: tuple[dict[str, Any], ...]
    make_model: Callable[[], Model]

    @cached_property
    def model(self) -> Model:
        """The model with the weights that were best in validation."""
        return self.make_model()


@dataclass(frozen=True, eq=False)
class OpenedRun:
    """A run read back, finished or not: its config, the plan that it serves, and its model.

    The model has the best or the last weights.
    """

    config: RunConfig
    plan: Plan
    model: Model
    step: int


def open_run(
    path: Path, *, num_dense: int, weights: str = "best", as_trained: bool = False
) -> OpenedRun:
    """Read a run's model back with its "best" or "last" weights, as its plan serves it.

    With `as_trained`, embeddings are not quantized, whatever the plan says.
    """
    if weights not in WEIGHTS:
        raise ValueError(f"weights must be {' or '.join(WEIGHTS)}, got {weights!r}")
    _check_run(path)
    config = read_config(path / CONFIG)
    plan = Plan.load(path / PLAN)
    model = build_model(
        config, plan.trainable(), num_dense=num_dense, mean=0.0
    )  # mean: with the weights
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
    return OpenedRun(config, plan, model if as_trained else served(model, plan), chosen.step)


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
    start, stop = _rows_of(dataset, split)
    table = _predictions(path, dataset, split, np.arange(start, stop), weights, progress)
    _write(table, out)
    return len(table)


@dataclass(frozen=True)
class RawPredictions:
    """How many rows of a raw file were predicted, by which folder's ids, and what to know of them."""

    rows: int
    data: Path
    notes: tuple[str, ...]


def predict_raw(
    path: Path,
    raw: Path,
    out: Path,
    *,
    data: Path | None = None,
    weights: str = "best",
    max_bad: int = 0,
    encoding: str | None = None,
    separator: str | None = None,
    progress: Callable[..., None] | None = None,  # of reading, whose end is not known, and predicting
) -> RawPredictions:
    """Write what a run's model says of each row of a raw file as Parquet.

    The file is as those that `data` was prepared from, by default the folder that the run was trained
    with; it may lack the target, and a table may have another `encoding` or `separator`. Columns: `row`
    of the file, counted from 0 without its header, `prediction` and, if the file has a target, `target`,
    null where it is not known.
    """
    _check_run(path)
    folder = data or Path(read_config(path / CONFIG).data or "")
    if not folder.is_dir():
        raise FileNotFoundError(
            f"the data that {path} was trained with is not at {folder}: say where with --data"
        )
    open_for(path, Dataset(folder), weights)  # before the file is read, which may take long
    with opened_raw(
        raw, folder, max_bad=max_bad, encoding=encoding, separator=separator, progress=progress
    ) as rows:
        table = _predictions(path, rows.dataset, "test", rows.places, weights, progress)
        notes = _notes(rows.dataset)
    target = pl.col("target").fill_nan(None)
    _write(table.with_columns(target) if rows.has_target else table.drop("target"), out)
    return RawPredictions(len(table), folder, notes)


def _notes(dataset: Dataset) -> tuple[str, ...]:
    rejected = dataset.meta.rows["rejected"]
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in rejected.items())
    return (
        *([f"skipped malformed rows: {reasons}"] if rejected else []),
        *unknown_report(dataset.path, dataset.meta),
    )


def _rows_of(dataset: Dataset, split: str) -> tuple[int, int]:
    if split not in dataset.splits:
        raise ValueError(f"split must be one of {', '.join(dataset.splits)}, got {split!r}")
    return dataset.splits[split]


def _predictions(
    path: Path,
    dataset: Dataset,
    split: str,
    rows: np.ndarray,
    weights: str,
    progress: Progress | None,
) -> pl.DataFrame:
    """What a run's model says of the rows of a split, which go by the numbers given."""
    run = open_for(path, dataset, weights)
    assert run.config.batch_size is not None
    found = outputs_of(run.model, dataset, split, batch_size=run.config.batch_size, progress=progress)
    predictions = task_of(dataset.task).prediction(torch.from_numpy(found.outputs))
    return pl.DataFrame({
        "row": rows,
        "prediction": predictions.numpy(),
        "target": found.targets,
    })  # fmt: skip


def _write(table: pl.DataFrame, out: Path) -> None:
    written = io.BytesIO()
    table.write_parquet(written)
    write_atomically(out, written.getvalue())


def open_for(
    path: Path, dataset: Dataset, weights: str = "best", *, as_trained: bool = False
) -> OpenedRun:
    """Open a run, having checked that the data's ids mean what the run learned."""
    _check_run(path)
    check_features(Plan.load(path / PLAN), dataset, str(path))
    if (path / SUMMARY).is_file():
        learned = read_summary(path).get("vocabulary_fingerprint")
        if learned != dataset.vocabulary_fingerprint:
            raise ValueError(
                f"the ids of {dataset.path} come from another vocabulary than those {path} was trained "
                "with, or its numbers from other dense rules, so they mean other values: "
                "mixdim prepare ... --vocabulary-of prepares rows with the same"
            )
    return open_run(path, num_dense=dataset.num_dense, weights=weights, as_trained=as_trained)


def _check_run(path: Path) -> None:
    for name in (CONFIG, PLAN):
        if not (path / name).is_file():
            raise FileNotFoundError(f"{path} is not a run: it has no {name}")


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
