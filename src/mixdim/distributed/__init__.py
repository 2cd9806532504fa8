"""Mixed dimensions on TorchRec: tables spread over processes, machines and GPUs.

TorchRec is imported when a name is first used: `make distributed` installs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mixdim.distributed.checkpoints import load as load
    from mixdim.distributed.checkpoints import save as save
    from mixdim.distributed.embeddings import ShardableEmbeddings as ShardableEmbeddings
    from mixdim.distributed.joining import joined as joined
    from mixdim.distributed.sharded import Sharded as Sharded
    from mixdim.distributed.sharding import shard as shard
    from mixdim.distributed.stored import to_layer as to_layer

_PLACES = {
    "ShardableEmbeddings": "embeddings",
    "Sharded": "sharded",
    "shard": "sharding",
    "joined": "joining",
    "save": "checkpoints",
    "load": "checkpoints",
    "to_layer": "stored",
}

__all__ = ["ShardableEmbeddings", "Sharded", "joined", "load", "save", "shard", "to_layer"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'mixdim.distributed' has no attribute {name!r}")
    return getattr(import_module(f"mixdim.distributed.{_PLACES[name]}"), name)
