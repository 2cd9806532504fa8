"""Predictions of a run, or of an exported file, for prepared and for raw rows. Trains nothing."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch

from mixdim._util.files import write_atomically
from mixdim.data import Dataset
from mixdim.data.prediction_rows import opened_raw
from mixdim.data.unknown_values import unknown_report
from mixdim.models import Model
from mixdim.runs.plans import check_rows
from mixdim.serving.session import ServedModel, inputs_of
from mixdim.tasks import task_of
from mixdim.training.evaluation import Outputs, Progress, outputs_of

if TYPE_CHECKING:
    from mixdim.runs.run import Run

PredictBatch = Callable[[Any], np.ndarray]  # an exported model: probabilities or ratings of a batch


@dataclass(frozen=True)
class Predictions:
    """How many rows were predicted, by the ids of which prepared folder, and what to know of them."""

    rows: int
    data: Path
    notes: tuple[str, ...] = ()


def predict_split(
    run: Run,
    dataset: Dataset,
    out: Path,
    *,
    split: str,
    weights: str = "best",
    progress: Progress | None = None,
) -> Predictions:
    """Write a run's predictions of the rows of a split."""
    start, stop = _rows_of(dataset, split)
    model = run.load(dataset, weights).model
    table = _predictions(run, model, dataset, split, np.arange(start, stop), progress)
    _write(table, out)
    return Predictions(len(table), dataset.path)


def predict_raw(
    run: Run,
    raw: Path,
    out: Path,
    *,
    dataset: Dataset,
    weights: str = "best",
    max_bad: int = 0,
    encoding: str | None = None,
    separator: str | None = None,
    progress: Callable[..., None] | None = None,  # of reading, whose end is not known, and predicting
) -> Predictions:
    """Write a run's predictions of the rows of a raw file, which has the ids of `dataset`."""
    model = run.load(dataset, weights).model  # before the file is read, which may take long
    with opened_raw(
        raw, dataset.path, max_bad=max_bad, encoding=encoding, separator=separator, progress=progress
    ) as rows:
        table = _predictions(run, model, rows.dataset, "test", rows.places, progress)
        notes = _notes(rows.dataset)
    target = pl.col("target").fill_nan(None)
    _write(table.with_columns(target) if rows.has_target else table.drop("target"), out)
    return Predictions(len(table), dataset.path, notes)


def predict_with_file(
    model: Path,
    data: Path,
    out: Path,
    *,
    split: str = "test",
    batch_size: int = 4096,
    progress: Progress | None = None,
) -> Predictions:
    """Write an exported ONNX model's predictions of the rows of a split, as those of a run."""
    if model.suffix == ".pt2":
        raise ValueError(f"{model} is not ONNX: load it with torch.export.load, if you know who made it")
    dataset = Dataset(data)
    served = ServedModel(model)
    _check_data(served, dataset)
    found = outputs_of_file(
        lambda batch: served.run(inputs_of(batch)),
        dataset,
        split,
        batch_size=batch_size,
        progress=progress,
    )
    start, stop = dataset.splits[split]
    _write(_table(np.arange(start, stop), found.outputs, found.targets), out)
    return Predictions(stop - start, dataset.path)


def outputs_of_file(
    predict: PredictBatch,
    dataset: Dataset,
    split: str,
    *,
    batch_size: int,
    progress: Progress | None = None,
) -> Outputs:
    """Run an exported model over a split; outputs are probabilities or ratings."""
    predictions, targets, done = [], [], 0
    start, stop = dataset.splits.get(split, (0, 0))
    for batch in dataset.batches(split, batch_size=batch_size):
        predictions.append(predict(batch))
        targets.append(batch.target.numpy())
        done += len(batch.target)
        if progress is not None:
            progress(f"measuring {split}", done, stop - start, "")
    empty = [np.empty(0, np.float32)]
    return Outputs(np.concatenate(predictions or empty), np.concatenate(targets or empty), None)


def _predictions(
    run: Run,
    model: Model,
    dataset: Dataset,
    split: str,
    rows: np.ndarray,
    progress: Progress | None,
) -> pl.DataFrame:
    """What a run's model says of the rows of a split, which go by the numbers given."""
    assert run.config.batch_size is not None
    found = outputs_of(model, dataset, split, batch_size=run.config.batch_size, progress=progress)
    predictions = task_of(dataset.task).prediction(torch.from_numpy(found.outputs))
    return _table(rows, predictions.numpy(), found.targets)


def _table(rows: np.ndarray, predictions: np.ndarray, targets: np.ndarray) -> pl.DataFrame:
    return pl.DataFrame({"row": rows, "prediction": predictions, "target": targets})


def _write(table: pl.DataFrame, out: Path) -> None:
    written = io.BytesIO()
    table.write_parquet(written)
    write_atomically(out, written.getvalue())


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


def _check_data(served: ServedModel, dataset: Dataset) -> None:
    """Refuse data whose ids mean something else than the model learned."""
    about = served.about
    if about.get("format") != "mixdim.served":
        raise ValueError(f"{served.path} was not written by mixdim export")
    check_rows(about["features"], dataset, str(served.path))
    learned = about.get("vocabulary_fingerprint")
    if learned is not None and learned != dataset.vocabulary_fingerprint:
        raise ValueError(
            f"the ids of {dataset.path} come from another vocabulary than those {served.path} was made "
            "for, so they mean other values"
        )
