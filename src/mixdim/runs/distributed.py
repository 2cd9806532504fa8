"""A training run of many processes: a run like any other, whose folder rank 0 writes.

Knows nothing about what is in the loop.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from mixdim._util.files import write_atomically
from mixdim.data import Dataset
from mixdim.distributed.placement import bytes_by_rank
from mixdim.distributed.tables import tables_of
from mixdim.layer.bags import Pooling
from mixdim.layer.layout import Layout
from mixdim.models import MODELS, Drawn, Model, model_named
from mixdim.planning.budget import format_bytes
from mixdim.planning.plan import Plan
from mixdim.runs.beginning import fit_baseline
from mixdim.runs.config import RunConfig, read_config
from mixdim.runs.folder import (
    CONFIG,
    PLAN,
    SUMMARY,
)
from mixdim.runs.models import build_model, check_fits
from mixdim.runs.summary import read_summary
from mixdim.runs.train import begun, continued, is_finished, opening_lines, plan_of, trained_summary
from mixdim.tasks import task_of
from mixdim.training.evaluation import Progress, feature_to_slice_by

OPTIMIZERS = ("adagrad", "sgd")


def train_distributed(
    config: RunConfig,
    out: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    echo: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Train as the config says on all processes that torchrun started; returns the summary."""
    from mixdim.distributed.process_group import init  # TorchRec is installed on its own

    if resume and overwrite:
        raise ValueError("give --resume or --overwrite, not both")
    if resume and (out / CONFIG).is_file():
        saved = read_config(out / CONFIG)
        if not saved.distributed:
            raise ValueError(f"{out} was started without --distributed: resume it without")
        config = continued(config, saved, out)
    if config.data is None:
        raise ValueError(f"{out} holds no run to resume" if resume else "data is missing: give --data")
    config, dataset = resolved_for_ranks(config)
    config.training_options()  # refuses what is wrong
    plan = plan_of(config, dataset)
    plan.check_trained()
    # Refuses storages that TorchRec does not have, before there is a folder.
    tables_of(Layout.of(plan), list(plan))
    if resume and (out / PLAN).is_file() and Plan.load(out / PLAN) != plan:
        raise ValueError(f"{out} was started with another plan, or other data, than there is now")
    if resume and (out / SUMMARY).is_file() and is_finished(summary := read_summary(out), config):
        echo(f"{out} is finished already")
        return summary
    with init() as group, begun(out, config, plan, resume=resume, overwrite=overwrite, group=group):
        with torch.device("meta"):
            shapes = build_model(config, plan, num_dense=dataset.num_dense, mean=0.0)
        if group.rank == 0:
            for line in opening_lines(config, plan, shapes, dataset):
                echo(line)
            echo(_line_about_ranks(config, plan, group.world))
        model = _shardable(config, plan, dataset)
        baseline, measured = fit_baseline(
            model,
            dataset,
            from_baseline=bool(config.model_options.get("from_baseline")),
            progress=progress,
            group=group,
        )
        learner = _sharded(model, config)
        if baseline is not None:
            learner.module.start_from(baseline)
        summary = trained_summary(
            learner,
            shapes,
            config,
            plan,
            dataset,
            out,
            resume=resume,
            progress=progress,
            group=group,
            logistic=measured,
        )
        summary["ranks"] = group.world
        if group.rank == 0:
            write_atomically(out / SUMMARY, json.dumps(summary, indent=2) + "\n")
        group.barrier()  # nobody leaves before it is written
        return summary


def _line_about_ranks(config: RunConfig, plan: Plan, world: int) -> str:
    """What each rank holds."""
    assert config.optimizer is not None
    most = max(held.total for held in bytes_by_rank(plan, world, optimizer=config.optimizer))
    ranks = "1 rank, which" if world == 1 else f"{world} ranks, of which each"
    return f"{ranks} holds up to {format_bytes(most)} of embeddings and their {config.optimizer} state"


def resolved_for_ranks(config: RunConfig) -> tuple[RunConfig, Dataset]:
    """Fill in what is not given, and refuse what there is not on many processes."""
    assert config.data is not None
    dataset = Dataset(config.data)
    name = task_of(dataset.task).default_model if config.model is None else config.model
    if not model_named(name).one_layer:
        others = " or ".join(name for name, model in MODELS.items() if model.one_layer)
        raise ValueError(f"--distributed trains --model {others}, got {name!r}")
    if config.bits not in (None, 32) or config.method is not None:
        raise ValueError("--bits and --method are not there with --distributed: leave them out")
    optimizer = config.optimizer or "adagrad"
    if optimizer not in OPTIMIZERS:
        raise ValueError(
            f"optimizer must be one of {', '.join(OPTIMIZERS)} with --distributed, as TorchRec has no "
            f"other for tables on a CPU, got {optimizer!r}"
        )
    of_ranks = RunConfig(model=name, optimizer=optimizer, distributed=True)
    full = of_ranks.merged_with(config).resolved(dataset)
    check_fits(full, dataset)
    feature_to_slice_by(dataset, full.slice_by)
    return full, dataset


def _shardable(config: RunConfig, plan: Plan, dataset: Dataset) -> Model:
    """The model, whose tables have no weights yet; others are those that a run of one process has."""
    from mixdim.distributed.embeddings import ShardableEmbeddings

    assert config.seed is not None
    torch.manual_seed(config.seed)
    mean = task_of(dataset.task).constant_output(dataset.mean_target)
    bags = [name for name in dataset.feature_names if name not in dataset.single_valued]

    def layer(plan: Plan, drawn: Drawn | None, *, pooling: Pooling = "sum") -> ShardableEmbeddings:
        how = {"init": None} if drawn is None else drawn._asdict()
        return ShardableEmbeddings(plan, bags=bags, pooling=pooling, **how)

    return build_model(config, plan, num_dense=dataset.num_dense, mean=mean, layer=layer)


def _sharded(model: Model, config: RunConfig) -> Any:
    """The model on all ranks."""
    from mixdim.distributed.sharding import shard

    options = config.training_options()
    return shard(
        model,
        lr=options.lr,
        table_lr=options.table_lr,
        optimizer=options.optimizer,
        weight_decay=options.weight_decay,
    )
