"""How rows of a block become vectors: what the tables of all storages share. Knows nothing about ids.

Letters: a lookup of C blocks at once takes B rows of each, or V rows of any of them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from mixdim._util.lazy import import_later
from mixdim.storages.fitting import Lost, Metric, RowSource, fit_stored_rows
from mixdim.storages.init import BlockInit, Uniform

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from mixdim.serving.graph import Graph

import_later(globals(), torch="torch")

Slots: TypeAlias = "slice | Tensor | int"  # blocks: of C runs of rows, of each row, or of all rows


@dataclass(frozen=True)
class StoredBlock:
    """A block of `size` rows, and its place among those of its group.

    Its own stored rows begin at row `first_row` of the group's table; its projection is number `slot` of
    the group's projections.
    """

    storage: Any  # a Storage, whose own fields its table knows
    size: int
    first_row: int
    slot: int


class KernelBlock(NamedTuple):
    """Where kernels find the rows of a block in the tensors of its group.

    That is the first row of its table; or of codes, of which there are `bits` for each direction, the
    first byte and the first step.
    """

    first: int
    first_step: int = 0
    bits: tuple[int, ...] = ()
    mean: bool = False


class TensorSpec(NamedTuple):
    """A tensor that a layer holds for a table; without a type, of the type that the layer has.

    With a name in `joined`, it is a part of the tensor of that name, which has the numbers of all groups
    in a row.
    """

    shape: tuple[int, ...]
    dtype: str | None = None  # as torch names it
    is_trained: bool = True
    joined: str | None = None

    @property
    def numbers(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class Table(ABC):
    """All blocks of one group, and the tensors that a layer holds for them.

    A row is its rank within its block, and the block is a slot. A new storage says how rows are taken
    (`take`); all else follows from that, and may be overridden where there is something faster, or where
    there are other tensors.

    The layer holds the tensors, as parameters of its own: so their names, and with them checkpoints, do
    not depend on how lookups are organised.
    """

    blocks: Sequence[StoredBlock]  # in the order of their slots
    base_dim: int
    # As `holds` names them; and unless at full width "projection" (slots, width, base_dim), of the lift.
    tensors: Mapping[str, Tensor]
    numbers: Tensor  # (slots, numbers of a slot), beside the tensors: see `slot_numbers`
    sparse: bool  # whether the tensors in `row_sparse` get row-sparse gradients

    row_sparse: ClassVar[tuple[str, ...]] = ("table",)

    @staticmethod
    def holds(blocks: Sequence[StoredBlock], base_dim: int) -> dict[str, TensorSpec]:
        """The tensors of a group, beside the lift, which a layer has for all groups: its stored rows."""
        dim = blocks[0].storage.width(base_dim)
        rows = sum(block.storage.stored_rows(block.size) for block in blocks)
        return {"table": TensorSpec((rows, dim))}

    @staticmethod
    def kernel_blocks(blocks: Sequence[StoredBlock]) -> list[KernelBlock] | None:
        """Where kernels find the rows of each block; None where only `take` knows."""
        return None

    @staticmethod
    def slot_numbers(block: StoredBlock) -> tuple[int, ...]:
        """What `take` must know of a block, with its first stored row at first."""
        return (block.first_row,)

    @classmethod
    def all_slot_numbers(cls, blocks: Sequence[StoredBlock]) -> list[tuple[int, ...]]:
        """What `take` must know of each block of a group."""
        return [cls.slot_numbers(block) for block in blocks]

    def table_rows(self, rows: Tensor, slots: Slots) -> Tensor:
        """The rows of the tensors in `row_sparse` that `take` reads, some maybe several times."""
        raise NotImplementedError

    @abstractmethod
    def take(self, rows: Tensor, slots: Slots) -> Tensor:
        """Take rows as they are stored: (C, B) of a slice of C slots, or (V,) -> (..., dim)."""

    def lift(self, vectors: Tensor, slots: slice | int) -> Tensor:
        """Lift stored vectors to base_dim: (C, B, dim) or (V, dim) -> (..., base_dim)."""
        # A full-width block needs no lifting, so uniform dimensions cost nothing extra.
        projection = self.tensors.get("projection")
        return vectors if projection is None else vectors @ projection[slots].to(vectors.dtype)

    def forward(self, rows: Tensor, slots: slice | int) -> Tensor:
        """Look rows up: (C, B) of C slots, or (V,) of one slot -> (..., base_dim)."""
        return self.lift(self.take(rows, slots), slots)

    def pool(
        self, rows: Tensor, slots: Tensor | int, numbers: Tensor, num_bags: int, weights: Tensor | None
    ) -> Tensor:
        """Add up stored rows by the number of their bag, which never falls: (V,) -> (num_bags, dim).

        What is added can still be lifted: the same by linearity, and cheaper than lifting first.
        """
        vectors = self.take(rows, slots)
        if weights is not None:
            vectors = vectors * weights.to(vectors.dtype)[:, None]
        return vectors.new_zeros(num_bags, vectors.shape[1]).index_add(0, numbers, vectors)

    def dense(self, block: StoredBlock) -> Tensor:
        """The vectors of all rows of one block, with dense gradients: (size, base_dim)."""
        rows = torch.arange(block.size, device=self.numbers.device)
        return replace(self, sparse=False).forward(rows, block.slot)

    def parts(self, block: StoredBlock) -> dict[str, Tensor]:
        """The parts of the tensors that are one block's own, to read or to fill."""
        last_row = block.first_row + block.storage.stored_rows(block.size)
        parts = {"table": self.tensors["table"][block.first_row : last_row]}
        if "projection" in self.tensors:
            parts["projection"] = self.tensors["projection"][block.slot]
        return parts

    def fill(self, block: StoredBlock, parts: Mapping[str, Tensor]) -> None:
        """Copy given parts into a block's own."""
        for name, part in self.parts(block).items():
            part.copy_(parts[name])

    @property
    def why_not_to_fit(self) -> str | None:
        """Why `fit_dense` cannot set blocks of this group, if so."""
        return None

    def fit(self, block: StoredBlock, source: RowSource, metric: Metric | None) -> Lost:
        """Set a block so that its vectors come near those of a source; returns what is lost.

        Here all rows are read at once, and distances are usual ones: only rows of their own are fitted
        a chunk at a time, and in a metric.
        """
        _, vectors, of_rows = zip(*source.chunks(), strict=True)
        matrix, weights = torch.cat(vectors), torch.cat(of_rows)
        self.fit_dense(block, matrix, weights / weights.max())
        return self.lost(block, source)

    def lost(self, block: StoredBlock, source: RowSource, metric: Metric | None = None) -> Lost:
        """Measure how far the vectors of a block are from those of a source, a chunk at a time."""
        lost = Lost()
        for here, vectors, weights in source.chunks():
            rows = torch.arange(here.start, here.stop, device=self.numbers.device)
            found = replace(self, sparse=False).forward(rows, block.slot).to(vectors)
            lost += Lost.between(found / source.scale, vectors / source.scale, weights, metric)
        return lost

    def fit_dense(self, block: StoredBlock, matrix: Tensor, row_weights: Tensor) -> None:
        """Set a block so that its dense matrix comes near a given one, in place.

        `matrix` (size, base_dim) and `row_weights` (size,), not all zero, are float64. The sum over rows
        of weight * squared distance is made small, and is not above that of the mean row.
        """
        numbers = self.numbers[block.slot : block.slot + 1].clone()
        numbers[:, 0] = 0  # as if the block were alone
        rows, parts = torch.arange(block.size, device=numbers.device), self.parts(block)

        def take(stored: Tensor) -> Tensor:
            alone = replace(self, tensors={"table": stored}, numbers=numbers, sparse=False)
            return alone.take(rows, 0)

        dim = block.storage.dim if "projection" in parts else None
        stored, projection = fit_stored_rows(take, len(parts["table"]), matrix, row_weights, dim)
        parts["table"].copy_(stored)
        if projection is not None:
            parts["projection"].copy_(projection)

    def draw(self, block: StoredBlock, init: BlockInit) -> None:
        """Draw a block's weights: its stored rows, and its projection if it has one."""
        self.first_rows(block, init).fill(self.parts(block)["table"])
        self.draw_projection(block, init)

    def draw_projection(self, block: StoredBlock, init: BlockInit) -> None:
        """Draw a block's projection, if it has one."""
        if (projection := self.parts(block).get("projection")) is not None:
            init.projection(*projection.shape).fill(projection)

    def first_rows(self, block: StoredBlock, init: BlockInit) -> Uniform:
        """How the stored rows of a block are drawn: by their width, and by how many rows it has."""
        return init.rows(block.storage.width(self.base_dim), block.size)

    def of_slots(self, slots: Slots, column: int) -> Tensor:
        """One of the `slot_numbers` of each row's block, to combine with rows of those slots."""
        found = self.numbers[slots, column]
        return found[:, None] if isinstance(slots, slice) else found

    # The same in a graph of ONNX operators. A graph takes M ranks of each of C blocks, all of one
    # `graph_group`; `graph` writes the operators, and values in it are known by their names.

    @property
    def graph_group(self) -> str:
        """A graph looks up all blocks of one such group together."""
        return self.blocks[0].storage.group

    def places_in_graph(self, blocks: Sequence[HeldBlock]) -> list[Place]:
        """Where the rows of each block are in the arrays that `take_in_graph` writes.

        By default `take_in_graph` gets ranks, and finds the rows of each block itself.
        """
        return [Place() for _ in blocks]

    def take_in_graph(
        self, graph: Graph, rows: str, blocks: Sequence[HeldBlock], *, blocks_first: bool
    ) -> str:
        """Take rows as they are stored: (M, C), or with `blocks_first` (C, M), -> (..., dim)."""
        stored = self.blocks[0].storage
        raise ExportError(f"blocks stored as {stored} cannot be exported to ONNX yet")

    def forward_in_graph(self, graph: Graph, rows: str, blocks: Sequence[HeldBlock]) -> str:
        """Look rows up and lift them: (M, C) -> (M, C, base_dim)."""
        if "projection" not in self.tensors:
            return self.take_in_graph(graph, rows, blocks, blocks_first=False)
        projections = [held.parts["projection"] for held in blocks]
        if len(blocks) == 1:
            stored = self.take_in_graph(graph, rows, blocks, blocks_first=False)
            return graph.add("MatMul", stored, graph.weights(projections[0]))
        # One product of all samples for each block.
        rows = graph.add("Transpose", rows, perm=[1, 0])
        stored = self.take_in_graph(graph, rows, blocks, blocks_first=True)
        lifted = graph.add("MatMul", stored, graph.weights(torch.stack(projections)))
        return graph.add("Transpose", lifted, perm=[1, 0, 2])


class ExportError(ValueError):
    """A storage has no ONNX form."""


class Place(NamedTuple):
    """How a graph turns a rank within a block into a row of the array that it reads."""

    first: int = 0  # the row of rank 0
    zeros: int | None = None  # a row of zeros, for ranks outside of the block; None if there is none
    is_shared: bool = False  # all ranks are the first row


@dataclass(frozen=True, eq=False)
class HeldBlock:
    """A block and the table that holds it."""

    table: Table
    block: StoredBlock

    @property
    def parts(self) -> dict[str, Tensor]:
        """The block's own parts of the table's tensors."""
        return self.table.parts(self.block)


def joined(blocks: Sequence[HeldBlock]) -> tuple[Tensor, list[int]]:
    """The stored rows of blocks one below the other, and where each begins and the last ends."""
    tables = [held.parts["table"] for held in blocks]
    return torch.cat(tables), list(accumulate(map(len, tables), initial=0))


def for_each_block(graph: Graph, numbers: Sequence[int], *, blocks_first: bool, more: int = 0) -> str:
    """A number for each block, to combine with ranks that have `more` dimensions behind."""
    return graph.constant(np.reshape(numbers, (len(numbers), *([1] * (blocks_first + more)))))
