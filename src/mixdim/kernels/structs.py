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

from mixdim.kernels.ids import check_ids, check_offsets
from mixdim.kernels.library import address

# Columns of the int64 tensors that describe a layer. Rows of a block begin in tensor `number` of the
# tables, at row `first_row`; of codes the number is -1. `lift_row` is -1 where nothing is lifted.
BLOCK_COLUMNS = ("feature", "start", "end", "rows", "width", "number", "first_row", "lift_row")
FEATURE_COLUMNS = ("rows", "first_block", "num_blocks", "order_start")
# Of each block of codes: its number, and where it begins in the tensors of codes; first_lift is -1 where
# nothing is lifted. Then how many directions have so many bits.
WIDTHS = (8, 6, 5, 4, 3, 2, 1)
CODED_COLUMNS = ("block", "rows", "first_byte", "first_step", "first_lift", "has_mean", *WIDTHS)
# What kernels return; or else the position of an id out of range.
FINE, BAD_OFFSETS, BAD_CODES = -1, -2, -4


class KernelLayout:
    """Where blocks and features are, and which shapes that asks of tensors: all that never changes.

    It may come from a file, in an exported graph, so it is not believed: what contradicts itself is a
    ValueError.
    """

    feature: np.ndarray
    start: np.ndarray
    end: np.ndarray
    rows: np.ndarray
    width: np.ndarray
    number: np.ndarray
    first_row: np.ndarray
    lift_row: np.ndarray

    def __init__(
        self, blocks: Tensor, features: Tensor, base_dim: int, coded: np.ndarray | None = None
    ) -> None:
        self.features, self.base_dim = features.numpy(), base_dim
        for name, column in zip(BLOCK_COLUMNS, blocks.numpy().T, strict=True):
            setattr(self, name, column)
        self.coded = np.zeros((0, len(CODED_COLUMNS)), np.int64) if coded is None else coded
        if not self._is_whole():
            raise ValueError(
                "the layout of blocks and features contradicts itself: export the layer again"
            )
        ordered = self.features[self.features[:, 3] >= 0]
        self.order_length = int((ordered[:, 3] + ordered[:, 0]).max(initial=0))
        self.unordered = self.features.copy()
        self.unordered[:, 3] = 0
        self._find_shapes()

    def _find_shapes(self) -> None:
        """Find the shapes of all tensors, and the structs of lookup.h with offsets for addresses."""
        lifted, is_float = self.lift_row >= 0, self.number >= 0
        own = self.number[is_float]
        lengths, widths = np.zeros((2, int(own.max(initial=-1)) + 1), np.int64)
        widths[own] = self.width[is_float]
        np.maximum.at(lengths, own, (self.first_row + self.rows)[is_float])
        self.widths: list[int] = widths.tolist()
        self.lengths: list[int] = lengths.tolist()
        self._is_lifted = lifted.astype(np.int64)
        self.lift_rows = int((self.lift_row + self.width)[lifted].max(initial=0))
        self.lifts_all = int(self.width[lifted].sum()) == self.lift_rows
        row_bytes = np.where(is_float, 4 * self.first_row * self.width, 0)
        lift_bytes = np.where(lifted, 4 * self.lift_row * self.base_dim, 0)
        places = (row_bytes, lift_bytes, np.zeros_like(row_bytes))
        self.block_structs = np.stack([self.start, self.end, self.rows, self.width, *places], axis=1)
        self._find_lengths_of_codes()

    def _find_lengths_of_codes(self) -> None:
        """Find how long the tensors of codes must be at least."""
        _, rows, byte, step, lift, mean, *directions = self.coded.T
        count = np.sum(directions, axis=0, dtype=np.int64)
        bits = np.array(WIDTHS) @ np.array(directions)
        ends = (
            byte + rows * ((bits + 7) // 8),
            step + count,
            np.where(lift >= 0, lift + (count + mean) * self.base_dim, 0),
        )
        self.code_lengths = [int(end.max(initial=0)) for end in ends]

    def placed_blocks(self, tables: Sequence[Tensor], lift: Tensor | None) -> np.ndarray:
        """The structs of the blocks, of tensors that have the shapes they must have."""
        for table, length, width in zip(tables, self.lengths, self.widths, strict=True):
            require_shape(table, f"table_{width}", (length, width))
        structs = self.block_structs.copy()
        places = np.array([*(table.data_ptr() for table in tables), 0])  # the last is of codes
        structs[:, 4] += places[self.number]
        if self.lift_rows:
            assert lift is not None
            require_lift(lift, self)
            structs[:, 5] += self._is_lifted * lift.data_ptr()
        return structs

    def placed_codes(self, codes: Codes) -> np.ndarray:
        """The struct of codes.h, of tensors that are as long as they must be."""
        for name, tensor, least in zip(codes._fields, codes[:3], self.code_lengths, strict=False):
            if tensor is not None and len(tensor) < least:
                raise RuntimeError(
                    f"{name} has shape {tuple(tensor.shape)} where at least {least} numbers are needed: "
                    "was its data replaced?"
                )
        return struct_of(codes)

    def _is_whole(self) -> bool:
        num_rows, first_block, num_blocks, order = self.features.T
        starts, ends, width, number = self.start, self.end, self.width, self.number
        if not (len(num_rows) and len(starts) and (num_blocks >= 1).all()):
            return False
        if num_blocks.sum() != len(starts) or (first_block != np.cumsum(num_blocks) - num_blocks).any():
            return False
        follows = np.ones(len(starts), bool)  # whether a block begins where the one before it ends
        follows[1:] = starts[1:] == ends[:-1]
        follows[first_block] = starts[first_block] == 0
        is_float = number >= 0
        least = min(width.min() - 1, number.min() + 1, self.first_row.min())
        kinds = set(zip(number[is_float].tolist(), width[is_float].tolist(), strict=True))
        return bool(
            follows.all()
            and (self.feature == np.repeat(np.arange(len(num_rows)), num_blocks)).all()
            and (ends[first_block + num_blocks - 1] == num_rows).all()
            and (starts < ends).all()
            and ((self.rows == ends - starts) | ((self.rows == 1) & is_float)).all()
            and (order >= -1).all()
            and least >= 0
            and len(kinds) == number.max() + 1
            and (width <= self.base_dim).all()
            and ((self.lift_row >= 0) == ((width < self.base_dim) & is_float)).all()
            and np.array_equal(np.flatnonzero(~is_float), self.coded[:, 0])
        )


class Codes(NamedTuple):
    """The tensors that hold the codes of a layer, and the levels that they stand for."""

    codes: Tensor  # uint8
    steps: Tensor  # float16
    coded_lift: Tensor | None  # float16
    levels: Tensor  # float32


def struct_of(codes: Codes) -> np.ndarray:
    """The struct CodeTensors of codes.h: where each tensor is, and how long."""
    return np.array([n for t in codes for n in ((0, 0) if t is None else (t.data_ptr(), len(t)))])


class LayerArguments(NamedTuple):
    """What kernels are told about a layer; all but the last three also to the operator of a graph."""

    tables: list[Tensor]  # by number: (rows, width)
    lift: Tensor | None  # (rows, base_dim)
    rank_of_id: Tensor | None
    blocks: Tensor  # see BLOCK_COLUMNS
    features: Tensor  # see FEATURE_COLUMNS
    base_dim: int
    padding_id: int | None
    names: str
    sparse: bool  # whether tables get row-sparse gradients; in a graph they are always dense
    layout: KernelLayout  # of the blocks and features
    codes: Codes | None


class Lookup(NamedTuple):
    """Ids (B, F), or those of bags (V,) with offsets and perhaps weights; and the layer they are for."""

    ids: Tensor
    offsets: Tensor | None
    row_weights: Tensor | None
    layer: LayerArguments

    def changeable(self) -> list[Tensor | None]:
        """What somebody may change before the backward pass: autograd holds it, and notices."""
        layer = self.layer
        return [
            *(self.ids, self.offsets, self.row_weights, layer.rank_of_id, layer.lift),
            *layer.tables,
        ]

    def unchangeable(self) -> LayerArguments:
        """The rest."""
        return self.layer._replace(tables=[], lift=None, rank_of_id=None)

    @classmethod
    def of_kept(cls, layer: LayerArguments, kept: Sequence[Any]) -> Lookup:
        """Put both together again."""
        ids, offsets, row_weights, rank_of_id, lift, *tables = kept
        whole = layer._replace(tables=tables, lift=lift, rank_of_id=rank_of_id)
        return cls(ids, offsets, row_weights, whole)

    @property
    def parameters(self) -> tuple[Tensor | None, ...]:
        """What may be trained: the lift, then the tables."""
        return (self.layer.lift, *self.layer.tables)


class LayerStructs:
    """The structs of lookup.h for the blocks of a layer and ids; keeps alive what they point to."""

    def __init__(self, lookup: Lookup) -> None:
        ids, self.offsets, row_weights, layer = lookup
        self.arguments, self.layout = layer, layer.layout
        self.block_structs = self.layout.placed_blocks(layer.tables, layer.lift)
        self.codes = None if layer.codes is None else self.layout.placed_codes(layer.codes)
        self._check_order()
        self._count_ids(ids, row_weights)
        self.feature_structs = self.layout.unordered
        if layer.rank_of_id is not None:
            order = self.layout.features[:, 3]
            self.feature_structs = self.layout.features.copy()
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
        if returned == BAD_CODES:
            raise RuntimeError("the codes of this layer contradict its plan: load its state again")
        if returned == BAD_OFFSETS:
            assert self.offsets is not None
            check_offsets(self.offsets, self.num_values)
            raise RuntimeError("offsets were changed while they were read")
        self.check_ids()
        raise damaged_order()

    def check_ids(self) -> None:
        """Say which id is out of range, if one is, in the words of the plain path."""
        layer, ids, rows = self.arguments, self.kept[0], torch.from_numpy(self.layout.features[:, 0])
        assert ids is not None
        features = torch.arange(len(rows))
        if self.offsets is not None:
            features = bags_of(self.offsets) // max(self.batch, 1)
        check_ids(ids, rows, layer.padding_id, layer.names, features=features)

    def _check_order(self) -> None:
        """Refuse an order of another length than the layer was made with."""
        rank_of_id, needed = self.arguments.rank_of_id, self.layout.order_length
        held = 0 if rank_of_id is None else len(rank_of_id)
        if held < needed:
            raise RuntimeError(f"rank_of_id has {held} entries where this layer needs {needed}")

    def _count_ids(self, ids: Tensor, row_weights: Tensor | None) -> None:
        """Find how many ids there are; the shapes were checked where a user calls."""
        num_features = len(self.layout.features)
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


def require_lift(lift: Tensor, layout: KernelLayout) -> None:
    """Refuse a lift that has fewer rows than the blocks read of it; others may be other storages'."""
    if len(lift) < layout.lift_rows or lift.shape[1:] != (layout.base_dim,):
        raise RuntimeError(
            f"lift has shape {tuple(lift.shape)} where at least {layout.lift_rows} rows of "
            f"{layout.base_dim} are needed: was its data replaced?"
        )
    assert lift.dtype is torch.float32
    assert lift.is_contiguous()
