"""How a run ended: what `summary.json` says, and the curve of its validations. Trains nothing."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import mixdim
from mixdim.data import Dataset
from mixdim.data.unknown_values import advice
from mixdim.models import Model
from mixdim.planning.budget import parse_budget
from mixdim.planning.plan import Plan
from mixdim.runs.baseline_report import (
    advice_on_boosting,
    baselines_line,
    warning_below_baseline,
    warning_of_start,
)
from mixdim.runs.config import RunConfig, run_options
from mixdim.runs.folder import JOURNAL, SUMMARY
from mixdim.runs.models import bytes_by_part, bytes_of
from mixdim.tasks import TASKS, task_of
from mixdim.training import Result
from mixdim.training.baselines import Baselines


def summarize(
    config: RunConfig,
    plan: Plan,
    model: Model,
    result: Result,
    dataset: Dataset,
    baselines: Baselines,
) -> dict[str, Any]:
    """What `summary.json` says: what was trained, at what cost, how well.

    All options of the run that decide its result stand there, but where what came of them does: the
    temperature, base_dim, budget in parameters and bits of the `plan`, which is the one that is served.
    """
    trained = plan.trainable()
    options = {name: value for name, value in config.to_dict().items() if run_options()[name].decides}
    truth, bound = dataset.meta.truth or {}, f"bayes_{task_of(dataset.task).objective}"
    return {
        **options,
        "temperature": trained.temperature,
        "provenance": dict(trained.provenance),
        "base_dim": plan.base_dim,
        "budget": None if config.budget is None else parse_budget(config.budget, num_rows=plan.num_rows),
        "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
        # Not the plan's: an array that blocks share is one in each layer, of users and of items.
        "embedding_parameters": sum(layer.num_parameters for layer in model.embedding_layers()),
        **sizes_of(model),
        "bits": plan.least_bits,
        "widths": {feature.name: [block.dim for block in feature.blocks] for feature in plan.features},
        "epochs_run": result.epochs_run,
        "steps": result.steps,
        "stopped_early": result.stopped_early,
        "seconds": result.seconds,
        "samples_per_second": result.samples_per_second,
        "peak_memory_bytes": result.peak_memory_bytes,
        "slice_feature": result.slice_feature,
        "validation": result.validation,
        "test": result.test,
        "baselines": baselines,
        **({bound: truth[bound]} if bound in truth else {}),
        "unknown_lookups": {
            name: {**found, "trained": found["trained"] or bool(config.unknown_dropout)}
            for name, found in dataset.unknown_lookups.items()
            if found["validation"] or found["test"]
        },
        "data": config.data,
        "generator": dataset.meta.source.get("generator"),  # of synthetic data
        "data_fingerprint": dataset.fingerprint,
        "vocabulary_fingerprint": dataset.vocabulary_fingerprint,
        "version": mixdim.__version__,
        "machine": {
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
    }


def sizes_of(model: Model) -> dict[str, Any]:
    """Bytes of a model as it is served: of all that grows with ids, by part, and of everything."""
    parts = bytes_by_part(model)
    return {
        "embedding_bytes": sum(parts.values()),
        "bytes_by_part": parts,
        "model_bytes": bytes_of(model),
    }


def read_summary(path: Path) -> dict[str, Any]:
    """What a finished run's `summary.json` says."""
    try:
        return dict(json.loads((path / SUMMARY).read_bytes()))
    except ValueError as error:
        raise ValueError(f"{path / SUMMARY} is malformed: {error}") from None


def read_curve(path: Path) -> tuple[dict[str, Any], ...]:
    """The validations in a run's journal, also those from before a resumption.

    Each has `step`, `epoch`, `train_seconds`, `seconds`, the objective as `loss`, and what else the task
    keeps in its curves.
    """
    journal = path / JOURNAL
    lines = journal.read_text(encoding="utf-8").splitlines() if journal.is_file() else []
    return tuple(_point(line) for line in map(json.loads, lines) if line["kind"] == "validation")


def _point(line: Mapping[str, Any]) -> dict[str, Any]:
    found = line["validation"]
    task = next(task for task in TASKS.values() if task.objective in found)
    return {
        **{name: line[name] for name in ("step", "epoch", "train_seconds", "seconds")},
        "loss": found[task.objective],
        **{name: found[name] for name in task.curve_metrics},
    }


def advice_after(summary: Mapping[str, Any]) -> list[str]:
    """What a reader of a run's results should know of its data and its baselines, line by line."""
    generated = any(name.startswith("bayes_") for name in summary)
    lines_of_all = (
        baselines_line([summary]),
        advice(summary.get("unknown_lookups", {}), prepared=not generated),
        warning_of_start(summary) or warning_below_baseline(summary),
        advice_on_boosting(summary),
    )
    return [lines for lines in lines_of_all if lines is not None]
