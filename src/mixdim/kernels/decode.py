"""Rows that are held as codes, decoded by a kernel. Knows nothing about blocks or projections."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mixdim.kernels.library import call, outside_of_graphs
from mixdim.kernels.pool import empty


class CodedTable(NamedTuple):
    """Codes and scales of several blocks: see `mixdim.storages.codes`."""

    codes: Tensor  # int8, or uint8 with two of 4 bits each
    scales: Tensor  # float16
    starts: Tensor  # int64 (blocks, 2): the numbers of the first code and of the first scale
    bits: int
    dim: int


@outside_of_graphs
def decode(table: CodedTable, rows: Tensor, slots: slice | Tensor | int) -> Tensor:
    """Decode rows of blocks: (C, B) of a slice of C, or (V,) of one or of one each -> (..., dim)."""
    codes, scales, starts = (tensor.contiguous() for tensor in table[:3])
    out = empty(*rows.shape, table.dim)
    if not rows.numel():
        return out
    blocks, block = None, 0
    if isinstance(slots, slice):
        own = torch.arange(slots.start or 0, slots.stop)[:, None]
        blocks = own.expand_as(rows).contiguous() if len(own) > 1 else None
        block = int(own[0])
    elif isinstance(slots, Tensor):
        blocks = slots.to(torch.int64).expand_as(rows).contiguous()
    else:
        block = slots
    rows = rows.contiguous()
    arguments = (
        *(codes, codes.numel() * 8 // table.bits, scales, scales.numel(), starts, len(starts)),
        *(table.bits, table.dim, rows, rows.numel(), blocks, block, out),
    )
    bad = call("mixdim_take_rounded", *arguments)
    if bad != rows.numel():
        raise IndexError(f"row {int(rows.flatten()[bad])} is not in the table of codes")
    return out
