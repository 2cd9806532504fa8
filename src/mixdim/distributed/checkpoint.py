"""Checkpoints of a sharded learner outside of a run, and of what it learned as a plain layer.

Knows no training loop. They are those of any run: see training/checkpoint.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixdim.distributed.process_group import ProcessGroup
from mixdim.layer.embedding import FeatureEmbeddings
from mixdim.planning.plan import Plan
from mixdim.training.checkpoint import CheckpointError, open_checkpoint, write_checkpoint
from mixdim.training.learner import MODEL, load_weights

if TYPE_CHECKING:
    from mixdim.distributed.sharded_learner import ShardedLearner


def save(learner: ShardedLearner, path: str | Path, state: Mapping[str, Any] | None = None) -> None:
    """Write a checkpoint of all ranks into the folder `path`; every rank calls it.

    `state` is anything that JSON can hold, such as the number of steps done; rank 0's is kept. The
    folder must be one that all machines see.
    """
    told = {"optimizer": learner.numbers(), "state": dict(state or {})}
    write_checkpoint(Path(path), learner.tensors(), told, group=ProcessGroup.current(learner.device))


def load(learner: ShardedLearner, path: str | Path) -> dict[str, Any]:
    """Take up a checkpoint, of any number of ranks and any sharding; returns the state kept with it.

    Every rank calls it, and reads the rows that it holds.
    """
    found = open_checkpoint(path, ProcessGroup.current(learner.device))
    try:
        learner.load(found.tensors, found.state["optimizer"])
    except ValueError as error:
        raise CheckpointError(f"{found.path} is of another model: {error}") from None
    return dict(found.state.get("state", {}))


def to_layer(path: str | Path, plan: Plan, **options: Any) -> FeatureEmbeddings:
    """The plain layer with the weights that a checkpoint holds, to the last bit.

    `options` are those of `mixdim.FeatureEmbeddings`. The model may have other parts, and one layer.
    """
    found = open_checkpoint(path)
    names = [name for name in found.tensors if name.startswith(MODEL)]
    prefixes = {name.rpartition("table_")[0] for name in names if "table_" in name.rpartition(".")[2]}
    if len(prefixes) != 1:
        raise CheckpointError(f"{found.path} must have the tables of one layer, got {len(prefixes)}")
    layer = FeatureEmbeddings(plan, device="meta", **options)
    layer.to_empty(device="cpu")
    try:
        load_weights(layer, found.tensors, prefixes.pop())
    except ValueError as error:
        raise CheckpointError(f"{found.path} is of another plan: {error}") from None
    return layer
