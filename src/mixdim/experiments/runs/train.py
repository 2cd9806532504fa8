"""A training run as a folder: plan, train, measure, come back to it. The loop is mixdim.training.

config.toml      what was asked, every option
plan.json        the widths
metrics.jsonl    losses and validations as they came
checkpoint/      the newest two states, and the best weights
summary.json     how it ended
"""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import warnings
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import mixdim
from mixdim.data import Dataset
from mixdim.data.unknown_values import advice
from mixdim.experiments.runs.config import RunConfig, read_config
from mixdim.experiments.runs.models import OPTIONS_OF_MODELS, build_model, check_fits
from mixdim.experiments.runs.trained import check_features, read_plan, read_summary
from mixdim.files import make_folder, write_atomically
from mixdim.locks import alone_at_work
from mixdim.planning.budget import format_bytes, parse_budget
from mixdim.planning.from_counts import plan as make_plan
from mixdim.planning.plan import Plan
from mixdim.training import Fitted, fit
from mixdim.training.evaluation import Progress, feature_to_slice_by
from mixdim.training.memory import MemoryForecast, available_memory, forecast_memory
from mixdim.training.optimizers import OPTIMIZERS
from mixdim.training.resumption import MAY_CHANGE
from mixdim.training.tasks import task_of

Echo = Callable[[str], None]


MOST_OF_MEMORY = 0.7  # of what is free: a run that takes more is warned of


class NotEnoughMemoryError(ValueError):
    """A run that would not fit into this machine's memory."""


class MemoryWarning(UserWarning):
    """A run takes most of this machine's memory."""


def train_run(
    config: RunConfig,
    out: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    echo: Echo = lambda line: None,
) -> dict[str, Any]:
    """Train as the config says, keep everything in the folder `out`, and return the summary."""
    if resume and overwrite:
        raise ValueError("give --resume or --overwrite, not both")
    saved, planned = out / "config.toml", out / "plan.json"
    if resume and saved.is_file():
        config = _continued(config, read_config(saved), out)
    if config.data is None:
        raise ValueError(f"{out} holds no run to resume" if resume else "data is missing: give --data")
    dataset = Dataset(config.data)
    config = replace(config.effective(dataset.task), data=str(dataset.path.resolve()))
    if config.plan is not None:
        config = replace(config, plan=str(Path(config.plan).resolve()))
    check_fits(config, dataset)
    feature_to_slice_by(dataset, config.slice_by)  # now, before there is a folder
    options = config.training_options()
    plan = plan_of(config, dataset)
    if resume and planned.is_file() and planned.read_text() != plan.to_json():
        raise ValueError(f"{out} was started on other data than {dataset.path} holds now")
    if (out / "summary.json").is_file() and resume:
        summary = read_summary(out)
        if summary["epochs"] == config.epochs and summary["patience"] == config.patience:
            echo(f"{out} is finished already")
            return summary
    forecast, available = require_memory(config, plan, dataset), available_memory()
    _make_folder(out, resume=resume, overwrite=overwrite)
    with alone_at_work(out):
        if not resume:
            _empty(out)
        _remove_unfinished(out)
        write_atomically(saved, config.to_toml())
        write_atomically(planned, plan.to_json())
        torch.manual_seed(options.seed)
        mean = task_of(dataset.task).constant_output(dataset.mean_target)
        model = build_model(config, plan, num_dense=dataset.num_dense, mean=mean)
        echo(_opening_line(config, plan, model))
        echo(f"memory: about {forecast}, {forecast.share_of(available)}")
        fitted = fit(
            model,
            dataset,
            options=options,
            out=out,
            resume=resume,
            tensorboard=bool(config.tensorboard),
            progress=progress,
        )
        summary = summarise(config, plan, model, fitted, dataset)
        write_atomically(out / "summary.json", json.dumps(summary, indent=2) + "\n")
    return summary


def plan_of(config: RunConfig, dataset: Dataset) -> Plan:
    """The plan that a config asks for, of the features of a data set."""
    if config.plan is not None:
        plan = read_plan(Path(config.plan))
        check_features(plan, dataset, f"the plan {config.plan}")
        return plan
    assert config.bands is not None
    return make_plan(
        dataset,
        temperature=config.temperature,
        base_dim=config.base_dim,
        budget=config.budget,
        bands=config.bands,
        rounding=config.rounding,  # type: ignore[arg-type]  # plan() checks it and lists the choices
    )


def forecast_of(config: RunConfig, plan: Plan, dataset: Dataset) -> MemoryForecast:
    """What training will need, found out with a model that has shapes and no weights."""
    assert config.optimizer is not None
    assert config.batch_size is not None
    with torch.device("meta"):
        model = build_model(config, plan, num_dense=dataset.num_dense, mean=0.0)
    return forecast_memory(
        model,
        optimizer=config.optimizer,
        batch_size=config.batch_size,
        num_ids=round(sum(dataset.ids_per_sample.get(name, 1.0) for name in plan)),
        num_dense=dataset.num_dense,
        train_rows=dataset.splits["train"][1],
        evaluation_rows=dataset.meta.num_rows - dataset.splits["train"][1],
    )


def require_memory(config: RunConfig, plan: Plan, dataset: Dataset) -> MemoryForecast:
    """Forecast the memory; refuse what does not fit, and warn of what hardly does.

    Both say the numbers, and a budget that would do.
    """
    forecast, available = forecast_of(config, plan, dataset), available_memory()
    if forecast.total > available:
        smaller = _smaller(config, plan, forecast.total - available)
        advice = (
            f"{smaller} would fit"
            if smaller is not None
            else f"even width 1 for all {plan.num_rows:,} rows does not fit beside the rest: a smaller "
            "batch size, or an optimizer with less state, such as adagrad or sgd, may"
        )
        raise NotEnoughMemoryError(
            f"training needs about {forecast}, and this machine has {format_bytes(available)} free: "
            f"{advice}"
        )
    most = int(MOST_OF_MEMORY * available)
    if forecast.total > most:
        smaller = _smaller(config, plan, forecast.total - most)
        advice = "" if smaller is None else f"{smaller} would take less than {MOST_OF_MEMORY:.0%}, and "
        warnings.warn(
            f"training will take about {format_bytes(forecast.total)}, {forecast.share_of(available)}, "
            f"and may be killed if anything else needs memory: {advice}a smaller batch size, or an "
            "optimizer with less state, such as adagrad or sgd, takes less too",
            MemoryWarning,
            stacklevel=2,
        )
    return forecast


def _smaller(config: RunConfig, plan: Plan, over: int) -> str | None:
    """The options of a run whose tables take so many bytes less; None if no budget is that small."""
    assert config.optimizer is not None
    copies = 1 + OPTIMIZERS[config.optimizer].copies
    # What scales with the tables must shrink by what is over; the rest does not grow with fewer.
    budget = plan.num_parameters - math.ceil(1.05 * over / (4 * copies))
    instead = "" if config.base_dim is None else f" instead of --base-dim {config.base_dim}"
    options = f"--temperature {plan.temperature:g} --budget {budget}{instead}"
    return options if budget >= plan.num_rows else None


def summarise(
    config: RunConfig, plan: Plan, model: nn.Module, fitted: Fitted, dataset: Dataset
) -> dict[str, Any]:
    """What `summary.json` says: what was trained, at what cost, how well."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    truth, bound = dataset.meta.truth or {}, f"bayes_{task_of(dataset.task).objective}"
    return {
        "model": config.model,
        "temperature": plan.temperature,
        "base_dim": plan.base_dim,
        "budget": None if config.budget is None else parse_budget(config.budget),
        "num_parameters": parameters,
        "embedding_parameters": plan.num_parameters,
        "widths": {feature.name: [block.dim for block in feature.blocks] for feature in plan.features},
        **{name: getattr(config, name) for name in _SUMMARY_OPTIONS},
        "epochs_run": fitted.epochs_run,
        "steps": fitted.steps,
        "stopped_early": fitted.stopped_early,
        "seconds": fitted.seconds,
        "samples_per_second": fitted.samples_per_second,
        "peak_memory_bytes": fitted.peak_memory_bytes,
        "slice_feature": fitted.slice_feature,
        "validation": fitted.validation,
        "test": fitted.test,
        **({bound: truth[bound]} if bound in truth else {}),
        "unknown_lookups": {
            name: found
            for name, found in dataset.unknown_lookups.items()
            if found["validation"] or found["test"]
        },
        "data": config.data,
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


def advice_after(summary: dict[str, Any]) -> list[str]:
    """What a reader of a run's results should know of its data, if there is anything."""
    generated = any(name.startswith("bayes_") for name in summary)
    found = advice(summary.get("unknown_lookups", {}), prepared=not generated)
    return [] if found is None else [found]


_SUMMARY_OPTIONS = (
    *("bands", "rounding", "seed", "preset", "optimizer", "lr", "batch_size", "epochs", "patience"),
    *("shuffle", "init"),
    *(field.name for field in fields(RunConfig) if field.name in OPTIONS_OF_MODELS),
)


def _continued(given: RunConfig, saved: RunConfig, out: Path) -> RunConfig:
    """The saved config, with what may change; refuse what may not."""
    for name, value in given.said().items():
        before = getattr(saved, name)
        now = str(Path(value).resolve()) if name in ("data", "plan") else value
        if now != before and name not in MAY_CHANGE:
            raise ValueError(f"{out} was started with {name}={before!r}, not {value!r}")
    return replace(given, data=None).over(saved)


def _make_folder(out: Path, *, resume: bool, overwrite: bool) -> None:
    """Make the folder of a run, unless what is there may not be continued or replaced."""
    if out.exists() and not out.is_dir():
        raise FileExistsError(f"{out} is not a folder")
    # A run killed at its very beginning leaves an unfinished config.
    held = [path for path in out.glob("*") if not path.name.startswith(".config.toml.")]
    if held and not (resume or overwrite):
        raise FileExistsError(f"{out} exists already; --resume continues it, --overwrite replaces it")
    if held and not _is_run(out):
        raise FileExistsError(f"{out} exists and is no run, so nothing is written there")
    make_folder(out)


def _empty(folder: Path) -> None:
    """Remove all that is in a folder; the folder itself stays, and so do its lock and a link to it."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _remove_unfinished(out: Path) -> None:
    """Remove what is left of files that a run was writing when it was killed."""
    for name in ("config.toml", "plan.json", "summary.json"):
        for left in out.glob(f".{name}.*"):
            left.unlink(missing_ok=True)


def _is_run(path: Path) -> bool:
    """Whether a folder was made by `train_run`: other programs have a config.toml too."""
    try:
        return read_config(path / "config.toml").model is not None
    except (OSError, ValueError):
        return False


def _opening_line(config: RunConfig, plan: Plan, model: nn.Module) -> str:
    parameters = sum(parameter.numel() for parameter in model.parameters())
    widths = [block.dim for block in plan.blocks]
    return (
        f"{config.model}: {parameters:,} parameters, {plan.num_parameters:,} of them embeddings "
        f"(temperature {plan.temperature:g}, base_dim {plan.base_dim}, "
        f"{len(widths)} blocks of width {min(widths)} to {max(widths)})"
    )
