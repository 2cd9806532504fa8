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
from mixdim.kernels.lookup import RowGradients, Sorted, sort_ids
from mixdim.kernels.pool import Borrowed, empty
from mixdim.kernels.structs import LayerArguments, LayerStructs, Lookup, require_shape

# The structs of split.h.
BLOCK = np.dtype({
    "names": [
        "position", "column", "width", "padded", "later", "is_one_hot", "is_lifted", "z_column",
        "has_all_rows", "is_ready", "entries", "y_stride", "x", "y", "lifted",
    ],
    "formats": [np.int64] * 15,
})  # fmt: skip
SPLIT = np.dtype({
    "names": [
        "blocks", "order", "later", "elements", "element_start", "dense_column", "element_column",
        "pair_column", "num_features", "num_one_hot", "batch", "base_dim", "columns", "narrow",
        "z_columns", "stride", "q", "gram", "z_weight", "z", "places", "hot_columns", "entry_of",
    ],
    "formats": [np.int64] * 23,
})  # fmt: skip
CACHE_LINE = 16  # floats
MOST_KEPT = 2**24  # floats of rows that are prepared for a whole evaluation


class Room:
    """One buffer for many arrays, whose addresses go into structs."""

    def __init__(self) -> None:
        self.size, self._wanted = 0, list[tuple[np.ndarray, int, int]]()

    def take(self, struct: np.ndarray, name: str, count: int, index: int = 0) -> None:
        """Let a field point to `count` floats."""
        self._wanted.append((struct[name], index, self.size))
        self.size += (count + CACHE_LINE - 1) // CACHE_LINE * CACHE_LINE

    def settle(self) -> Borrowed:
        """Get the memory, and fill in the addresses."""
        memory = Borrowed(self.size)
        for field, index, start in self._wanted:
            field[index] = memory.address(start)
        return memory


class Prepared:
    """The structs of split.h for one lookup, and the memory they point to.

    Of each block so many `entries` are prepared, or, on demand, all rows. Of the blocks
    that `kept` has with all rows, and of weights alone, nothing is prepared again.
    """

    def __init__(
        self,
        form: SplitForm,
        batch: int,
        entries: np.ndarray,
        *,
        all_rows: np.ndarray | None = None,
        kept: Prepared | None = None,
    ) -> None:
        self.form, self.kept = form, kept  # which has what is pointed to
        self.blocks, self.struct = np.zeros(len(form.sizes), BLOCK), np.zeros(1, SPLIT)
        blocks, struct, room, hot = self.blocks, self.struct, Room(), form.is_one_hot
        for name in ("position", "column", "width", "padded", "is_one_hot", "is_lifted", "z_column"):
            blocks[name] = getattr(form, name)
        blocks["later"] = form.later[form.position]
        blocks["y_stride"] = np.where(hot, form.columns, form.columns - blocks["later"])
        blocks["has_all_rows"] = hot if all_rows is None else hot | all_rows
        blocks["is_ready"] = hot
        if kept is not None:
            ready = kept.blocks["has_all_rows"] > 0
            blocks[ready] = kept.blocks[ready]
            blocks["is_ready"][ready] = 1
        blocks["entries"] = np.where(blocks["has_all_rows"], form.sizes, entries)
        for name in (
            "num_features",
            "num_one_hot",
            "base_dim",
            "columns",
            "narrow",
            "z_columns",
            "stride",
        ):
            struct[name] = getattr(form, name)
        for name in (
            "order",
            "later",
            "elements",
            "element_start",
            "dense_column",
            "element_column",
            "pair_column",
        ):
            struct[name] = address(getattr(form, name))
        struct["blocks"], struct["batch"] = address(blocks), batch
        self._place(room, batch)

    def _place(self, room: Room, batch: int) -> None:
        form, blocks, struct = self.form, self.blocks, self.struct
        if self.kept is None:
            room.take(struct, "q", form.columns * form.stride)
            room.take(struct, "gram", form.columns**2)
            room.take(struct, "z_weight", form.z_columns * form.base_dim)
        room.take(struct, "z", form.z_columns * batch)
        for b in np.flatnonzero(blocks["is_ready"] == 0).tolist():
            entries = int(blocks["entries"][b])
            room.take(blocks, "x", entries * int(form.padded[b]), b)
            room.take(blocks, "y", entries * int(blocks["y_stride"][b]), b)
            if form.is_lifted[b]:
                room.take(blocks, "lifted", entries * form.stride, b)
        self.num_floats = room.size  # what has a gradient; what follows has none
        room.take(struct, "places", 2 * form.num_features * (batch + CACHE_LINE))
        room.take(struct, "hot_columns", form.num_one_hot * batch)
        room.take(struct, "entry_of", form.num_features * batch)
        self.memory = room.settle()
        if self.kept is not None:
            for name in ("q", "gram", "z_weight"):
                struct[name] = self.kept.struct[name]
        # Of one-hot blocks, y and the lifted rows are rows of the Gram matrix and of Q.
        hot, column = form.is_one_hot, form.column
        blocks["y"][hot] = (struct["gram"] + 4 * (column * form.columns + blocks["later"]))[hot]
        blocks["lifted"][hot] = (struct["q"] + 4 * column * form.stride)[hot]


class KeptWeights:
    """What follows from weights alone, with rows where they are few: for lookups without gradients."""

    def __init__(self, layer: LayerArguments, form: SplitForm) -> None:
        self.versions = versions_of(layer)
        floats = form.sizes * (form.padded + form.columns - form.later[form.position] + form.stride)
        smallest_first = np.argsort(floats)
        few = np.zeros(len(floats), bool)
        few[smallest_first] = np.cumsum(floats[smallest_first]) <= MOST_KEPT
        self.prepared = Prepared(form, 0, np.zeros_like(floats), all_rows=few)
        nothing = layer.features.new_zeros(0, len(layer.features))
        structs = LayerStructs(Lookup(nothing, None, None, layer))
        call("mixdim_split_weights", structs.layer, self.prepared.struct, None, None)
        none = np.zeros((len(floats), 3), np.int64)  # runs of blocks that are not prepared
        call("mixdim_split_entries", structs.layer, self.prepared.struct, none, None)

    def is_of(self, layer: LayerArguments) -> bool:
        """Whether nothing has changed since, as far as PyTorch knows."""
        return self.versions == versions_of(layer)


def versions_of(layer: LayerArguments) -> list[tuple[int, int]]:
    """Where weights are, and how often they have been changed; an inference tensor does not count."""
    weights = [w for w in (layer.lift, *layer.tables) if w is not None]
    return [(w.data_ptr(), -1 if w.is_inference() else w._version) for w in weights]


@outside_of_graphs
def split_interaction(
    dense: Tensor, request: Lookup, form: SplitForm, kept: KeptWeights | None = None
) -> Tensor:
    """Look ids (B, F) up and let them interact, as `dot_interaction` of the vectors. Eager code only.

    With `kept`, which must be of the same layer as it is now, there is no gradient.
    """
    if kept is not None:
        structs = LayerStructs(request)
        ids = sort_ids(structs)
        prepared = Prepared(form, structs.batch, ids.runs[:, 2], kept=kept.prepared)
        call("mixdim_split_entries", structs.layer, prepared.struct, ids.runs, ids.rows)
        return _interact(structs, prepared, ids, dense)
    return _SplitInteraction.apply(request, form, dense, *request.parameters)  # type: ignore[no-untyped-call]  # torch has no type for it


class _SplitInteraction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, request: Lookup, form: SplitForm, dense: Tensor, *parameters: Tensor | None
    ) -> Tensor:
        ctx.layer = request.unchangeable()
        ctx.save_for_backward(dense, *request.changeable())
        structs = LayerStructs(request)
        ctx.ids = ids = sort_ids(structs)
        ctx.prepared = prepared = Prepared(form, structs.batch, ids.runs[:, 2])
        call("mixdim_split_weights", structs.layer, prepared.struct, ids.runs, ids.rows)
        call("mixdim_split_entries", structs.layer, prepared.struct, ids.runs, ids.rows)
        return _interact(structs, prepared, ids, dense)

    @staticmethod
    @once_differentiable  # second derivatives are for the plain path: MIXDIM_KERNELS=off
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        dense, *kept = ctx.saved_tensors
        request = Lookup.of_kept(ctx.layer, kept)
        return (None, None, *_backward(request, ctx.prepared, ctx.ids, dense, gradients[0]))


def _interact(structs: LayerStructs, prepared: Prepared, ids: Sorted, dense: Tensor) -> Tensor:
    form, batch, dense = prepared.form, structs.batch, dense.contiguous()
    require_shape(dense, "dense", (batch, form.base_dim))
    out = empty(batch, form.base_dim + form.num_features * (form.num_features + 1) // 2)
    sorted_ids = (ids.runs, ids.rows, ids.values)
    call("mixdim_split_interact", structs.layer, prepared.struct, *sorted_ids, dense, out)
    return out


@outside_of_graphs
def _backward(
    request: Lookup, prepared: Prepared, ids: Sorted, dense: Tensor, gradient: Tensor
) -> list[Tensor | None]:
    """The gradients of the dense vectors, and of `Lookup.parameters`."""
    structs, form, dense, gradient = (
        LayerStructs(request),
        prepared.form,
        dense.contiguous(),
        gradient.contiguous(),
    )
    require_shape(dense, "dense", (structs.batch, form.base_dim))
    to = RowGradients(structs, ids)
    to.add_lift(structs)
    dense_gradient = empty(*dense.shape)
    per_sample = form.num_features + form.num_elements + 2 * (form.columns - form.narrow)
    memory = Borrowed(prepared.num_floats)
    work = Borrowed(per_sample * structs.batch + CACHE_LINE * form.num_features)
    offset = (memory.address() - prepared.memory.address()) // 4
    sorted_ids = (ids.runs, ids.rows, ids.values)
    call(
        "mixdim_split_back",
        *(structs.layer, prepared.struct, *sorted_ids, dense, gradient, work.address()),
        *(form.num_elements, offset, dense_gradient, to.structs),
    )
    return [dense_gradient, *to.of_parameters(request.layer)]
