"""Rows of a block share a few stored rows, chosen by a hash: less than one parameter a row.

Knows nothing about other storages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mixdim._util.lazy import import_later
from mixdim.storages.hashing import MASK, hash_row_in_graph, hash_rows, salts
from mixdim.storages.init import BlockInit, Uniform
from mixdim.storages.storage import Storage
from mixdim.storages.table import HeldBlock, Slots, StoredBlock, Table, for_each_block, joined

if TYPE_CHECKING:
    import torch.nn.functional as F
    from torch import Tensor

    from mixdim.serving.graph import Graph

import_later(globals(), F="torch.nn.functional")


class HashedTable(Table):
    """The shared rows of all blocks of one width and number of hashes, one below the other."""

    @property
    def hashes(self) -> int:
        """How many shared rows are added up for a row."""
        storage = self.blocks[0].storage
        assert isinstance(storage, Hashed)
        return storage.hashes

    @staticmethod
    def slot_numbers(block: StoredBlock) -> tuple[int, ...]:
        """The first of a block's shared rows, and how many there are."""
        return (block.first_row, block.storage.stored_rows(block.size))

    def take(self, rows: Tensor, slots: Slots) -> Tensor:
        """Add up the shared rows of each row: -> (..., dim)."""
        shared = self.table_rows(rows, slots)
        return F.embedding(shared, self.tensors["table"], sparse=self.sparse).sum(-2)

    def table_rows(self, rows: Tensor, slots: Slots) -> Tensor:
        """The shared rows of each row: -> (..., hashes)."""
        buckets = hash_rows(rows, self.hashes) % self.of_slots(slots, 1)[..., None]
        return buckets + self.of_slots(slots, 0)[..., None]

    def take_in_graph(
        self, graph: Graph, rows: str, blocks: Sequence[HeldBlock], *, blocks_first: bool
    ) -> str:
        """Add up the shared rows of each rank."""
        table, (*firsts, _) = joined(blocks)
        buckets = [held.block.storage.stored_rows(held.block.size) for held in blocks]
        rows = graph.add("Unsqueeze", rows, graph.constant([-1]))
        hashed = hash_row_in_graph(graph, rows, graph.constant(salts(range(self.hashes))))
        buckets_of, first_of = (
            for_each_block(graph, numbers, blocks_first=blocks_first, more=1)
            for numbers in (buckets, firsts)
        )
        shared = graph.add("Add", graph.add("Mod", hashed, buckets_of), first_of)
        found = graph.add("Gather", graph.weights(table), shared)  # (..., hashes, dim)
        return graph.add("ReduceSum", found, graph.constant([-2]), keepdims=0)

    def first_rows(self, block: StoredBlock, init: BlockInit) -> Uniform:
        """Draw shared rows so that their sums are as long as the rows of a narrow block would be."""
        return super().first_rows(block, init).scaled(1 / math.sqrt(self.hashes))


@dataclass(frozen=True)
class Hashed(Storage):
    """Rows share `buckets` rows of width `dim`: each is the sum of `hashes` of them, lifted as usual.

    Which ones, a fixed hash of the row's rank says (`hash_rows`). `Hashed(dim, buckets=1, hashes=1)` is
    the practitioner's "all rare ids share one row".

    >>> Hashed(4, buckets=100).cost(size=10_000, base_dim=16)
    Cost(table=400, projection=64, held_bytes=0)
    """

    buckets: int
    hashes: int = 2

    kind = "hashed"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.buckets > MASK:
            raise ValueError(f"buckets must be below 2^32, got {self.buckets}")

    @property
    def table_type(self) -> type[Table]:
        """See `HashedTable`."""
        return HashedTable

    @property
    def group(self) -> str:
        """Blocks of one width and number of hashes share a table."""
        return f"hashed{self.hashes}_{self.dim}"

    @property
    def gradient_rows_per_id(self) -> int:
        """One for each row that is added."""
        return self.hashes

    def stored_rows(self, size: int) -> int:
        """The shared rows, however many rows share them."""
        return self.buckets

    def describe(self, size: int) -> str:
        """Such as "4 hashed, 100 x 2"."""
        return f"{self.dim} hashed, {self.buckets:,} x {self.hashes}"
