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

from mixdim.kernels.library import address
from mixdim.layer.bags import check_offsets
from mixdim.layer.ids import check_ids

# Columns of the int64 tensors that describe a layer.
BLOCK_COLUMNS = ("feature", "start", "end", "width", "width_number", "first_row", "slot", "rows")
FEATURE_COLUMNS = ("rows", "first_block", "num_blocks", "order_start")
FINE, BAD_OFFSETS = -1, -2  # what kernels return; or else the position of an id out of range


class FeatureLayout:
    """Where the features and their orders are, whatever their blocks hold."""

    def __init__(self, features: Tensor) -> None:
        self.features = features.numpy()  # see FEATURE_COLUMNS
        ordered = self.features[self.features[:, 3] >= 0]
        self.order_length = int((ordered[:, 3] + ordered[:, 0]).max(initial=0))
        self.unordered = self.features.copy()
        self.unordered[:, 3] = 0


class Layout(FeatureLayout):
    """Where blocks and features are, and which shapes that asks of tables: all that never changes.

    It may come from a file, in an exported graph, so it is not believed: what contradicts itself is a
    ValueError.
    """

    def __init__(self, blocks: Tensor, features: Tensor, base_dim: int) -> None:
        super().__init__(features)
        self.blocks = blocks.numpy()  # see BLOCK_COLUMNS
        _, starts, ends, width, self.number, first_row, self.slot, stored = self.blocks.T
        if not self._is_whole() or (width > base_dim).any():
            raise _contradiction()
        num_tables = int(self.number.max()) + 1
        rows, slots, widths = np.zeros((3, num_tables), np.int64)
        np.maximum.at(rows, self.number, first_row + stored)
        np.maximum.at(slots, self.number, self.slot + 1)
        widths[self.number] = width
        self.lead = int((widths == base_dim).sum())  # tables of full width have no projection
        if (widths[: self.lead] < base_dim).any():
            raise _contradiction()
        self.widths: list[int] = widths.tolist()
        self.table_shapes = list(zip(rows.tolist(), self.widths, strict=True))
        narrow = zip(slots.tolist()[self.lead :], self.widths[self.lead :], strict=True)
        self.projection_shapes = [(count, width, base_dim) for count, width in narrow]
        # The structs of lookup.h, with offsets in the place of addresses.
        lifted = np.where(self.number < self.lead, 0, 4 * self.slot * width * base_dim)
        no_codes = [np.zeros_like(starts)] * 3
        columns = [starts, ends, stored, width, 4 * first_row * width, lifted, *no_codes]
        self.block_structs = np.stack(columns, axis=1)

    def placed_blocks(self, tables: Sequence[Tensor], projections: Sequence[Tensor]) -> np.ndarray:
        """The structs of the blocks, of tables and projections that have the shapes they must have."""
        for table, shape in zip(tables, self.table_shapes, strict=True):
            require_shape(table, f"table_{shape[1]}", shape)
        for projection, needed in zip(projections, self.projection_shapes, strict=True):
            require_shape(projection, f"projection_{needed[1]}", needed)
        # A table of full width has no projection: its address stays null.
        lifted = [0] * self.lead + [projection.data_ptr() for projection in projections]
        structs = self.block_structs.copy()
        structs[:, 4:6] += np.array([[table.data_ptr() for table in tables], lifted]).T[self.number]
        return structs

    def _is_whole(self) -> bool:
        rows, first_block, num_blocks, order = self.features.T
        feature, starts, ends, width, number, first_row, slot, stored = self.blocks.T
        if not (len(rows) and len(starts) and (num_blocks >= 1).all()):
            return False
        if num_blocks.sum() != len(starts) or (first_block != np.cumsum(num_blocks) - num_blocks).any():
            return False
        follows = np.ones(len(starts), bool)  # whether a block begins where the one before it ends
        follows[1:] = starts[1:] == ends[:-1]
        follows[first_block] = starts[first_block] == 0
        return bool(
            follows.all()
            and (feature == np.repeat(np.arange(len(rows)), num_blocks)).all()
            and (ends[first_block + num_blocks - 1] == rows).all()
            and (starts < ends).all()
            and ((stored == ends - starts) | (stored == 1)).all()
            and (order >= -1).all()
            and min(width.min() - 1, number.min(), first_row.min(), slot.min()) >= 0
            and len(set(zip(number.tolist(), width.tolist(), strict=True))) == number.max() + 1
        )


def _contradiction() -> ValueError:
    return ValueError("the layout of blocks and features contradicts itself: export the layer again")


class LayerArguments(NamedTuple):
    """What the kernels are told about a layer; all but the last two also to the operator in a graph."""

    tables: list[Tensor]  # widest first: (rows, width)
    projections: list[Tensor]  # of the tables that need one: (blocks, width, base_dim)
    rank_of_id: Tensor | None
    blocks: Tensor  # see BLOCK_COLUMNS
    features: Tensor  # see FEATURE_COLUMNS
    base_dim: int
    padding_id: int | None
    names: str
    sparse: bool  # whether tables get row-sparse gradients; in a graph they are always dense
    layout: Layout  # of the blocks and features


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
        num_tables = len(layer.layout.table_shapes)
        tables, projections = weights[:num_tables], weights[num_tables:]
        whole = layer._replace(tables=tables, projections=projections, rank_of_id=rank_of_id)
        return cls(ids, offsets, row_weights, whole)


class LayerOptions(NamedTuple):
    """What a lookup must know about a layer, whatever its blocks hold."""

    rank_of_id: Tensor | None
    base_dim: int
    padding_id: int | None
    names: str


class LookupStructs:
    """The structs of lookup.h for the blocks of a layer and ids; keeps alive what they point to."""

    def __init__(
        self,
        asked: tuple[Tensor, Tensor | None, Tensor | None],  # ids, offsets, row_weights: see Lookup
        layer: LayerOptions,
        features: FeatureLayout,
        block_structs: np.ndarray,
    ) -> None:
        ids, self.offsets, row_weights = asked
        self.options, self.features, self.block_structs = layer, features, block_structs
        self._check_order()
        self._count_ids(ids, row_weights)
        self.feature_structs = features.unordered
        if layer.rank_of_id is not None:
            order = features.features[:, 3]
            self.feature_structs = features.features.copy()
            self.feature_structs[:, 3] = np.where(order >= 0, layer.rank_of_id.data_ptr() + 4 * order, 0)
        padding = (layer.padding_id or 0, layer.padding_id is not None)
        at = (address(self.feature_structs), address(self.block_structs))
        sizes = (len(self.feature_structs), len(self.block_structs), layer.base_dim)
        self.layer = np.array([*at, *sizes, *padding])
        self.kept = [t if t is None else t.contiguous() for t in (ids, self.offsets, row_weights)]
        values, bags, weights = (0 if t is None else t.data_ptr() for t in self.kept)
        wide = ids.dtype == torch.int64
        self.ids = np.array([values, wide, self.batch, bags, weights, self.num_values])

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
        layer, ids, rows = self.options, self.kept[0], torch.from_numpy(self.features.features[:, 0])
        assert ids is not None
        features = torch.arange(len(rows))
        if self.offsets is not None:
            features = bags_of(self.offsets) // max(self.batch, 1)
        check_ids(ids, rows, layer.padding_id, layer.names, features=features)

    def _check_order(self) -> None:
        """Refuse an order of another length than the layer was made with."""
        rank_of_id, needed = self.options.rank_of_id, self.features.order_length
        held = 0 if rank_of_id is None else len(rank_of_id)
        if held < needed:
            raise RuntimeError(f"rank_of_id has {held} entries where this layer needs {needed}")

    def _count_ids(self, ids: Tensor, row_weights: Tensor | None) -> None:
        """Find how many ids there are; the shapes were checked where a user calls."""
        num_features = len(self.features.features)
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


class LayerStructs(LookupStructs):
    """The same for narrow blocks: all that the kernels serve."""

    def __init__(self, lookup: Lookup) -> None:
        layer = lookup.layer
        self.arguments, self.layout = layer, layer.layout
        options = LayerOptions(layer.rank_of_id, layer.base_dim, layer.padding_id, layer.names)
        blocks = self.layout.placed_blocks(layer.tables, layer.projections)
        super().__init__(lookup[:3], options, self.layout, blocks)


def damaged_order() -> IndexError:
    """All ids are in range, and yet a row was not."""
    return IndexError("the order that this layer holds (rank_of_id) is damaged: load its state again")


def bags_of(offsets: Tensor) -> Tensor:
    """The number of the bag that each value is in."""
    return torch.arange(len(offsets) - 1).repeat_interleave(offsets.diff())


def samples_of(offsets: Tensor, batch: int) -> np.ndarray:
    """The sample that each value belongs to: `bags_of(offsets) % batch`, several times faster."""
    num_features = (len(offsets) - 1) // max(batch, 1)
    samples = np.tile(np.arange(batch, dtype=np.uint32), num_features)
    return np.repeat(samples, np.diff(offsets.numpy()))


def require_shape(
    tensor: Tensor, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> None:
    """Refuse a tensor that is not as large as what the kernels will read of it."""
    if tuple(tensor.shape) != shape:
        raise RuntimeError(
            f"{name} has shape {tuple(tensor.shape)} where {shape} is needed: was its data replaced?"
        )
    assert tensor.dtype is dtype
    assert tensor.is_contiguous()
