"""A layer and its ids as the kernels read them: addresses, each checked against what it must hold.

Knows nothing about gradients or modules. Whatever the kernels read by a row, they find within the bounds
that are checked here; ids and offsets, which the user may change at any time, they check themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mixdim.bags import check_offsets
from mixdim.ids import check_ids
from mixdim.kernels.library import address

# Columns of the int64 tensors that describe a layer.
BLOCK_COLUMNS = ("feature", "start", "end", "width_number", "first_row", "slot")
FEATURE_COLUMNS = ("rows", "first_block", "num_blocks", "order_start")
FINE, BAD_OFFSETS = -1, -2  # what kernels return; or else the position of an id out of range


class LayerArguments(NamedTuple):
    """What the kernels are told about a layer; all but the last also to the operator in a graph."""

    tables: list[Tensor]  # widest first: (rows, width)
    projections: list[Tensor]  # of the tables that need one: (blocks, width, base_dim)
    rank_of_id: Tensor | None
    blocks: Tensor  # see BLOCK_COLUMNS
    features: Tensor  # see FEATURE_COLUMNS
    base_dim: int
    padding_id: int | None
    names: str
    sparse: bool  # whether tables get row-sparse gradients; in a graph they are always dense


class Lookup(NamedTuple):
    """Ids (B, F), or those of bags (V,) with offsets and perhaps weights; and the layer they are for."""

    ids: Tensor
    offsets: Tensor | None
    row_weights: Tensor | None
    layer: LayerArguments

    def changeable(self) -> list[Tensor | None]:
        """What somebody may change before the backward pass: autograd holds it, and notices."""
        layer = self.layer
        inputs = (self.ids, self.offsets, self.row_weights, layer.rank_of_id)
        return [*inputs, *layer.tables, *layer.projections]

    def unchangeable(self) -> LayerArguments:
        """The rest."""
        return self.layer._replace(tables=[], projections=[], rank_of_id=None)

    @classmethod
    def of_kept(cls, layer: LayerArguments, kept: Sequence[Any]) -> Lookup:
        """Put both together again."""
        ids, offsets, row_weights, rank_of_id, *weights = kept
        num_tables = int(layer.blocks[:, 3].max()) + 1
        tables, projections = weights[:num_tables], weights[num_tables:]
        whole = layer._replace(tables=tables, projections=projections, rank_of_id=rank_of_id)
        return cls(ids, offsets, row_weights, whole)


class LayerStructs:
    """The structs of lookup.h for a layer and its ids; keeps alive what they point to."""

    def __init__(self, lookup: Lookup) -> None:
        ids, offsets, row_weights, layer = lookup
        self.arguments, self.offsets = layer, offsets
        self.blocks, self.features = layer.blocks.numpy(), layer.features.numpy()
        self.widths = np.array([table.shape[1] for table in layer.tables])
        # A table of full width comes first and has no projection.
        self.lead = len(layer.tables) - len(layer.projections)
        self._check_weights()
        self._count_ids(ids, row_weights)
        self._describe_blocks()
        self._describe_features()
        self.layer = np.array(
            [
                address(self.feature_structs),
                address(self.block_structs),
                len(self.features),
                len(self.blocks),
                layer.base_dim,
                layer.padding_id or 0,
                layer.padding_id is not None,
            ]
        )
        self.kept = [t if t is None else t.contiguous() for t in (ids, offsets, row_weights)]
        at = [0 if t is None else t.data_ptr() for t in self.kept]
        wide = ids.dtype == torch.int64
        self.ids = np.array([at[0], wide, self.batch, at[1], at[2], self.num_values])

    def raise_if_wrong(self, returned: int) -> None:
        """Raise what the plain path says about ids, if a kernel returned that they are out of range."""
        if returned == FINE:
            return
        if returned == BAD_OFFSETS:
            assert self.offsets is not None
            check_offsets(self.offsets, self.num_values)
            raise RuntimeError("offsets were changed while they were read")
        self.check_ids()
        raise damaged_order()

    def check_ids(self) -> None:
        """Say which id is out of range, if one is, in the words of the plain path."""
        layer, ids = self.arguments, self.kept[0]
        assert ids is not None
        features = torch.arange(len(self.features))
        if self.offsets is not None:
            features = bags_of(self.offsets) // max(self.batch, 1)
        check_ids(ids, layer.features[:, 0], layer.padding_id, layer.names, features=features)

    def _check_weights(self) -> None:
        """Refuse tables and projections of another shape than the layer was made with."""
        _, starts, ends, number, first_row, slot = self.blocks.T
        rows, slots = np.zeros((2, len(self.widths)), np.int64)
        np.maximum.at(rows, number, first_row + ends - starts)
        np.maximum.at(slots, number, slot + 1)
        base_dim = self.arguments.base_dim
        for n, table in enumerate(self.arguments.tables):
            width = base_dim if n < self.lead else self.arguments.projections[n - self.lead].shape[1]
            require_shape(table, f"table_{width}", (int(rows[n]), width))
        for n, projection in enumerate(self.arguments.projections, start=self.lead):
            width = int(self.widths[n])
            require_shape(projection, f"projection_{width}", (int(slots[n]), width, base_dim))
        held = 0 if self.arguments.rank_of_id is None else len(self.arguments.rank_of_id)
        ordered = self.features[self.features[:, 3] >= 0]
        needed = int((ordered[:, 3] + ordered[:, 0]).max(initial=0))
        if held < needed:
            raise RuntimeError(f"rank_of_id has {held} entries where this layer needs {needed}")

    def _count_ids(self, ids: Tensor, row_weights: Tensor | None) -> None:
        """Find how many ids there are; the shapes were checked where a user calls."""
        num_features = len(self.features)
        self.num_values, self.batch = ids.numel(), len(ids)
        if self.offsets is None:
            assert ids.shape == (self.batch, num_features)
        else:
            assert self.offsets.dtype == torch.int64
            self.batch = (len(self.offsets) - 1) // num_features
            assert self.offsets.shape == (self.batch * num_features + 1,)
        if row_weights is not None:
            assert row_weights.dtype == torch.float32
            assert row_weights.shape == ids.shape

    def _describe_blocks(self) -> None:
        layer = self.arguments
        _, starts, ends, number, first_row, slot = self.blocks.T
        table_at = np.array([table.data_ptr() for table in layer.tables])
        projection_at = np.array([0] * self.lead + [p.data_ptr() for p in layer.projections])
        width = self.widths[number]
        self.block_structs = np.empty((len(self.blocks), 5), np.int64)
        self.block_structs[:, :3] = np.stack([starts, ends, width], axis=1)
        self.block_structs[:, 3] = table_at[number] + 4 * first_row * width
        self.block_structs[:, 4] = projection_at[number] + 4 * slot * width * layer.base_dim
        self.block_structs[number < self.lead, 4] = 0

    def _describe_features(self) -> None:
        rank_of_id, order = self.arguments.rank_of_id, self.features[:, 3]
        rank_at = 0 if rank_of_id is None else rank_of_id.data_ptr()
        self.feature_structs = self.features.copy()
        self.feature_structs[:, 3] = np.where(order >= 0, rank_at + 4 * order, 0)


def check_layout(layer: LayerArguments) -> None:
    """Refuse a description of a layer that contradicts itself, such as one from a damaged file."""
    features, blocks = layer.features.numpy(), layer.blocks.numpy()
    rows, first_block, num_blocks, order = features.T
    feature, starts, ends, number, first_row, slot = blocks.T
    follows = np.ones(len(blocks), bool)  # whether a block begins where the one before it ends
    follows[1:] = starts[1:] == ends[:-1]
    whole = (
        (num_blocks >= 1).all()
        and np.array_equal(first_block, np.cumsum(num_blocks) - num_blocks)
        and num_blocks.sum() == len(blocks)
        and np.array_equal(feature, np.repeat(np.arange(len(features)), num_blocks))
        and (starts[first_block] == 0).all()
        and np.delete(follows, first_block).all()
        and np.array_equal(ends[first_block + num_blocks - 1], rows)
        and (starts < ends).all()
        and (order >= -1).all()
        and ((number >= 0) & (number < len(layer.tables))).all()
        and (first_row >= 0).all()
        and (slot >= 0).all()
    )
    if not whole:
        raise ValueError("the layout of blocks and features contradicts itself: export the layer again")


def damaged_order() -> IndexError:
    """All ids are in range, and yet a row was not."""
    return IndexError("the order that this layer holds (rank_of_id) is damaged: load its state again")


def bags_of(offsets: Tensor) -> Tensor:
    """The number of the bag that each value is in."""
    return torch.arange(len(offsets) - 1).repeat_interleave(offsets.diff())


def require_shape(tensor: Tensor, name: str, shape: tuple[int, ...]) -> None:
    """Refuse a tensor that is not as large as what the kernels will read of it."""
    if tuple(tensor.shape) != shape:
        raise RuntimeError(
            f"{name} has shape {tuple(tensor.shape)} where {shape} is needed: was its data replaced?"
        )
    assert tensor.dtype is torch.float32
    assert tensor.is_contiguous()
