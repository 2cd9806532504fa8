"""Dot products of two tables, with their gradients. Eager code only: a graph takes the plain path."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mixdim.ids import check_ids
from mixdim.kernels.library import call
from mixdim.kernels.lookup import (
    LayerArguments,
    LayerStructs,
    RowGradients,
    Sorted,
    damaged_order,
    table_gradient,
)


class Side(NamedTuple):
    """The ids (B,) of one side of the product, and the layer of one feature that they belong to."""

    ids: Tensor
    layer: LayerArguments


class _SideStructs(LayerStructs):
    """One side for the kernels, with the place of each block among the rows of the gram matrix."""

    def __init__(self, side: Side) -> None:
        super().__init__(side.ids[:, None], None, None, side.layer)
        widths = self.widths[self.blocks[:, 3]]
        self.starts = np.cumsum(widths) - widths
        self.struct = np.array([a.ctypes.data for a in (self.layer, self.ids, self.starts)])


class _DotScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, users: Side, items: Side, gram: Tensor, *tables: Tensor) -> Tensor:
        sides = [_SideStructs(side) for side in (users, items)]
        gram = gram.contiguous()
        out = torch.empty(len(users.ids))
        if call("mixdim_scores", *(side.struct for side in sides), gram, gram.shape[1], out) >= 0:
            for ids, layer in (users, items):
                check_ids(ids, layer.features[:, 0], layer.padding_id, layer.names)
            raise damaged_order()
        ctx.sides = (users, items)
        ctx.save_for_backward(gram, *tables)
        return out

    @staticmethod
    @once_differentiable  # second derivatives are for the plain path: MIXDIM_KERNELS=off
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        gram = ctx.saved_tensors[0]
        users, items = (_SideStructs(side) for side in ctx.sides)
        sorted_ids = [Sorted(side) for side in (users, items)]
        places = [(ids.rows, ids.values, ids.runs) for ids in sorted_ids]
        call("mixdim_scores_sort", users.struct, items.struct, *places[0], *places[1])
        row_gradients = [RowGradients(*pair) for pair in zip((users, items), sorted_ids, strict=True)]
        gram_gradient = torch.zeros_like(gram)
        sides = [
            (ids.runs, ids.rows, ids.values, to.structs)
            for ids, to in zip(sorted_ids, row_gradients, strict=True)
        ]
        call(
            "mixdim_scores_back",
            users.struct,
            items.struct,
            gram,
            gram.shape[1],
            *sides[0],
            *sides[1],
            gradients[0].contiguous(),
            gram_gradient,
        )
        table_gradients = [
            table_gradient(table, rows, values, sparse=side.layer.sparse)
            for side, to in zip(ctx.sides, row_gradients, strict=True)
            for table, (rows, values) in zip(side.layer.tables, to.tables, strict=True)
        ]
        return (None, None, gram_gradient, *table_gradients)


def dot_scores(users: Side, items: Side, gram: Tensor) -> Tensor:
    """Return u G v^T for each user and item, G being the part of `gram` for their blocks: -> (B,)."""
    tables = (*users.layer.tables, *items.layer.tables)
    return _DotScores.apply(users, items, gram, *tables)  # type: ignore[no-untyped-call]  # torch has no type for it
