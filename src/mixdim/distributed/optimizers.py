"""The optimizers that TorchRec has for tables on a CPU. Knows nothing about TorchRec."""

from __future__ import annotations

from collections.abc import Sequence

from mixdim.distributed.tables import BlockTable

TABLE_OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad")


def check_table_optimizer(name: str, tables: Sequence[BlockTable], features: Sequence[str]) -> None:
    """Refuse an optimizer that FBGEMM does not have for sharded tables, or not for these."""
    if name not in TABLE_OPTIMIZERS:
        raise ValueError(
            f"optimizer must be one of {', '.join(TABLE_OPTIMIZERS)} for tables on TorchRec, whose "
            f"kernels have no other on a CPU, got {name!r}"
        )
    if name != "rowwise_adagrad":
        return
    for table in tables:
        if table.layout.fold > 1:
            raise ValueError(
                f"optimizer 'rowwise_adagrad' keeps one number for a stored row, and feature "
                f"{features[table.block.feature]!r} has {table.layout.fold} rows of width "
                f"{table.layout.dim} in each: use 'adagrad', or widths from 3 on"
            )
