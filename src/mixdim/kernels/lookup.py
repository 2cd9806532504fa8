"""The layer's lookup by the kernels, with its gradients, for eager code and for compiled graphs.

Knows nothing about modules. Letters as in native.cpp: B samples, F features, V values of bags.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mixdim.ids import check_ids
from mixdim.kernels.library import call

# Columns of the int64 tensors that describe a layer.
BLOCK_COLUMNS = ("feature", "start", "end", "width_number", "first_row", "slot")
FEATURE_COLUMNS = ("rows", "first_block", "num_blocks", "order_start")


class LayerArguments(NamedTuple):
    """What an operator is told about a layer, in the order of its arguments."""

    tables: list[Tensor]  # widest first: (rows, width)
    projections: list[Tensor]  # of the tables that need one: (blocks, width, base_dim)
    rank_of_id: Tensor | None
    blocks: Tensor  # see BLOCK_COLUMNS
    features: Tensor  # see FEATURE_COLUMNS
    base_dim: int
    padding_id: int | None
    sparse: bool
    names: str


class LayerStructs:
    """A layer and its ids as the kernels read them; keeps alive what the structs point to."""

    def __init__(
        self, ids: Tensor, offsets: Tensor | None, row_weights: Tensor | None, layer: LayerArguments
    ) -> None:
        self.arguments = layer
        self.blocks, self.features = layer.blocks.numpy(), layer.features.numpy()
        self.widths = np.array([table.shape[1] for table in layer.tables])
        _, starts, ends, number, first_row, slot = self.blocks.T
        table_at = np.array([table.data_ptr() for table in layer.tables])
        # A table of full width comes first and has no projection.
        self.lead = len(layer.tables) - len(layer.projections)
        projection_at = np.array([0] * self.lead + [p.data_ptr() for p in layer.projections])
        width = self.widths[number]
        self.block_structs = np.empty((len(self.blocks), 5), np.int64)
        self.block_structs[:, 0], self.block_structs[:, 1], self.block_structs[:, 2] = (
            starts,
            ends,
            width,
        )
        self.block_structs[:, 3] = table_at[number] + 4 * first_row * width
        self.block_structs[:, 4] = projection_at[number] + 4 * slot * width * layer.base_dim
        self.block_structs[number < self.lead, 4] = 0
        self.feature_structs = self.features.copy()
        order = self.features[:, 3]
        rank_at = 0 if layer.rank_of_id is None else layer.rank_of_id.data_ptr()
        self.feature_structs[:, 3] = np.where(order >= 0, rank_at + 4 * order, 0)
        self.num_values = ids.numel()
        self.batch = len(ids) if offsets is None else (len(offsets) - 1) // len(self.features)
        self.layer = np.array(
            [
                self.feature_structs.ctypes.data,
                self.block_structs.ctypes.data,
                len(self.features),
                len(self.blocks),
                layer.base_dim,
                layer.padding_id or 0,
                layer.padding_id is not None,
            ]
        )
        self.kept = [t if t is None else t.contiguous() for t in (ids, offsets, row_weights)]
        at = [0 if t is None else t.data_ptr() for t in self.kept]
        self.ids = np.array([at[0], ids.dtype == torch.int64, self.batch, at[1], at[2]])


class Sorted:
    """The ids of a lookup sorted by row, block by block; a kernel fills it."""

    def __init__(self, structs: LayerStructs) -> None:
        self.rows, self.values = torch.empty(2, structs.num_values, dtype=torch.int32)
        self.runs = np.zeros((len(structs.blocks), 3), dtype=np.int64)  # first, count, uniques


class RowGradients:
    """Room for the gradients of the rows that sorted ids touch, each row once."""

    def __init__(self, structs: LayerStructs, ids: Sorted) -> None:
        _, _, _, number, first_row, _ = structs.blocks.T
        uniques = ids.runs[:, 2]
        self.structs = np.zeros((len(structs.blocks), 4), dtype=np.int64)
        self.structs[:, 3] = first_row
        self.tables: list[tuple[Tensor, Tensor]] = []  # of each table: its rows, their gradients
        for n, width in enumerate(structs.widths.tolist()):
            mine = np.flatnonzero(number == n)
            mine = mine[np.argsort(first_row[mine])]
            ends = np.cumsum(uniques[mine])
            starts = ends - uniques[mine]
            rows, values = torch.empty(ends[-1], dtype=torch.int64), torch.empty(ends[-1], width)
            self.structs[mine, 0] = rows.data_ptr() + rows.itemsize * starts
            self.structs[mine, 1] = values.data_ptr() + values.itemsize * width * starts
            self.tables.append((rows, values))


def _forward(structs: LayerStructs, offsets: Tensor | None) -> Tensor:
    """Look up or sum, or raise an IndexError for an id out of range."""
    out = torch.empty(structs.batch, len(structs.features), structs.arguments.base_dim)
    if call("mixdim_lookup", structs.layer, structs.ids, out) >= 0:
        raise_index_error(structs, offsets)
    return out


def raise_index_error(structs: LayerStructs, offsets: Tensor | None) -> None:
    """Find the id that a kernel found out of range, and say the same as the plain path."""
    layer, ids = structs.arguments, structs.kept[0]
    assert ids is not None
    features = torch.arange(len(structs.features))
    if offsets is not None:
        features = _bags_of(offsets) // max(structs.batch, 1)
    check_ids(ids, layer.features[:, 0], layer.padding_id, layer.names, features=features)
    raise damaged_order()


def damaged_order() -> IndexError:
    """All ids are in range, and yet a row was not."""
    return IndexError("the order that this layer holds (rank_of_id) is damaged: load its state again")


def layer_gradients(
    structs: LayerStructs, gradient: Tensor | int, offsets: Tensor | None = None
) -> tuple[list[tuple[Tensor, Tensor]], list[Tensor]]:
    """Of each table the touched rows, ascending, and their gradients; then those of projections."""
    ids = Sorted(structs)
    call("mixdim_sort", structs.layer, structs.ids, ids.rows, ids.values, ids.runs)
    gradients = RowGradients(structs, ids)
    _, _, _, number, _, slot = structs.blocks.T
    projections = [torch.empty_like(projection) for projection in structs.arguments.projections]
    for n, projection in enumerate(projections, start=structs.lead):
        mine = np.flatnonzero(number == n)
        gradients.structs[mine, 2] = projection.data_ptr() + 4 * projection[0].numel() * slot[mine]
    samples = None if offsets is None else (_bags_of(offsets) % max(structs.batch, 1)).to(torch.int32)
    call(
        "mixdim_backward",
        structs.layer,
        structs.ids,
        ids.runs,
        ids.rows,
        ids.values,
        samples,
        gradient,
        gradients.structs,
    )
    return gradients.tables, projections


def _bags_of(offsets: Tensor) -> Tensor:
    """The number of the bag that each value is in."""
    return torch.arange(len(offsets) - 1).repeat_interleave(offsets.diff())


def table_gradient(table: Tensor, rows: Tensor, values: Tensor, *, sparse: bool) -> Tensor:
    """The gradient of a table from that of its touched rows."""
    if not sparse:
        return torch.zeros_like(table).index_copy(0, rows, values)
    return torch.sparse_coo_tensor(
        rows[None], values, table.shape, is_coalesced=True, check_invariants=False
    )


def lookup(
    ids: Tensor, offsets: Tensor | None, row_weights: Tensor | None, layer: LayerArguments
) -> Tensor:
    """Look up single ids (B, F), or sum bags of V ids, feature-major: -> (B, F, base_dim)."""
    if torch.compiler.is_compiling():
        return lookup_operator(ids, offsets, row_weights, *layer)
    # An operator costs eager code a tenth of a millisecond more than a function does.
    return _Lookup.apply(ids, offsets, row_weights, layer, *layer.tables, *layer.projections)  # type: ignore[no-untyped-call]  # torch has no type for it


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        ids: Tensor,
        offsets: Tensor | None,
        row_weights: Tensor | None,
        layer: LayerArguments,
        *parameters: Tensor,
    ) -> Tensor:
        ctx.structs, ctx.offsets = LayerStructs(ids, offsets, row_weights, layer), offsets
        ctx.save_for_backward(*parameters)  # so that PyTorch notices if they change in between
        return _forward(ctx.structs, offsets)

    @staticmethod
    @once_differentiable  # second derivatives are for the plain path: MIXDIM_KERNELS=off
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        tables = ctx.saved_tensors[: len(ctx.structs.arguments.tables)]
        touched, projections = layer_gradients(ctx.structs, gradients[0].contiguous(), ctx.offsets)
        sparse = ctx.structs.arguments.sparse
        table_gradients = [
            table_gradient(table, *pair, sparse=sparse)
            for table, pair in zip(tables, touched, strict=True)
        ]
        return (None, None, None, None, *table_gradients, *projections)


@torch.library.custom_op("mixdim::lookup", mutates_args=())
def lookup_operator(
    ids: Tensor,
    offsets: Tensor | None,
    row_weights: Tensor | None,
    tables: list[Tensor],
    projections: list[Tensor],
    rank_of_id: Tensor | None,
    blocks: Tensor,
    features: Tensor,
    base_dim: int,
    padding_id: int | None,
    sparse: bool,
    names: str,
) -> Tensor:
    """The same for graphs: after three arguments come those of `LayerArguments`."""
    layer = LayerArguments(
        tables, projections, rank_of_id, blocks, features, base_dim, padding_id, sparse, names
    )
    return _forward(LayerStructs(ids, offsets, row_weights, layer), offsets)


@lookup_operator.register_fake
def _(
    ids: Tensor,
    offsets: Tensor | None,
    row_weights: Tensor | None,
    tables: list[Tensor],
    projections: list[Tensor],
    rank_of_id: Tensor | None,
    blocks: Tensor,
    features: Tensor,
    base_dim: int,
    padding_id: int | None,
    sparse: bool,
    names: str,
) -> Tensor:
    num_features = features.shape[0]
    batch = ids.shape[0] if offsets is None else (offsets.shape[0] - 1) // num_features
    return tables[0].new_empty(batch, num_features, base_dim)


@torch.library.custom_op("mixdim::lookup_backward", mutates_args=())
def lookup_backward(
    gradient: Tensor,
    ids: Tensor,
    offsets: Tensor | None,
    row_weights: Tensor | None,
    tables: list[Tensor],
    projections: list[Tensor],
    rank_of_id: Tensor | None,
    blocks: Tensor,
    features: Tensor,
    base_dim: int,
    padding_id: int | None,
) -> list[Tensor]:
    """Return touched rows and gradients of table 0, of table 1, ..., then those of projections."""
    layer = LayerArguments(
        tables, projections, rank_of_id, blocks, features, base_dim, padding_id, True, ""
    )
    structs = LayerStructs(ids, offsets, row_weights, layer)
    touched, projection_gradients = layer_gradients(structs, gradient.contiguous(), offsets)
    return [tensor for pair in touched for tensor in pair] + projection_gradients


@lookup_backward.register_fake
def _(
    gradient: Tensor,
    ids: Tensor,
    offsets: Tensor | None,
    row_weights: Tensor | None,
    tables: list[Tensor],
    projections: list[Tensor],
    rank_of_id: Tensor | None,
    blocks: Tensor,
    features: Tensor,
    base_dim: int,
    padding_id: int | None,
) -> list[Tensor]:
    results = []
    for table in tables:
        touched = torch.library.get_ctx().new_dynamic_size()
        results += [ids.new_empty(touched, dtype=torch.int64), table.new_empty(touched, table.shape[1])]
    return results + [torch.empty_like(projection) for projection in projections]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ids, offsets, row_weights, tables, projections, rank_of_id, blocks, features = inputs[:8]
    ctx.base_dim, ctx.padding_id, ctx.sparse = inputs[8:11]
    ctx.num_tables = len(tables)
    ctx.save_for_backward(ids, offsets, row_weights, rank_of_id, blocks, features, *tables, *projections)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    ids, offsets, row_weights, rank_of_id, blocks, features, *weights = ctx.saved_tensors
    tables, projections = weights[: ctx.num_tables], weights[ctx.num_tables :]
    layer = (tables, projections, rank_of_id, blocks, features, ctx.base_dim, ctx.padding_id)
    results = lookup_backward(gradient, ids, offsets, row_weights, *layer)
    rows, values = results[0 : 2 * len(tables) : 2], results[1 : 2 * len(tables) : 2]
    table_gradients = [
        table_gradient(*entry, sparse=ctx.sparse) for entry in zip(tables, rows, values, strict=True)
    ]
    return (None, None, None, table_gradients, results[2 * len(tables) :], *[None] * 7)


lookup_operator.register_autograd(_backward, setup_context=_setup_context)
