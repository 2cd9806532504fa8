"""A run as a file to serve, and predictions with such a file. Trains nothing."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

import mixdim
from mixdim._util.files import follow_links, write_atomically, written_atomically
from mixdim.data import Dataset
from mixdim.data.dense_rules import LIMIT, DenseRule
from mixdim.data.folder import Meta, vocabulary_file
from mixdim.runs.config import read_config
from mixdim.runs.folder import CONFIG
from mixdim.runs.trained import OpenedRun, check_rows, open_for
from mixdim.serving.exporting import export
from mixdim.serving.session import ServedModel, inputs_of
from mixdim.storages.rows import check_bits
from mixdim.tasks import task_of
from mixdim.training.evaluation import Outputs, Progress, outputs_of

UNKNOWN = ("clip", "refuse")
Predict = Callable[[Any], np.ndarray]


def vocabulary_path(model: Path) -> Path:
    """The file beside a model that says which id a value has."""
    return model.with_name(f"{model.name}.vocabulary.json")


def open_to_export(
    run: Path, data: Path | None, weights: str = "best", bits: int | None = None
) -> tuple[OpenedRun, Dataset]:
    """Open a run with its data; with `bits`, check that its embeddings can be served in so many."""
    if not (run / CONFIG).is_file():
        raise FileNotFoundError(f"{run} is not a run: it has no {CONFIG}")
    folder = data or read_config(run / CONFIG).data
    if folder is None or not Path(folder).is_dir():
        raise FileNotFoundError(
            f"the data of {run} is not at {folder}: give --data, which has its vocabularies"
        )
    dataset = Dataset(folder)
    opened = open_for(run, dataset, weights)
    own = opened.plan.least_bits
    if bits is not None and own < 32 and check_bits(bits) != own:
        raise ValueError(f"{run} is quantized to {own} bits already, so bits cannot be {bits}")
    return opened, dataset


def export_run(
    run: Path,
    out: Path,
    *,
    data: Path | None = None,
    format: str | None = None,
    bits: int | None = None,
    unknown: str = "clip",
    weights: str = "best",
    overwrite: bool = False,
) -> tuple[OpenedRun, Dataset]:
    """Write a run's model for other runtimes, and beside it its vocabularies; returns what was read."""
    if unknown not in UNKNOWN:
        raise ValueError(f"unknown must be {' or '.join(UNKNOWN)}, got {unknown!r}")
    side = vocabulary_path(out)
    for path in (out, side):
        if follow_links(path).exists() and not overwrite:
            raise FileExistsError(f"{path} exists already; --overwrite replaces it")
    opened, dataset = open_to_export(run, data, weights, bits)
    features = dataset.meta.features
    with written_atomically(side) as temporary:
        temporary.write_text(json.dumps(vocabularies(dataset)), encoding="utf-8")
        export(
            opened.model,
            out,
            format=format,
            bits=32 if bits is None or not opened.plan.is_trained else bits,
            task=dataset.task,
            bags=[feature.name for feature in features if feature.bag],
            unknown={f.name: f.out_of_vocabulary for f in features} if unknown == "clip" else None,
            overwrite=overwrite,
            about={
                "run": str(run),
                "step": opened.step,
                "vocabulary_fingerprint": dataset.vocabulary_fingerprint,
                "mixdim": mixdim.__version__,
            },
        )
    return opened, dataset


def vocabularies(dataset: Dataset) -> dict[str, Any]:
    """Which id each value of each feature has, and what becomes of numbers: see docs/serving.md."""
    is_criteo, entries = dataset.meta.options.get("format") == "criteo", []
    for number, feature in enumerate(dataset.meta.features):
        table = pl.read_parquet(dataset.path / vocabulary_file(number)).sort("id")
        is_missing = (table["kind"] == "missing").arg_true()
        entries.append({
            "name": feature.name,
            "kind": "hexadecimal" if is_criteo else "plain",  # how values are written in raw files
            "bag": feature.bag,
            "unknown": feature.out_of_vocabulary,
            "missing": int(is_missing[0]) if len(is_missing) else feature.out_of_vocabulary,
            "values": table["value"].to_list(),  # by id; null for the two above
        })  # fmt: skip
    return {
        "format": "mixdim.vocabulary",
        "version": 1,
        "task": dataset.task,
        "features": entries,
        "dense": _numbers(dataset.meta, is_criteo=is_criteo),
        "dense_limit": None if dataset.meta.dense_rules is None else LIMIT,
    }


def _numbers(meta: Meta, *, is_criteo: bool) -> list[dict[str, Any]]:
    """What becomes of each column of numbers: see `mixdim.data.dense_rules`."""
    rules = meta.dense_rules
    if rules is None:  # taken as they are; Criteo's recipe takes logarithms
        rules = tuple(
            DenseRule(name, is_criteo, mean=0.0, scale=1.0, missing=0.0) for name in meta.dense
        )
    return [
        {
            "name": rule.column,
            "log": rule.log,
            "mean": rule.mean,
            "scale": rule.scale,
            "tells_missing": rule.tells_missing,
        }
        for rule in rules
    ]


def outputs_of_file(
    predict: Predict,
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


def loss_of_predictions(found: Outputs, task_name: str) -> float:
    """The objective of a task, from probabilities or ratings."""
    task = task_of(task_name)
    outputs = task.output_of(torch.from_numpy(found.outputs)).numpy()
    loss = task.measure(outputs, found.targets)[task.objective]
    return float("nan") if loss is None else float(loss)


def losses(
    opened: OpenedRun, dataset: Dataset, predict: Predict, split: str, progress: Progress | None
) -> tuple[float, float]:
    """The objective on a split of a run's model, and of what was exported."""
    assert opened.config.batch_size is not None
    told: dict[str, Any] = {"batch_size": min(opened.config.batch_size, 4096), "progress": progress}
    before = outputs_of(opened.model, dataset, split, **told)
    after = outputs_of_file(predict, dataset, split, **told)
    task = task_of(dataset.task)
    loss = task.measure(before.outputs, before.targets)[task.objective]
    assert loss is not None
    return float(loss), loss_of_predictions(after, dataset.task)


def predict_file(
    model: Path,
    data: Path,
    out: Path,
    *,
    split: str = "test",
    batch_size: int = 4096,
    progress: Progress | None = None,
) -> int:
    """Write what an exported ONNX model says of each row of a split, as `predict_run` does."""
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
    table = pl.DataFrame({
        "row": np.arange(start, stop),
        "prediction": found.outputs,
        "target": found.targets,
    })  # fmt: skip
    written = io.BytesIO()
    table.write_parquet(written)
    write_atomically(out, written.getvalue())
    return len(table)


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
