"""The names of TorchRec that mixdim uses, imported without what it warns of. Knows nothing else."""

from __future__ import annotations

from mixdim.distributed.process_group import torchrec_warnings

try:
    with torchrec_warnings():
        from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor, KeyedTensor
        from torchrec.distributed import DistributedModelParallel, ShardingEnv
        from torchrec.distributed.embedding_types import EmbeddingComputeKernel
        from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
        from torchrec.distributed.sharding_plan import (
            construct_module_sharding_plan,
            data_parallel,
            row_wise,
            table_wise,
        )
        from torchrec.distributed.types import ShardingPlan, ShardingType
        from torchrec.optim import RowWiseAdagrad, apply_optimizer_in_backward
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"mixdim.distributed needs {error.name}: make distributed, or see docs/distributed.md",
        name=error.name,
    ) from None

__all__ = [
    "DistributedModelParallel",
    "EmbeddingBagCollection",
    "EmbeddingBagCollectionSharder",
    "EmbeddingBagConfig",
    "EmbeddingComputeKernel",
    "KeyedJaggedTensor",
    "KeyedTensor",
    "RowWiseAdagrad",
    "ShardingEnv",
    "ShardingPlan",
    "ShardingType",
    "apply_optimizer_in_backward",
    "construct_module_sharding_plan",
    "data_parallel",
    "row_wise",
    "table_wise",
]
