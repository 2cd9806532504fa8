"""What is different in a run of many processes: its options, how its model is spread. Knows no loop."""

from __future__ import annotations

from typing import Any

import torch

from mixdim.data import Dataset
from mixdim.distributed.placement import bytes_by_rank
from mixdim.distributed.tables import tables_of
from mixdim.layer.bags import Pooling
from mixdim.layer.layout import Layout
from mixdim.models import Drawn
from mixdim.planning.budget import format_bytes
from mixdim.planning.plan import Plan
from mixdim.runs.config import RunConfig
from mixdim.runs.models import build_model
from mixdim.training.options import AUTO

OPTIMIZERS = ("adagrad", "sgd")


def for_ranks(config: RunConfig, dataset: Dataset) -> RunConfig:
    """Fill in what many processes have otherwise, and refuse what there is not on them."""
    if config.model not in (None, "dlrm") or (config.model is None and dataset.task != "binary"):
        raise ValueError("--distributed trains --model dlrm only")
    if config.model_options.get("first_order"):
        raise ValueError("--first-order is not there with --distributed: leave it out")
    if config.bits not in (None, 32) or config.method is not None:
        raise ValueError("--bits and --method are not there with --distributed: leave them out")
    optimizer = config.optimizer or "adagrad"
    if optimizer not in OPTIMIZERS:
        raise ValueError(
            f"optimizer must be one of {', '.join(OPTIMIZERS)} with --distributed, as TorchRec has no "
            f"other for tables on a CPU, got {optimizer!r}"
        )
    of_ranks = RunConfig.of(model="dlrm", first_order=False, optimizer=optimizer, distributed=True)
    return of_ranks.merged_with(config)


def check_shardable(plan: Plan) -> None:
    """Refuse a plan with storages that TorchRec does not have."""
    plan.check_trained()
    tables_of(Layout.of(plan), list(plan))


def lines_about_ranks(config: RunConfig, plan: Plan, world: int) -> list[str]:
    """What each rank holds, and what a run of one process would have that this has not."""
    assert config.optimizer is not None
    most = max(held.total for held in bytes_by_rank(plan, world, optimizer=config.optimizer))
    ranks = "1 rank, which" if world == 1 else f"{world} ranks, of which each"
    lines = [
        f"{ranks} holds up to {format_bytes(most)} of embeddings and their {config.optimizer} state"
    ]
    if config.preset == AUTO:
        lines.append(
            "without first-order weights and weight decay, which there are not with --distributed: one "
            f"process trains the same with --no-first-order --optimizer {config.optimizer}"
        )
    return lines


def sharded(config: RunConfig, plan: Plan, dataset: Dataset) -> Any:
    """The model on all ranks, with the first weights that a run of one process has."""
    from mixdim.distributed.embeddings import ShardableEmbeddings
    from mixdim.distributed.sharding import shard

    assert config.lr is not None
    assert config.seed is not None
    torch.manual_seed(config.seed)
    bags = [name for name in dataset.feature_names if name not in dataset.single_valued]

    def layer(plan: Plan, drawn: Drawn | None, *, pooling: Pooling = "sum") -> ShardableEmbeddings:
        assert drawn is not None
        return ShardableEmbeddings(plan, bags=bags, pooling=pooling, **drawn._asdict())

    model = build_model(config, plan, num_dense=dataset.num_dense, mean=0.0, layer=layer)
    return shard(model, lr=config.lr, table_lr=config.table_lr, optimizer=config.optimizer or "adagrad")
