"""The layer's lookup as operators of PyTorch, with gradients, for eager code and compiled graphs.

Knows nothing about modules. Letters as in native.cpp: B samples, F features, V values of bags.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

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
    """The structs that describe a layer and its ids to the kernels; keeps alive what they point to."""

    def __init__(
        self, ids: Tensor, offsets: Tensor | None, row_weights: Tensor | None, layer: LayerArguments
    ) -> None:
        tables, projections, rank_of_id, blocks, features, base_dim, padding_id, _, _ = layer
        self.blocks, self.features = blocks.numpy(), features.numpy()
        self.widths = np.array([table.shape[1] for table in tables])
        _, starts, ends, number, first_row, slot = self.blocks.T
        table_at = np.array([table.data_ptr() for table in tables])
        # A width of base_dim comes first in `tables` and has no projection.
        lead = len(tables) - len(projections)
        projection_at = np.array([0] * lead + [projection.data_ptr() for projection in projections])
        width = self.widths[number]
        narrow = number >= lead
        self.block_structs = np.stack(
            [
                starts,
                ends,
                width,
                table_at[number] + 4 * first_row * width,
                np.where(narrow, projection_at[number] + 4 * slot * width * base_dim, 0),
            ],
            axis=1,
        )
        order = self.features[:, 3]
        rank_at = 0 if rank_of_id is None else rank_of_id.data_ptr()
        self.feature_structs = np.concatenate(
            [self.features[:, :3], np.where(order >= 0, rank_at + 4 * order, 0)[:, None]], axis=1
        )
        self.batch = len(ids) if offsets is None else (len(offsets) - 1) // len(self.features)
        self.layer = np.array(
            [
                self.feature_structs.ctypes.data,
                self.block_structs.ctypes.data,
                len(self.features),
                len(self.blocks),
                base_dim,
                padding_id or 0,
                padding_id is not None,
            ]
        )
        self.num_values = ids.numel()
        self.kept = [t if t is None else t.contiguous() for t in (ids, offsets, row_weights)]
        addresses = [0 if t is None else t.data_ptr() for t in self.kept]
        self.ids = np.array(
            [addresses[0], ids.dtype == torch.int64, self.batch, addresses[1], addresses[2]]
        )


class Coalesced:
    """The ids of a lookup sorted by row, block by block, and room for the gradients of their rows."""

    def __init__(self, arguments: LayerStructs) -> None:
        num_values = arguments.num_values
        self.rows = torch.empty(num_values, dtype=torch.int32)
        self.values = torch.empty(num_values, dtype=torch.int32)
        self.runs = np.zeros((len(arguments.blocks), 3), dtype=np.int64)  # first, count, uniques
        call("mixdim_sort", arguments.layer, arguments.ids, self.rows, self.values, self.runs)

        _, _, _, number, first_row, _ = arguments.blocks.T
        uniques = self.runs[:, 2]
        self.structs = np.zeros((len(arguments.blocks), 4), dtype=np.int64)
        self.structs[:, 3] = first_row
        self.gradients: list[tuple[Tensor, Tensor]] = []  # of each table: its rows, their values
        for n, width in enumerate(arguments.widths.tolist()):
            mine = np.flatnonzero(number == n)
            mine = mine[np.argsort(first_row[mine])]
            ends = np.cumsum(uniques[mine])
            starts = ends - uniques[mine]
            rows, values = torch.empty(ends[-1], dtype=torch.int64), torch.empty(ends[-1], width)
            self.structs[mine, 0] = rows.data_ptr() + rows.itemsize * starts
            self.structs[mine, 1] = values.data_ptr() + values.itemsize * width * starts
            self.gradients.append((rows, values))

    def results(self) -> list[Tensor]:
        """Rows and values of each table, in turn."""
        return [tensor for pair in self.gradients for tensor in pair]


@torch.library.custom_op("mixdim::lookup", mutates_args=())
def lookup(
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
    """Look up single ids (B, F), or sum bags of V ids, feature-major: -> (B, F, base_dim)."""
    layer = LayerArguments(
        tables, projections, rank_of_id, blocks, features, base_dim, padding_id, sparse, names
    )
    arguments = LayerStructs(ids, offsets, row_weights, layer)
    out = torch.empty(arguments.batch, len(features), base_dim)
    if call("mixdim_lookup", arguments.layer, arguments.ids, out) >= 0:
        of = torch.arange(len(features)) if offsets is None else _features_of(offsets, len(features))
        check_ids(ids, features[:, 0], padding_id, names, features=of)
    return out


def _features_of(offsets: Tensor, num_features: int) -> Tensor:
    batch = (len(offsets) - 1) // num_features
    return torch.arange(len(offsets) - 1).repeat_interleave(offsets.diff()) // max(batch, 1)


@lookup.register_fake
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
    """Return, for each table, its touched rows, ascending, and their gradients; then the projections'.

    The list is [rows of table 0, values of table 0, rows of table 1, ..., projection 0, ...].
    """
    layer = LayerArguments(
        tables, projections, rank_of_id, blocks, features, base_dim, padding_id, True, ""
    )
    arguments = LayerStructs(ids, offsets, row_weights, layer)
    coalesced = Coalesced(arguments)
    _, _, _, number, _, slot = arguments.blocks.T
    lead = len(tables) - len(projections)
    results = coalesced.results()
    structs = coalesced.structs
    for n, projection in enumerate(projections):
        mine = np.flatnonzero(number == n + lead)
        projection_gradient = torch.empty_like(projection, memory_format=torch.contiguous_format)
        size = projection[0].numel()
        structs[mine, 2] = projection_gradient.data_ptr() + 4 * size * slot[mine]
        results.append(projection_gradient)
    samples = None if offsets is None else _samples_of(offsets, len(features))
    contiguous = gradient.contiguous()
    call(
        "mixdim_backward",
        arguments.layer,
        arguments.ids,
        coalesced.runs,
        coalesced.rows,
        coalesced.values,
        samples,
        contiguous,
        structs,
    )
    return results


def _samples_of(offsets: Tensor, num_features: int) -> Tensor:
    batch = max((len(offsets) - 1) // num_features, 1)
    bags = torch.arange(len(offsets) - 1).repeat_interleave(offsets.diff())
    return (bags % batch).to(torch.int32)


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
        results += [
            ids.new_empty(touched, dtype=torch.int64),
            table.new_empty(touched, table.shape[1]),
        ]
    return results + [torch.empty_like(projection) for projection in projections]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ids, offsets, row_weights, tables, projections, rank_of_id, blocks, features = inputs[:8]
    ctx.base_dim, ctx.padding_id, ctx.sparse = inputs[8:11]
    ctx.num_tables = len(tables)
    ctx.save_for_backward(ids, offsets, row_weights, rank_of_id, blocks, features, *tables, *projections)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    ids, offsets, row_weights, rank_of_id, blocks, features, *weights = ctx.saved_tensors
    tables, projections = weights[: ctx.num_tables], weights[ctx.num_tables :]
    results = lookup_backward(
        gradient,
        ids,
        offsets,
        row_weights,
        tables,
        projections,
        rank_of_id,
        blocks,
        features,
        ctx.base_dim,
        ctx.padding_id,
    )
    rows, values = results[0 : 2 * len(tables) : 2], results[1 : 2 * len(tables) : 2]
    table_gradients = [
        table_gradient(*entry, sparse=ctx.sparse) for entry in zip(tables, rows, values, strict=True)
    ]
    return (None, None, None, table_gradients, results[2 * len(tables) :], *[None] * 7)


def table_gradient(table: Tensor, rows: Tensor, values: Tensor, *, sparse: bool) -> Tensor:
    """The gradient of a table from that of its touched rows."""
    if not sparse:
        return torch.zeros_like(table).index_copy(0, rows, values)
    return torch.sparse_coo_tensor(
        rows[None], values, table.shape, is_coalesced=True, check_invariants=False
    )


lookup.register_autograd(_backward, setup_context=_setup_context)
