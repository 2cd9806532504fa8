"""How a model is spread: tables by placement, all else on every rank. Knows no files and no data."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD, Adagrad, Optimizer

from mixdim._util.arguments import positive_number
from mixdim.distributed.engine import (
    DistributedModelParallel,
    EmbeddingBagCollectionSharder,
    EmbeddingComputeKernel,
    RowWiseAdagrad,
    ShardingEnv,
    ShardingPlan,
    ShardingType,
    apply_optimizer_in_backward,
    construct_module_sharding_plan,
    data_parallel,
    row_wise,
    table_wise,
)
from mixdim.distributed.optimizers import check_table_optimizer
from mixdim.distributed.placement import REPLICATE_BELOW, Place, Sharding, place_tables
from mixdim.distributed.process_group import torchrec_warnings
from mixdim.distributed.sharded_learner import (
    SUM,
    SUM_BY_ROW,
    ShardedLearner,
    embeddings_in,
    inside,
)
from mixdim.training.learner import Rates
from mixdim.training.optimizers import OPTIMIZERS, check_weight_decays, optimizers_of
from mixdim.training.packed_rows import PackedRows

CLASSES: dict[str, Callable[..., Optimizer]] = {
    "sgd": SGD,
    "adagrad": Adagrad,
    "rowwise_adagrad": RowWiseAdagrad,
}
STATE = {"adagrad": SUM, "rowwise_adagrad": SUM_BY_ROW}  # what they keep of a table


def shard(
    model: nn.Module,
    *,
    lr: float,
    optimizer: str = "adagrad",
    device: torch.device | str = "cpu",
    table_lr: float | None = None,
    dense_optimizer: str | None = None,
    weight_decay: float = 0.0,
    table_decay: float | None = None,
    eps: float = 1e-10,
    sharding: Sharding = "auto",
    replicate_below: int = REPLICATE_BELOW,
) -> ShardedLearner:
    """Spread a model over all ranks of the process group; every rank calls this with the same model.

    - `model`: one that has been given a `ShardableEmbeddings`, on the CPU.
    - `optimizer` of tables: "sgd", "adagrad" or "rowwise_adagrad"; FBGEMM has no other on a CPU.
    - `dense_optimizer` of all else: any of "amsgrad", "adam", "adagrad" and "sgd"; that of tables if not
      given.
    - `lr`, `table_lr`: learning rates; the second is for tables.
    - `weight_decay`, `table_decay`: decoupled, as in `mixdim.training.TrainingOptions`.
    - `sharding`, `replicate_below`: who holds which table: see docs/distributed.md.
    """
    if not dist.is_initialized():
        raise ValueError(
            "there is no process group: start with torchrun and enter mixdim.distributed.init(), or "
            "call torch.distributed.init_process_group"
        )
    positive_number(lr, "lr")
    table_lr = lr if table_lr is None else positive_number(table_lr, "table_lr")
    check_weight_decays(weight_decay, table_decay, lr, table_lr)
    table_decay = weight_decay if table_decay is None else table_decay
    positive_number(eps, "eps")  # with 0, numbers that stand for nothing would become 0 / 0
    found = embeddings_in(model)
    if not found:
        raise ValueError("the model has no mixdim.distributed.ShardableEmbeddings to spread")
    dense_optimizer = dense_optimizer or optimizer.removeprefix("rowwise_")
    if dense_optimizer not in OPTIMIZERS:
        raise ValueError(
            f"dense_optimizer must be one of {', '.join(OPTIMIZERS)}, got {dense_optimizer!r}"
        )
    world, place = dist.get_world_size(), torch.device(device)
    sharder, places, plans = _Sharder(), {}, {}
    for path, embeddings in found.items():
        check_table_optimizer(optimizer, embeddings.block_tables, embeddings.feature_names)
        own = place_tables(
            embeddings.block_tables, world, sharding=sharding, replicate_below=replicate_below
        )
        places[path] = own
        for table in embeddings.block_tables:
            if own[table.name].kind != "data_parallel":
                weight = embeddings.tables.embedding_bags[table.name].weight
                settings = _settings(optimizer, table.layout, lr=table_lr, eps=eps)
                with torchrec_warnings():
                    apply_optimizer_in_backward(CLASSES[optimizer], [weight], settings)
        plans[inside(path, "tables")] = construct_module_sharding_plan(
            embeddings.tables,
            {name: _generator(own[name]) for name in own},
            sharder=sharder,
            local_size=min(world, torch.cuda.device_count()) if place.type == "cuda" else world,
            world_size=world,
            device_type=place.type,
        )
    with torchrec_warnings():
        spread = DistributedModelParallel(
            model,
            env=ShardingEnv.from_process_group(dist.group.WORLD),
            device=place,
            plan=ShardingPlan(plans),
            sharders=[sharder],
        )
    learner = ShardedLearner(
        spread,
        places,
        # Of row-wise Adagrad, too, options say "adagrad": only tables on TorchRec have it.
        rates=Rates(optimizer.removeprefix("rowwise_"), lr, table_lr, weight_decay, table_decay),
        kind=OPTIMIZERS[dense_optimizer],
        state_key=STATE.get(optimizer),
        device=place,
    )
    for path, held in learner.tables():
        # Autograd does not see what is written into `data`, such as a decay just before backward.
        parts = [(first, rows.data) for first, rows in held.parts]
        learner.embeddings[path].parts[held.table.name] = parts
    for embeddings in learner.embeddings.values():
        embeddings.draw_tables()
    _add_small_tables(learner, optimizer, table_lr, eps)
    dense = learner.dense
    dense.parts = optimizers_of(
        dense.kind,
        dense.parameters,
        (),
        sparse=set(),
        lr=lr,
        table_lr=table_lr,
        weight_decay=weight_decay,
        table_decay=table_decay,
    )
    learner.table_decay = table_lr * table_decay
    for embeddings in found.values():
        embeddings.records_numbers = learner.table_decay > 0
    return learner


def _add_small_tables(learner: ShardedLearner, optimizer: str, table_lr: float, eps: float) -> None:
    """Add the optimizer of the tables that every rank has."""
    parameters, small = dict(learner.model.named_parameters()), []
    for path, embeddings in learner.embeddings.items():
        for table in embeddings.block_tables:
            if learner.places[path][table.name].kind == "data_parallel":
                name = inside(path, f"tables.embedding_bags.{table.name}.weight")
                settings = _settings(optimizer, table.layout, lr=table_lr, eps=eps)
                small.append({"params": [parameters[name]], **settings})
    if small:
        learner.small_tables = CLASSES[optimizer](small)


class _Sharder(EmbeddingBagCollectionSharder):  # type: ignore[misc]  # torchrec has no types
    """That of TorchRec, which on a CPU does not offer to cut tables by rows, though it can."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        """The ways of `placement`."""
        return [
            kind.value
            for kind in (ShardingType.DATA_PARALLEL, ShardingType.TABLE_WISE, ShardingType.ROW_WISE)
        ]


def _generator(place: Place) -> Any:
    fused = EmbeddingComputeKernel.FUSED.value
    if place.kind == "data_parallel":
        return data_parallel()
    if place.kind == "row_wise":
        return row_wise(compute_kernel=fused)
    assert place.rank is not None
    return table_wise(rank=place.rank, compute_kernel=fused)


def _settings(optimizer: str, layout: PackedRows, *, lr: float, eps: float) -> dict[str, float]:
    """What an optimizer of tables is told.

    The row-wise one divides by the mean square over the stored width, of which only dim numbers are not
    0: sqrt(dim / width) makes it that over dim.
    """
    if optimizer == "sgd":
        return {"lr": lr}
    scale = math.sqrt(layout.dim / layout.width) if optimizer == "rowwise_adagrad" else 1.0
    return {"lr": lr * scale, "eps": eps * scale}
