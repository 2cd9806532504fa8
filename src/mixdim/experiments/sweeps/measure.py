"""One run, trained and measured: what a record keeps of it. Knows nothing about other runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mixdim.data import Dataset
from mixdim.experiments.runs.config import RunConfig
from mixdim.experiments.runs.train import train_run
from mixdim.experiments.runs.trained import OpenedRun, open_for
from mixdim.experiments.sweeps.records import Record, now
from mixdim.training.devices import device_of, to_device
from mixdim.training.evaluation import Progress, feature_to_slice_by
from mixdim.training.slices import measure_slices, thirds_of_popularity
from mixdim.training.tasks import Task, task_of

TRAIN_ROWS = 200_000  # enough to see the gap between training and test


@dataclass(frozen=True)
class Outcome:
    """What a run came to: results, or an error."""

    error: str | None = None
    summary: dict[str, Any] | None = None
    curve: tuple[dict[str, Any], ...] = ()
    train: dict[str, Any] | None = None

    def record(self, config: RunConfig, *, key: str, model_budget: int | None = None) -> Record:
        """What is kept of it, now that the run of this effective config has ended."""
        return Record(
            key=key,
            status="finished" if self.error is None else "failed",
            error=self.error,
            # As it will be read back.
            config=json.loads(json.dumps({**asdict(config), "model_budget": model_budget})),
            summary=self.summary,
            curve=list(self.curve),
            train=self.train,
            finished_at=now(),
        )


def train_and_measure(
    config: RunConfig, out: Path, *, overwrite: bool = False, progress: Progress | None = None
) -> Outcome:
    """Train a run in the folder `out`, and gather what a record keeps of it."""
    summary = train_run(config, out, overwrite=overwrite, progress=progress)
    assert config.data is not None
    dataset = Dataset(config.data)
    curve = tuple(_validations(out / "metrics.jsonl", task_of(dataset.task)))
    train = _train_metrics(open_for(out, dataset), dataset)
    return Outcome(summary=json.loads(json.dumps(summary)), curve=curve, train=train)


def _validations(journal: Path, task: Task) -> Iterator[dict[str, Any]]:
    for line in map(json.loads, journal.read_text(encoding="utf-8").splitlines()):
        if line["kind"] == "validation":
            metrics = line["validation"]
            yield {
                **{name: line[name] for name in ("step", "epoch", "train_seconds", "seconds")},
                "loss": metrics[task.objective],
                **{name: metrics[name] for name in task.curve_metrics},
            }


@torch.no_grad()
def _train_metrics(run: OpenedRun, dataset: Dataset) -> dict[str, Any]:
    """Metrics and slices on the training split, or its first rows if it is long."""
    task, (start, stop) = task_of(dataset.task), dataset.splits["train"]
    stop = min(stop, start + TRAIN_ROWS)
    assert run.config.batch_size is not None
    run.model.eval()
    device = device_of(run.model)
    outputs, targets, ids = [], [], []
    for first in range(start, stop, run.config.batch_size):
        batch = dataset.rows(slice(first, min(first + run.config.batch_size, stop)))
        outputs.append(run.model(to_device(batch, device)).numpy(force=True))
        targets.append(batch.target.numpy())
        ids.append(batch.ids.numpy())
    rows = np.concatenate(outputs), np.concatenate(targets)
    feature = feature_to_slice_by(dataset, run.config.slice_by)
    if feature is None:
        return task.measure(*rows)
    column = np.concatenate(ids)[:, dataset.single_valued.index(feature)]
    thirds = thirds_of_popularity(dataset.counts[feature])[column]
    return {**task.measure(*rows), "slices": measure_slices(task, *rows, thirds)}
