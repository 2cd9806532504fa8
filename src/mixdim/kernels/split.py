"""Lookup and interaction in the split form by the kernels, with its gradient. See split.h.

Knows nothing about modules. What the forward pass prepares is kept for the backward pass, in memory that
nobody else sees.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mixdim.kernels.forms import SplitForm
from mixdim.kernels.library import address, call, outside_of_graphs
from mixdim.kernels.lookup import RowGradients, Sorted, projection_gradients, sort_ids
from mixdim.kernels.pool import Borrowed
from mixdim.kernels.structs import LayerStructs, Lookup, require_shape

ALIGNED = 16  # floats of a cache line


class Room:
    """Offsets in one buffer, for one array after the other."""

    def __init__(self) -> None:
        self.size = 0

    def take(self, count: int) -> int:
        """Where the next array begins, in floats."""
        start, self.size = self.size, self.size + (count + ALIGNED - 1) // ALIGNED * ALIGNED
        return start


class Prepared:
    """The structs of split.h for one lookup, and the memory they point to."""

    def __init__(self, form: SplitForm, batch: int, uniques: np.ndarray) -> None:
        room, num_values = Room(), form.num_features * batch
        entries = np.where(form.is_one_hot, form.sizes, uniques)
        later = form.columns - form.later[form.position]
        q, gram = room.take(form.columns * form.stride), room.take(form.columns**2)
        z_weight, z = room.take(form.z_columns * form.base_dim), room.take(form.z_columns * batch)
        arrays = np.zeros((len(entries), 3), np.int64)  # x, y, lifted
        for b in np.flatnonzero(~form.is_one_hot):
            arrays[b, 0] = room.take(int(entries[b] * form.padded[b]))
            arrays[b, 1] = room.take(int(entries[b] * later[b]))
            if form.is_lifted[b]:
                arrays[b, 2] = room.take(int(entries[b] * form.stride))
        # Of one-hot blocks, y and the lifted rows are rows of the Gram matrix and of Q.
        hot = form.is_one_hot
        arrays[hot, 1] = gram + form.column[hot] * form.columns + form.later[form.position[hot]]
        arrays[hot, 2] = q + form.column[hot] * form.stride
        self.num_floats = room.size  # what has a gradient; places and entries have none
        places, entry_of = room.take(2 * num_values), room.take(num_values)
        hot_columns = room.take(form.num_one_hot * batch)
        self.memory = Borrowed(room.size)
        at = self.memory.address
        arrays = at() + 4 * arrays
        arrays[hot, 0] = 0
        arrays[~form.is_lifted, 2] = 0
        y_stride = np.where(hot, form.columns, later)
        columns = [
            form.position, form.column, form.width, form.padded, form.later[form.position], hot, form.is_lifted, form.z_column,
            hot, np.zeros_like(entries), entries, arrays[:, 0], arrays[:, 1], y_stride, arrays[:, 2],
        ]  # fmt: skip
        self.blocks = np.ascontiguousarray(np.stack(columns, axis=1).astype(np.int64))
        self.form = form  # keeps what its arrays point to
        described = (form.order, form.later, form.elements, form.element_start, form.dense_column, form.element_column)
        pointers = (address(self.blocks), *map(address, described))
        sizes = (form.num_features, form.num_one_hot, batch, form.base_dim)
        sizes += (form.columns, form.narrow, form.z_columns, form.stride)
        parts = (at(q), at(gram), at(z_weight), at(z), at(places), at(hot_columns), at(entry_of))
        self.struct = np.array([*pointers, *sizes, *parts], np.int64)


@outside_of_graphs
def split_interaction(dense: Tensor, asked: Lookup, form: SplitForm) -> Tensor:
    """Look ids (B, F) up and let them interact, as `dot_interaction` of the vectors. Eager code only."""
    parameters = (*asked.layer.tables, *asked.layer.projections)
    return _SplitInteraction.apply(asked, form, dense, *parameters)  # type: ignore[no-untyped-call]  # torch has no type for it


class _SplitInteraction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, asked: Lookup, form: SplitForm, dense: Tensor, *parameters: Tensor) -> Tensor:
        ctx.layer, ctx.form = asked.unchangeable(), form
        ctx.save_for_backward(dense, *asked.changeable())
        structs, dense = LayerStructs(asked), dense.contiguous()
        require_shape(dense, "dense", (structs.batch, form.base_dim))
        ctx.ids = ids = sort_ids(structs)
        ctx.prepared = prepared = Prepared(form, structs.batch, ids.runs[:, 2])
        call("mixdim_split_weights", structs.layer, prepared.struct, ids.runs, ids.rows)
        call("mixdim_split_entries", structs.layer, prepared.struct, ids.runs, ids.rows)
        return _interact(structs, form, prepared, ids, dense)

    @staticmethod
    @once_differentiable  # second derivatives are for the plain path: MIXDIM_KERNELS=off
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        dense, *kept = ctx.saved_tensors
        asked = Lookup.of_kept(ctx.layer, kept)
        return (None, None, *_backward(asked, ctx.form, ctx.prepared, ctx.ids, dense, gradients[0]))


def _interact(
    structs: LayerStructs, form: SplitForm, prepared: Prepared, ids: Sorted, dense: Tensor
) -> Tensor:
    num_features, batch = form.num_features, structs.batch
    out = torch.empty(batch, form.base_dim + num_features * (num_features + 1) // 2)
    work = Borrowed((form.stride // 32 + 1) * num_features * batch)
    sorted_ids = (ids.runs, ids.rows, ids.values)
    call(
        "mixdim_split_interact",
        *(structs.layer, prepared.struct, *sorted_ids, dense, work.address(), out),
    )
    return out


@outside_of_graphs
def _backward(
    asked: Lookup, form: SplitForm, prepared: Prepared, ids: Sorted, dense: Tensor, gradient: Tensor
) -> list[Tensor]:
    """The gradients of the dense vectors, of all tables, and of all projections."""
    structs, dense, gradient = LayerStructs(asked), dense.contiguous(), gradient.contiguous()
    require_shape(dense, "dense", (structs.batch, form.base_dim))
    to = RowGradients(structs, ids)
    projections = projection_gradients(structs, to)
    dense_gradient = torch.empty_like(dense)
    per_sample = form.num_features + form.num_elements + 2 * (form.columns - form.narrow)
    memory, work = Borrowed(prepared.num_floats), Borrowed(per_sample * structs.batch)
    offset = (memory.address() - prepared.memory.address()) // 4
    call(
        "mixdim_split_back",
        *(structs.layer, prepared.struct, ids.runs, ids.rows, ids.values, dense, gradient),
        *(work.address(), form.num_elements, offset, dense_gradient, to.structs),
    )
    return [dense_gradient, *to.of_tables(asked.layer), *projections]
