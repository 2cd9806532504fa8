"""Mixed dimensions on TorchRec: tables spread over processes, machines and GPUs.

TorchRec is imported when a name is first used: `make distributed` installs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixdim._util.lazy import names_later

if TYPE_CHECKING:
    from mixdim.distributed.checkpoints import load, save
    from mixdim.distributed.embeddings import ShardableEmbeddings
    from mixdim.distributed.joining import joined
    from mixdim.distributed.sharded import Sharded
    from mixdim.distributed.sharding import shard
    from mixdim.distributed.stored import to_layer
else:  # a type checker would take any name for one that is there
    __getattr__, __dir__ = names_later(
        globals(),
        names={
            "ShardableEmbeddings": "embeddings",
            "Sharded": "sharded",
            "joined": "joining",
            "load": "checkpoints",
            "save": "checkpoints",
            "shard": "sharding",
            "to_layer": "stored",
        },
    )

__all__ = ["ShardableEmbeddings", "Sharded", "joined", "load", "save", "shard", "to_layer"]
