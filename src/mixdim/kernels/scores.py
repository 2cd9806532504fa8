"""Dot products of two tables, with their gradients. Eager code only: a graph takes the plain path."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mixdim.kernels.library import address, call, outside_of_graphs
from mixdim.kernels.lookup import RowGradients, Sorted
from mixdim.kernels.structs import FINE, LayerStructs, Lookup, damaged_order, require_shape


class _SideStructs(LayerStructs):
    """One side for the kernels, with the place of each block among the rows of the gram matrix."""

    def __init__(self, side: Lookup) -> None:
        super().__init__(side)
        widths = self.layout.width
        self.starts, self.gram_rows = np.cumsum(widths) - widths, int(widths.sum())
        self.struct = np.array([address(a) for a in (self.layer, self.ids, self.starts)])


class _DotScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, users: Lookup, items: Lookup, gram: Tensor, *tables: Tensor) -> Tensor:
        ctx.layers, kept = (users.unchangeable(), items.unchangeable()), users.changeable()
        ctx.num_kept = len(kept)
        ctx.save_for_backward(gram, *kept, *items.changeable())
        sides = [_SideStructs(side) for side in (users, items)]
        gram = gram.contiguous()
        _check_gram(gram, sides)
        out = torch.empty(len(users.ids))
        wrong = call("mixdim_scores", *(side.struct for side in sides), gram, gram.shape[1], out)
        _raise_if_wrong(sides, wrong)
        return out

    @staticmethod
    @once_differentiable  # second derivatives are for the plain path: MIXDIM_KERNELS=off
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        gram, *kept = ctx.saved_tensors
        halves = (kept[: ctx.num_kept], kept[ctx.num_kept :])
        request = [Lookup.of_kept(*half) for half in zip(ctx.layers, halves, strict=True)]
        return (None, None, *_backward(request, gram, gradients[0]))


@outside_of_graphs
def _backward(request: list[Lookup], gram: Tensor, gradient: Tensor) -> list[Tensor]:
    """The gradients of the gram matrix, in which lifts are, and of the tables of both sides."""
    gram, gradient = gram.contiguous(), gradient.contiguous()
    sides = [_SideStructs(side) for side in request]
    _check_gram(gram, sides)
    structs = [side.struct for side in sides]
    sorted_ids = [Sorted(side) for side in sides]
    places = [place for ids in sorted_ids for place in (ids.rows, ids.values, ids.runs)]
    _raise_if_wrong(sides, call("mixdim_scores_sort", *structs, *places))
    to = [RowGradients(*pair) for pair in zip(sides, sorted_ids, strict=True)]
    gram_gradient = torch.zeros_like(gram)
    users, items = [
        (ids.runs, ids.rows, ids.values, rows.structs) for ids, rows in zip(sorted_ids, to, strict=True)
    ]
    grams = (gram, gram.shape[1])
    wrong = call("mixdim_scores_back", *structs, *grams, *users, *items, gradient, gram_gradient)
    _raise_if_wrong(sides, wrong)
    pairs = zip(request, to, strict=True)
    return [gram_gradient, *(table for side, rows in pairs for table in rows.of_tables(side.layer))]


def _check_gram(gram: Tensor, sides: list[_SideStructs]) -> None:
    require_shape(gram, "gram", (sides[0].gram_rows, sides[1].gram_rows))


def _raise_if_wrong(sides: list[_SideStructs], returned: int) -> None:
    """Raise for the side whose ids are out of range, if a kernel returned that there is one."""
    if returned == FINE:
        return
    for side in sides:
        side.check_ids()
    raise damaged_order()


@outside_of_graphs
def dot_scores(users: Lookup, items: Lookup, gram: Tensor) -> Tensor:
    """Return u G v^T for each user and item, G being the part of `gram` for their blocks: -> (B,)."""
    tables = (*users.layer.tables, *items.layer.tables)
    return _DotScores.apply(users, items, gram, *tables)  # type: ignore[no-untyped-call]  # torch has no type for it
