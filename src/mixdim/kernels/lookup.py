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
    LayerArguments,
    LayerStructs,
    Layout,
    Lookup,
    LookupStructs,
    samples_of,
)


class Sorted:
    """The ids of a lookup sorted by row, block by block; a kernel fills it."""

    def __init__(self, structs: LayerStructs) -> None:
        self.rows, self.values = torch.empty(2, structs.num_values, dtype=torch.int32)
        self.runs = np.zeros((len(structs.layout.blocks), 3), dtype=np.int64)  # first, count, uniques


class RowGradients:
    """Room for the gradients of the rows that sorted ids touch, each row once."""

    def __init__(self, structs: LayerStructs, ids: Sorted) -> None:
        number, first_row = structs.layout.number, structs.layout.blocks[:, 5]
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

    def of_tables(self, layer: LayerArguments) -> list[Tensor]:
        """The gradients of whole tables, once a kernel has filled in those of the touched rows."""
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


def projection_gradients(structs: LayerStructs, to: RowGradients) -> list[Tensor]:
    """Room for the gradients of all projections, for a kernel to fill."""
    layout = structs.layout
    projections = [torch.empty_like(projection) for projection in structs.arguments.projections]
    for n, projection in enumerate(projections, start=layout.lead):
        mine = np.flatnonzero(layout.number == n)
        to.structs[mine, 2] = projection.data_ptr() + 4 * projection[0].numel() * layout.slot[mine]
    return projections


def weight_gradients(
    structs: LayerStructs, gradient: Tensor | int, sample_stride: int | None = None
) -> list[Tensor]:
    """From the gradient of the vectors (B, F, D) to those of all tables, then of all projections.

    Its samples are `sample_stride` floats apart, F * D unless that is said.
    """
    ids = sort_ids(structs)
    to = RowGradients(structs, ids)
    projections = projection_gradients(structs, to)
    samples = None
    if structs.offsets is not None:
        samples = samples_of(structs.offsets, structs.batch)
    sorted_ids = (ids.runs, ids.rows, ids.values, samples)
    if sample_stride is None:
        sample_stride = len(structs.layout.features) * structs.arguments.base_dim
    pull = (gradient, sample_stride)
    wrong = call("mixdim_backward", structs.layer, structs.ids, *sorted_ids, *pull, to.structs)
    structs.raise_if_wrong(wrong)
    return [*to.of_tables(structs.arguments), *projections]


def lookup(
    ids: Tensor, offsets: Tensor | None, row_weights: Tensor | None, layer: LayerArguments
) -> Tensor:
    """Look up single ids (B, F), or sum bags of V ids, feature-major: -> (B, F, base_dim)."""
    if torch.compiler.is_compiling():
        return lookup_operator(ids, offsets, row_weights, *layer[:-2])
    # An operator costs eager code a tenth of a millisecond more than a function does.
    return _eager_lookup(Lookup(ids, offsets, row_weights, layer))


@outside_of_graphs
def _eager_lookup(asked: Lookup) -> Tensor:
    return _Lookup.apply(asked, *asked.layer.tables, *asked.layer.projections)  # type: ignore[no-untyped-call]  # torch has no type for it


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, asked: Lookup, *parameters: Tensor) -> Tensor:
        ctx.layer = asked.unchangeable()
        ctx.save_for_backward(*asked.changeable())
        return _forward(asked)

    @staticmethod
    @once_differentiable  # second derivatives are for the plain path: MIXDIM_KERNELS=off
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        return (None, *_backward(Lookup.of_kept(ctx.layer, ctx.saved_tensors), gradients[0]))


def _forward(asked: Lookup) -> Tensor:
    return vectors(LayerStructs(asked))


def vectors(structs: LookupStructs) -> Tensor:
    """Look up or sum, or raise an IndexError for an id out of range; without gradients."""
    out = torch.empty(structs.batch, len(structs.feature_structs), structs.options.base_dim)
    structs.raise_if_wrong(call("mixdim_lookup", structs.layer, structs.ids, out))
    return out


@outside_of_graphs
def _backward(asked: Lookup, gradient: Tensor) -> list[Tensor]:
    """The gradients of all tables, then those of all projections."""
    structs = LayerStructs(asked)
    num_features, base_dim = len(structs.layout.features), asked.layer.base_dim
    assert gradient.shape == (structs.batch, num_features, base_dim)
    # A part of a wider gradient, such as that of vectors side by side, is read where it is.
    if structs.batch and gradient[0].is_contiguous():
        return weight_gradients(structs, gradient, gradient.stride(0))
    return weight_gradients(structs, gradient.contiguous())


# The arguments of `Lookup` and, but for the last two, of `LayerArguments`.
ARGUMENTS = (
    "Tensor ids, Tensor? offsets, Tensor? row_weights, Tensor[] tables, Tensor[] projections, "
    "Tensor? rank_of_id, Tensor blocks, Tensor features, SymInt base_dim, SymInt? padding_id, str names"
)


@torch.library.custom_op("mixdim::lookup", mutates_args=(), schema=f"({ARGUMENTS}) -> Tensor")
def lookup_operator(*arguments: Any) -> Tensor:
    """The same for graphs."""
    return _forward(_asked(*arguments))


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
    """Return the gradients of all tables, then those of all projections."""
    return _backward(_asked(*arguments), gradient)


@lookup_backward.register_fake
def _(gradient: Tensor, *arguments: Any) -> list[Tensor]:
    tables, projections = arguments[3:5]
    return [torch.empty_like(weight) for weight in (*tables, *projections)]


def _asked(ids: Tensor, offsets: Tensor | None, row_weights: Tensor | None, *layer: Any) -> Lookup:
    """What an operator is asked."""
    _, _, _, blocks, features, base_dim, _, _ = layer
    described = LayerArguments._make([*layer, False, Layout(blocks, features, base_dim)])
    return Lookup(ids, offsets, row_weights, described)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ids, offsets, row_weights, tables, projections, rank_of_id, blocks, features, *rest = inputs
    ctx.base_dim, ctx.padding_id, ctx.names = rest
    ctx.num_tables = len(tables)
    inputs = (ids, offsets, row_weights, rank_of_id)
    ctx.save_for_backward(blocks, features, *inputs, *tables, *projections)


def _operator_backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    blocks, features, ids, offsets, row_weights, rank_of_id, *weights = ctx.saved_tensors
    tables, projections = weights[: ctx.num_tables], weights[ctx.num_tables :]
    described = (blocks, features, ctx.base_dim, ctx.padding_id, ctx.names)
    found = lookup_backward(
        gradient, ids, offsets, row_weights, tables, projections, rank_of_id, *described
    )
    return (None, None, None, found[: len(tables)], found[len(tables) :], *[None] * 6)


lookup_operator.register_autograd(_operator_backward, setup_context=_setup_context)
