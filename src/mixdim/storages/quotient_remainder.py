"""A row is the product of two stored ones: of its quotient and of its remainder (Shi et al. 2019).

Knows nothing about other storages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mixdim._util.lazy import import_later
from mixdim.storages.fitting import fit_by_descent, fit_stored_rows
from mixdim.storages.init import BlockInit
from mixdim.storages.storage import Storage
from mixdim.storages.table import HeldBlock, Slots, StoredBlock, Table, for_each_block, joined

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor

    from mixdim.serving.graph import Graph

import_later(globals(), torch="torch", F="torch.nn.functional")


class QuotientRemainderTable(Table):
    """Of each block its quotient rows, then its remainder rows; blocks one below the other."""

    @staticmethod
    def slot_numbers(block: StoredBlock) -> tuple[int, ...]:
        """The first of a block's stored rows, its number of buckets, and its first remainder row."""
        buckets, quotients = _parts_of(block)
        return (block.first_row, buckets, block.first_row + quotients)

    def take(self, rows: Tensor, slots: Slots) -> Tensor:
        """Multiply quotient and remainder rows: -> (..., dim)."""
        pairs = self.table_rows(rows, slots)
        quotient, remainder = F.embedding(pairs, self.tensors["table"], sparse=self.sparse)
        return quotient * remainder

    def table_rows(self, rows: Tensor, slots: Slots) -> Tensor:
        """The quotient row and the remainder row of each row: -> (2, ...)."""
        first, buckets, first_remainder = (self.of_slots(slots, column) for column in range(3))
        return torch.stack([first + rows // buckets, first_remainder + rows % buckets])

    def take_in_graph(
        self, graph: Graph, rows: str, blocks: Sequence[HeldBlock], *, blocks_first: bool
    ) -> str:
        """Multiply quotient and remainder rows."""
        rows_of_all, (*firsts, _) = joined(blocks)
        buckets, quotients = zip(*(_parts_of(held.block) for held in blocks), strict=True)
        first_remainders = [first + count for first, count in zip(firsts, quotients, strict=True)]
        first, bucket, first_remainder = (
            for_each_block(graph, numbers, blocks_first=blocks_first)
            for numbers in (firsts, buckets, first_remainders)
        )
        table = graph.weights(rows_of_all)
        quotient = graph.add("Add", graph.add("Div", rows, bucket), first)
        remainder = graph.add("Add", graph.add("Mod", rows, bucket), first_remainder)
        return graph.add(
            "Mul", graph.add("Gather", table, quotient), graph.add("Gather", table, remainder)
        )

    def draw(self, block: StoredBlock, init: BlockInit) -> None:
        """Draw quotients as the rows of a narrow block; remainders are 1, so products are as long.

        Rows that share a quotient start equal, and training tells them apart. Random remainders trained
        worse the more they differed, on MovieLens as clicks.
        """
        super().draw(block, init)
        _, quotients = _parts_of(block)
        self.parts(block)["table"][quotients:].fill_(1.0)

    def fit_dense(self, block: StoredBlock, matrix: Tensor, row_weights: Tensor) -> None:
        """Start from quotients as least squares gives them and remainders of 1, and descend."""
        parts, rows = self.parts(block), torch.arange(block.size, device=matrix.device)
        buckets, quotients = _parts_of(block)
        dim = block.storage.dim if "projection" in parts else None

        def take(quotient: Tensor) -> Tensor:
            return quotient[rows // buckets]

        def vectors(quotient: Tensor, remainder: Tensor, *projection: Tensor) -> Tensor:
            stored = take(quotient) * remainder[rows % buckets]
            return stored @ projection[0] if projection else stored

        quotient, projection = fit_stored_rows(take, quotients, matrix, row_weights, dim)
        start = [quotient, quotient.new_ones(buckets, quotient.shape[1])]
        start += [] if projection is None else [projection]
        quotient, remainder, *lifted = fit_by_descent(vectors, start, matrix, row_weights)
        parts["table"].copy_(torch.cat([quotient, remainder]))
        if lifted:
            parts["projection"].copy_(lifted[0])


@dataclass(frozen=True)
class QuotientRemainder(Storage):
    """A row of a block is quotient[row // buckets] * remainder[row % buckets], lifted as usual.

    A block of n rows keeps ceil(n / buckets) quotient rows and `buckets` remainder rows of width `dim`:
    no two rows are the same pair (Shi et al. 2019, compositional embeddings, with products).

    >>> QuotientRemainder(4, buckets=100).cost(size=10_000, base_dim=16)
    Cost(table=800, projection=64, held_bytes=0)
    """

    buckets: int

    kind = "quotient_remainder"

    @property
    def table_type(self) -> type[Table]:
        """See `QuotientRemainderTable`."""
        return QuotientRemainderTable

    @property
    def group(self) -> str:
        """Blocks of one width share a table."""
        return f"qr_{self.dim}"

    @property
    def gradient_rows_per_id(self) -> int:
        """A quotient and a remainder."""
        return 2

    def quotients(self, size: int) -> int:
        """How many quotient rows a block of `size` rows has."""
        return -(-size // self.buckets)

    def stored_rows(self, size: int) -> int:
        """Quotient rows and remainder rows."""
        return self.quotients(size) + self.buckets

    def describe(self, size: int) -> str:
        """Such as "4 quotient-remainder, 100 x 100"."""
        return f"{self.dim} quotient-remainder, {self.quotients(size):,} x {self.buckets:,}"


def _parts_of(block: StoredBlock) -> tuple[int, int]:
    """How many buckets, which is remainder rows, and quotient rows a block has."""
    storage = block.storage
    assert isinstance(storage, QuotientRemainder)
    return storage.buckets, storage.quotients(block.size)
