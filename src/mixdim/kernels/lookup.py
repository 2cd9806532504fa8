"""The layer's lookup by the kernels, with its gradients, for eager code and for compiled graphs.

Knows nothing about modules. Letters as in native.cpp: B samples, F features, V values of bags.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mixdim.kernels.library import call, outside_of_graphs
from mixdim.kernels.structs import (
    KernelLayout,
    LayerArguments,
    LayerStructs,
    Lookup,
    samples_of,
)


class Sorted:
    """The ids of a lookup sorted by row, block by block; a kernel fills it."""

    def __init__(self, structs: LayerStructs) -> None:
        self.rows, self.values = torch.empty(2, structs.num_values, dtype=torch.int32)
        self.runs = np.zeros((len(structs.layout.start), 3), dtype=np.int64)  # first, count, uniques


class RowGradients:
    """Room for the gradients of the rows that sorted ids touch, each row once."""

    def __init__(self, structs: LayerStructs, ids: Sorted) -> None:
        layout = structs.layout
        number, first_row = layout.number, layout.first_row
        uniques = ids.runs[:, 2]
        self.structs = np.zeros((len(number), 4), dtype=np.int64)
        self.structs[:, 3] = first_row
        self.tables: list[tuple[Tensor, Tensor]] = []  # of each table: its rows, their gradients
        for n, width in enumerate(structs.layout.widths):
            mine = np.flatnonzero(number == n)
            mine = mine[np.argsort(first_row[mine])]
            ends = np.cumsum(uniques[mine])
            starts = ends - uniques[mine]
            rows, values = torch.empty(ends[-1], dtype=torch.int64), torch.empty(ends[-1], width)
            self.structs[mine, 0] = rows.data_ptr() + rows.itemsize * starts
            self.structs[mine, 1] = values.data_ptr() + values.itemsize * width * starts
            self.tables.append((rows, values))
        self.lift: Tensor | None = None

    def add_lift(self, structs: LayerStructs) -> None:
        """Make room for the gradient of the lift too, for a kernel to fill."""
        layout, lift = structs.layout, structs.arguments.lift
        if lift is None or not layout.lift_rows:
            return
        # Rows of other storages get nothing here; all others are written.
        is_whole = layout.lifts_all and len(lift) == layout.lift_rows
        self.lift = torch.empty_like(lift) if is_whole else torch.zeros_like(lift)
        lifted = layout.lift_row >= 0
        places = self.lift.data_ptr() + 4 * layout.base_dim * layout.lift_row
        self.structs[lifted, 2] = places[lifted]

    def of_parameters(self, layer: LayerArguments) -> list[Tensor | None]:
        """The gradients of `Lookup.parameters`, once a kernel has filled in what is touched."""
        return [self.lift, *self.of_tables(layer)]

    def of_tables(self, layer: LayerArguments) -> list[Tensor]:
        """Those of whole tables."""
        pairs = zip(layer.tables, self.tables, strict=True)
        if layer.sparse:
            options: dict[str, Any] = {"is_coalesced": True, "check_invariants": False}
            return [torch.sparse_coo_tensor(r[None], v, t.shape, **options) for t, (r, v) in pairs]
        return [torch.zeros_like(t).index_copy_(0, r, v) for t, (r, v) in pairs]


def sort_ids(structs: LayerStructs) -> Sorted:
    """Sort the ids of a lookup, or raise an IndexError for one out of range."""
    ids = Sorted(structs)
    wrong = call("mixdim_sort", structs.layer, structs.ids, ids.rows, ids.values, ids.runs)
    structs.raise_if_wrong(wrong)
    return ids


def weight_gradients(
    structs: LayerStructs, gradient: Tensor | int, sample_stride: int | None = None
) -> list[Tensor | None]:
    """From the gradient of the vectors (B, F, D) to those of `Lookup.parameters`.

    Its samples are `sample_stride` floats apart, F * D unless that is said.
    """
    ids = sort_ids(structs)
    to = RowGradients(structs, ids)
    to.add_lift(structs)
    samples = None
    if structs.offsets is not None:
        samples = samples_of(structs.offsets, structs.batch)
    sorted_ids = (ids.runs, ids.rows, ids.values, samples)
    if sample_stride is None:
        sample_stride = len(structs.layout.features) * structs.arguments.base_dim
    pull = (gradient, sample_stride)
    wrong = call("mixdim_backward", structs.layer, structs.ids, *sorted_ids, *pull, to.structs)
    structs.raise_if_wrong(wrong)
    return to.of_parameters(structs.arguments)


def lookup(request: Lookup) -> Tensor:
    """Look up single ids (B, F), or sum bags of V ids, feature-major: -> (B, F, base_dim)."""
    if torch.compiler.is_compiling():
        return lookup_operator(*request[:3], *request.layer[:-3])
    # An operator costs eager code a tenth of a millisecond more than a function does.
    return _eager_lookup(request)


@outside_of_graphs
def _eager_lookup(request: Lookup) -> Tensor:
    return _Lookup.apply(request, *request.parameters)  # type: ignore[no-untyped-call]  # torch has no type for it


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, request: Lookup, *parameters: Tensor | None) -> Tensor:
        ctx.layer = request.unchangeable()
        ctx.save_for_backward(*request.changeable())
        return vectors(request)

    @staticmethod
    @once_differentiable  # second derivatives are for the plain path: MIXDIM_KERNELS=off
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        return (None, *_backward(Lookup.of_kept(ctx.layer, ctx.saved_tensors), gradients[0]))


def vectors(request: Lookup) -> Tensor:
    """Look up or sum, or raise an IndexError for an id out of range; without gradients."""
    structs = LayerStructs(request)
    out = torch.empty(structs.batch, len(structs.feature_structs), request.layer.base_dim)
    if structs.codes is None:
        structs.raise_if_wrong(call("mixdim_lookup", structs.layer, structs.ids, out))
        return out
    coded = (structs.codes, structs.layout.coded, len(structs.layout.coded))
    structs.raise_if_wrong(call("mixdim_coded_lookup", structs.layer, *coded, structs.ids, out))
    return out


@outside_of_graphs
def _backward(request: Lookup, gradient: Tensor) -> list[Tensor | None]:
    """The gradients of `Lookup.parameters`."""
    structs = LayerStructs(request)
    num_features, base_dim = len(structs.layout.features), request.layer.base_dim
    assert gradient.shape == (structs.batch, num_features, base_dim)
    # A part of a wider gradient, such as that of vectors side by side, is read where it is.
    if structs.batch and gradient[0].is_contiguous():
        return weight_gradients(structs, gradient, gradient.stride(0))
    return weight_gradients(structs, gradient.contiguous())


# The arguments of `Lookup` and, but for the last three, of `LayerArguments`.
ARGUMENTS = (
    "Tensor ids, Tensor? offsets, Tensor? row_weights, Tensor[] tables, Tensor? lift, "
    "Tensor? rank_of_id, Tensor blocks, Tensor features, SymInt base_dim, SymInt? padding_id, str names"
)


@torch.library.custom_op("mixdim::lookup", mutates_args=(), schema=f"({ARGUMENTS}) -> Tensor")
def lookup_operator(*arguments: Any) -> Tensor:
    """The same for graphs."""
    return vectors(_request(*arguments))


@lookup_operator.register_fake
def _(ids: Tensor, offsets: Tensor | None, row_weights: Tensor | None, *layer: Any) -> Tensor:
    tables, _, _, _, features, base_dim, _, _ = layer
    num_features = features.shape[0]
    batch = ids.shape[0] if offsets is None else (offsets.shape[0] - 1) // num_features
    return tables[0].new_empty(batch, num_features, base_dim)


# Gradients are dense here: a graph cannot hold a tensor whose length depends on the ids.
@torch.library.custom_op(
    "mixdim::lookup_backward", mutates_args=(), schema=f"(Tensor gradient, {ARGUMENTS}) -> Tensor[]"
)
def lookup_backward(gradient: Tensor, *arguments: Any) -> list[Tensor]:
    """Return the gradients of the lift, if there is one, and of all tables."""
    return [found for found in _backward(_request(*arguments), gradient) if found is not None]


@lookup_backward.register_fake
def _(gradient: Tensor, *arguments: Any) -> list[Tensor]:
    tables, lift = arguments[3:5]
    return [torch.empty_like(weight) for weight in (lift, *tables) if weight is not None]


def _request(ids: Tensor, offsets: Tensor | None, row_weights: Tensor | None, *layer: Any) -> Lookup:
    """The lookup that an operator gets in parts."""
    _, _, _, blocks, features, base_dim, _, _ = layer
    layout = KernelLayout(blocks, features, base_dim)
    described = (*layer, False, layout, None)
    return Lookup(ids, offsets, row_weights, LayerArguments._make(described))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ids, offsets, row_weights, tables, lift, rank_of_id, blocks, features, *rest = inputs
    ctx.base_dim, ctx.padding_id, ctx.names = rest
    ctx.save_for_backward(blocks, features, ids, offsets, row_weights, rank_of_id, lift, *tables)


def _operator_backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    blocks, features, ids, offsets, row_weights, rank_of_id, lift, *tables = ctx.saved_tensors
    described = (blocks, features, ctx.base_dim, ctx.padding_id, ctx.names)
    found = lookup_backward(gradient, ids, offsets, row_weights, tables, lift, rank_of_id, *described)
    of_lift = None if lift is None else found[0]
    return (None, None, None, found[-len(tables) :], of_lift, *[None] * 6)


lookup_operator.register_autograd(_operator_backward, setup_context=_setup_context)
