"""Rows of rounded tables, decoded by a kernel. Knows nothing about blocks or projections."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mixdim import kernels
from mixdim.kernels.library import call, outside_of_graphs


class RoundedTable(NamedTuple):
    """Codes and scales of several blocks: see `mixdim.storages.rounding`."""

    codes: Tensor  # int8, or uint8 with two of 4 bits each
    scales: Tensor  # float16
    starts: Tensor  # int64 (blocks, 2): the numbers of the first code and of the first scale
    bits: int
    dim: int
    group: int


def takes(table: RoundedTable, rows: Tensor) -> bool:
    """Whether the kernel can take these rows: not in a graph, nor elsewhere than in this memory."""
    if not kernels.available() or torch.compiler.is_compiling() or kernels.exporting():
        return False
    tensors = (table.codes, table.scales, table.starts, rows)
    if not all(type(tensor) is Tensor and tensor.is_cpu for tensor in tensors):
        return False
    kinds = (torch.float16, torch.int64, torch.int64)
    return tuple(tensor.dtype for tensor in tensors[1:]) == kinds


@outside_of_graphs
def take(table: RoundedTable, rows: Tensor, slots: slice | Tensor | int) -> Tensor:
    """Decode rows of blocks: (C, B) of a slice of C, or (V,) of one or of one each -> (..., dim)."""
    codes, scales, starts = (tensor.contiguous() for tensor in table[:3])
    out = torch.empty(*rows.shape, table.dim)
    if not rows.numel():
        return out
    blocks, first, a_block = None, 0, rows.numel()
    if isinstance(slots, slice):
        first, a_block = slots.start or 0, rows.shape[1]
    elif isinstance(slots, Tensor):
        blocks = slots.to(torch.int64).expand_as(rows).contiguous()
    else:
        first = slots
    rows = rows.contiguous()
    arguments = (
        *(codes, codes.numel() * 8 // table.bits, scales, scales.numel(), starts, len(starts)),
        *(table.bits, table.dim, table.group, rows, rows.numel(), blocks, first, a_block, out),
    )
    bad = call("mixdim_take_rounded", *arguments)
    if bad != rows.numel():
        raise IndexError(f"row {int(rows.flatten()[bad])} is not in the rounded table")
    return out
