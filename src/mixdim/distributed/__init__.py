"""Mixed dimensions on TorchRec: tables spread over processes, machines and GPUs.

TorchRec is imported when a name is first used: `make distributed` installs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixdim._util.lazy import names_later

if TYPE_CHECKING:
    from mixdim.distributed.checkpoint import load, save, to_layer
    from mixdim.distributed.embeddings import ShardableEmbeddings
    from mixdim.distributed.process_group import init
    from mixdim.distributed.sharded_learner import ShardedLearner
    from mixdim.distributed.sharding import shard
else:  # a type checker would take any name for one that is there
    __getattr__, __dir__ = names_later(
        globals(),
        names={
            "ShardableEmbeddings": "embeddings",
            "ShardedLearner": "sharded_learner",
            "init": "process_group",
            "load": "checkpoint",
            "save": "checkpoint",
            "shard": "sharding",
            "to_layer": "checkpoint",
        },
    )

__all__ = ["ShardableEmbeddings", "ShardedLearner", "init", "load", "save", "shard", "to_layer"]
