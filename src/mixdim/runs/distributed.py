"""What is different in a run of many processes: its options, how its model is spread. Knows no loop."""

from __future__ import annotations

from typing import Any

import torch

from mixdim.data import Dataset
from mixdim.distributed.placement import bytes_by_rank
from mixdim.distributed.tables import tables_of
from mixdim.layer.bags import Pooling
from mixdim.layer.layout import Layout
from mixdim.models import MODELS, Drawn, Model, model_named
from mixdim.planning.budget import format_bytes
from mixdim.planning.plan import Plan
from mixdim.runs.config import RunConfig
from mixdim.runs.models import build_model
from mixdim.runs.resolution import gives_widths
from mixdim.tasks import task_of

OPTIMIZERS = ("adagrad", "sgd")


def for_ranks(config: RunConfig, dataset: Dataset) -> RunConfig:
    """Fill in what many processes have otherwise, and refuse what there is not on them."""
    task = task_of(dataset.task)
    name = task.any_features_model if config.model is None else config.model
    if not model_named(name).one_layer:
        others = " or ".join(name for name, model in MODELS.items() if model.one_layer)
        raise ValueError(f"--distributed trains --model {others}, got {name!r}")
    if config.bits not in (None, 32) or config.method is not None:
        raise ValueError("--bits and --method do not work with --distributed: leave them out")
    optimizer = config.optimizer or "adagrad"
    if optimizer not in OPTIMIZERS:
        raise ValueError(
            f"optimizer must be one of {', '.join(OPTIMIZERS)} with --distributed, as TorchRec has no "
            f"other for tables on a CPU, got {optimizer!r}"
        )
    if config.decay_by == "time":
        raise ValueError("decay_by must be request with --distributed: TorchRec holds the tables")
    bits = None if gives_widths(config) else 32  # what one process does otherwise
    own: dict[str, Any] = {"decay_by": "request", "bits": bits}
    return RunConfig(model=name, optimizer=optimizer, distributed=True, **own).merged_with(config)


def check_shardable(plan: Plan) -> None:
    """Refuse a plan with storages that TorchRec does not have."""
    plan.check_trained()
    tables_of(Layout.of(plan), list(plan))


def line_about_ranks(config: RunConfig, plan: Plan, world: int) -> str:
    """What each rank holds."""
    assert config.optimizer is not None
    most = max(held.total for held in bytes_by_rank(plan, world, optimizer=config.optimizer))
    ranks = "1 rank, which" if world == 1 else f"{world} ranks, of which each"
    return f"{ranks} holds up to {format_bytes(most)} of embeddings and their {config.optimizer} state"


def shardable(config: RunConfig, plan: Plan, dataset: Dataset) -> Model:
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


def sharded(model: Model, config: RunConfig) -> Any:
    """The model on all ranks."""
    from mixdim.distributed.sharding import shard

    options = config.training_options()
    return shard(
        model,
        lr=options.lr,
        table_lr=options.table_lr,
        optimizer=options.optimizer,
        weight_decay=options.weight_decay,
        table_decay=options.table_decay,
    )
