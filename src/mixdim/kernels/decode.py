"""Rows that are held as codes, decoded by a kernel. Knows nothing about blocks or projections."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mixdim.kernels.library import call, outside_of_graphs
from mixdim.kernels.pool import empty
from mixdim.kernels.structs import WIDTHS, Codes, struct_of


class CodedTable(NamedTuple):
    """Codes and steps of several blocks with the same code: see `mixdim.storages.codes`."""

    codes: Tensor  # uint8
    steps: Tensor  # float16 (blocks, directions)
    places: Tensor  # int64 (blocks, 2): the first byte of each, and its rows
    levels: Tensor  # float32, of all numbers of bits
    bits: tuple[int, ...]  # by direction
    mean: bool  # whether a one follows


@outside_of_graphs
def decode(table: CodedTable, rows: Tensor, slots: slice | Tensor | int) -> Tensor:
    """Decode rows of blocks: (C, B) of a slice of C, or (V,) of one or of one each -> (..., dim)."""
    codes, steps, places = (tensor.contiguous() for tensor in table[:3])
    dim = len(table.bits) + table.mean
    out = empty(*rows.shape, dim)
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
    tensors = struct_of(Codes(codes, steps.view(-1), None, table.levels))
    directions = np.array([table.bits.count(own) for own in WIDTHS])
    which = (places, len(places), directions, table.mean, dim)
    bad = call("mixdim_take_coded", tensors, *which, rows, rows.numel(), blocks, block, out)
    if bad != rows.numel():
        raise IndexError(f"row {int(rows.flatten()[bad])} is not in the table of codes")
    return out
