"""Data parallel training of tables with row-sparse gradients. Knows nothing about what is in a table."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_DDP = nn.parallel.DistributedDataParallel


class DistributedDataParallel(_DDP):
    """PyTorch's DistributedDataParallel, that knows of the row-sparse gradients of mixdim's tables too.

    PyTorch's own takes only the gradients of nn.Embedding(sparse=True) for row-sparse, and fails on
    others in the backward pass. Takes the same arguments; row-sparse gradients need the backend "gloo".
    """

    def _build_params_for_reducer(self) -> tuple[list[Any], list[bool]]:
        parameters, row_sparse = super()._build_params_for_reducer()  # type: ignore[no-untyped-call]  # torch has no type for it
        tables = {
            id(table)
            for module in self.module.modules()
            for table in getattr(module, "row_sparse_tables", ())
        }
        known = zip(parameters, row_sparse, strict=True)
        return parameters, [expected or id(parameter) in tables for parameter, expected in known]


def refuse_plain_data_parallel() -> None:
    """Raise early, with what to do, where PyTorch's own class would fail on a row-sparse gradient."""
    active = getattr(_DDP, "_active_ddp_module", None)
    if active is None or isinstance(active, DistributedDataParallel) or not torch.is_grad_enabled():
        return
    raise RuntimeError(
        "torch's DistributedDataParallel cannot reduce the row-sparse gradients of this layer: wrap the "
        "model in mixdim.DistributedDataParallel, or make the layer with sparse=False"
    )
