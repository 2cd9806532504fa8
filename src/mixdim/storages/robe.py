"""A row is a piece of one array that many blocks share (Desai et al., Random Offset Block Embedding).

Knows nothing about other storages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mixdim._util.lazy import import_later
from mixdim.storages.fitting import distance, fit_by_descent, main_directions
from mixdim.storages.hashing import MASK, hash_row, hash_row_in_graph, salts
from mixdim.storages.init import BlockInit, Uniform
from mixdim.storages.storage import Storage
from mixdim.storages.table import HeldBlock, Slots, StoredBlock, Table, TensorSpec, for_each_block

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from mixdim.serving.graph import Graph

import_later(globals(), torch="torch")


class RobeTable(Table):
    """One circular array of numbers for all blocks; projections are each block's own.

    The array gets dense gradients: rows touch so many of its numbers that sorting them, as row-sparse
    gradients would need, takes ten times longer than adding them up.
    """

    row_sparse = ()

    @staticmethod
    def holds(blocks: Sequence[StoredBlock], base_dim: int) -> dict[str, TensorSpec]:
        """The array, and unless at full width a projection a block."""
        shared = {"table": TensorSpec((blocks[0].storage.shared_parameters,))}
        return Table.holds(blocks, base_dim) | shared

    @staticmethod
    def slot_numbers(block: StoredBlock) -> tuple[int, ...]:
        """The number of the hash that says where a row begins: equal ranks of blocks begin elsewhere.

        It is the block's slot in its group: blocks that are whole features come first, then bands, each
        in the plan's order.
        """
        return (block.slot,)

    def take(self, rows: Tensor, slots: Slots) -> Tensor:
        """Take `dim` consecutive numbers from where the hash says: -> (..., dim)."""
        places = self._places(rows, self.of_slots(slots, 0))
        return self.tensors["table"].index_select(0, places.flatten()).view(places.shape)

    def take_in_graph(
        self, graph: Graph, rows: str, blocks: Sequence[HeldBlock], *, blocks_first: bool
    ) -> str:
        """Gather numbers one by one from where the hash says."""
        storage = self.blocks[0].storage
        length = graph.constant(storage.shared_parameters)
        numbers = [number for held in blocks for number in self.slot_numbers(held.block)]
        salt = for_each_block(graph, salts(numbers), blocks_first=blocks_first)
        start = graph.add("Mod", hash_row_in_graph(graph, rows, salt), length)
        start = graph.add("Unsqueeze", start, graph.constant([-1]))
        places = graph.add("Add", start, graph.constant(np.arange(storage.dim)))
        array = graph.weights(self.tensors["table"])
        return graph.add("Gather", array, graph.add("Mod", places, length))

    def _places(self, rows: Tensor, salt: Tensor) -> Tensor:
        """Where in the array the numbers of each row are: (...) -> (..., dim)."""
        storage = self.blocks[0].storage
        length = storage.shared_parameters
        starts = hash_row(rows, salt) % length
        return (starts[..., None] + torch.arange(storage.dim, device=rows.device)) % length

    def parts(self, block: StoredBlock) -> dict[str, Tensor]:
        """The whole array, which is others' too, and the block's own projection."""
        return super().parts(block) | {"table": self.tensors["table"]}

    def draw(self, block: StoredBlock, init: BlockInit) -> None:
        """Draw as for a narrow block; the first block draws the array of all."""
        if block.slot == 0:
            super().draw(block, init)
        else:
            self.draw_projection(block, init)

    def first_rows(self, block: StoredBlock, init: BlockInit) -> Uniform:
        """Draw the array so that its rows are as long as those of narrow blocks are in the mean.

        Each block would draw narrow rows by its size; the bound of the array is the root of the mean
        over all rows of the squares of those bounds.
        """
        sizes = [other.size for other in self.blocks]
        squares = [init.rows(block.storage.dim, size).bound ** 2 for size in sizes]
        mean = sum(size * square for size, square in zip(sizes, squares, strict=True)) / sum(sizes)
        return replace(super().first_rows(block, init), bound=math.sqrt(mean))

    @property
    def why_not_to_fit(self) -> str | None:
        """To fit one of several blocks would change the others."""
        if len(self.blocks) == 1:
            return None
        return (
            f"{len(self.blocks)} blocks share the array of {self.blocks[0].storage}, and blocks are "
            "fitted one by one: of another length, a block has an array of its own"
        )

    def fit_dense(self, block: StoredBlock, matrix: Tensor, row_weights: Tensor) -> None:
        """Set a block that has the array for itself: by least squares at full width, else by descent.

        The descent starts from the main directions, or if that is nearer from the mean row. At full
        width there may be no array whose vectors are all the mean row.
        """
        rows = torch.arange(block.size, device=matrix.device)
        places, parts = self._places(rows, self.numbers[block.slot, 0]), self.parts(block)
        if "projection" not in parts:
            parts["table"].copy_(self._mean_numbers(places, matrix, row_weights))
            return

        def vectors(array: Tensor, projection: Tensor) -> Tensor:
            return array[places] @ projection

        dim = block.storage.dim
        directions = main_directions(matrix, row_weights, dim)
        numbers = self._mean_numbers(places, matrix @ directions, row_weights)
        mean = (row_weights @ matrix / row_weights.sum()).expand(dim, -1) / dim
        fits = [
            fit_by_descent(vectors, start, matrix, row_weights)
            for start in ([numbers, directions.t()], [torch.ones_like(numbers), mean])
        ]
        array, projection = min(fits, key=lambda fit: distance(vectors(*fit), matrix, row_weights))
        parts["table"].copy_(array)
        parts["projection"].copy_(projection)

    def _mean_numbers(self, places: Tensor, stored: Tensor, row_weights: Tensor) -> Tensor:
        """The array that is nearest to stored vectors: (rows, dim) twice, (rows,) -> (length,)."""
        weights = row_weights[:, None].expand_as(stored)
        empty = stored.new_zeros(self.blocks[0].storage.shared_parameters)
        mass = empty.index_add(0, places.flatten(), weights.flatten())
        sums = empty.index_add(0, places.flatten(), (weights * stored).flatten())
        return torch.where(mass > 0, sums / mass, 0.0)


@dataclass(frozen=True)
class Robe(Storage):
    """A row is `dim` consecutive numbers of a circular array of `length`, lifted as usual.

    All blocks of a plan with this very storage share one array, whatever their feature. Where a row
    begins, a fixed hash of its rank says, another one for each block (Desai et al. 2022, Random Offset
    Block Embedding).

    >>> Robe(4, length=1000).cost(size=10_000, base_dim=16), Robe(4, length=1000).shared_parameters
    (Cost(table=0, projection=64, held_bytes=0), 1000)
    """

    length: int

    kind = "robe"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.dim <= self.length <= MASK:
            raise ValueError(f"length must be from dim {self.dim} to below 2^32, got {self.length}")

    @property
    def table_type(self) -> type[Table]:
        """See `RobeTable`."""
        return RobeTable

    @property
    def group(self) -> str:
        """Blocks of one width and length share an array."""
        return f"robe{self.length}_{self.dim}"

    @property
    def shared_parameters(self) -> int:
        """The numbers of the array."""
        return self.length

    def stored_rows(self, size: int) -> int:
        """None of its own."""
        return 0

    def describe(self, size: int) -> str:
        """Such as "4 of a shared array of 1,000"."""
        return f"{self.dim} of a shared array of {self.length:,}"
