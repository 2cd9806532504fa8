"""Rows of their own as they are trained, one below the other; or one row that a whole block shares.

The table of `mixdim.storages.rows.Rows` in 32 bits, which it does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

from mixdim._util.lazy import import_later
from mixdim.storages.codes import check_finite
from mixdim.storages.fitting import Lost, Metric, RowSource, Sums
from mixdim.storages.table import HeldBlock, KernelBlock, Place, Slots, StoredBlock, Table

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor

    from mixdim.serving.graph import Graph

import_later(globals(), torch="torch", F="torch.nn.functional")


class FloatRows(Table):
    """Rows of one width, one below the other; what the kernels know too."""

    @staticmethod
    def kernel_blocks(blocks: Sequence[StoredBlock]) -> list[KernelBlock]:
        """Rows follow each other."""
        return [KernelBlock(block.first_row) for block in blocks]

    def take(self, rows: Tensor, slots: Slots) -> Tensor:
        """Take rows as they are stored: -> (..., dim)."""
        return F.embedding(self.table_rows(rows, slots), self.tensors["table"], sparse=self.sparse)

    def pool(
        self, rows: Tensor, slots: Tensor | int, numbers: Tensor, num_bags: int, weights: Tensor | None
    ) -> Tensor:
        """Add up stored rows by the number of their bag: (V,) -> (num_bags, dim)."""
        table = self.tensors["table"]
        return F.embedding_bag(
            self.table_rows(rows, slots),
            table,
            torch.searchsorted(numbers, torch.arange(num_bags + 1, device=numbers.device)),
            mode="sum",
            per_sample_weights=None if weights is None else weights.to(table.dtype),
            include_last_offset=True,
            sparse=self.sparse,
        )

    def dense(self, block: StoredBlock) -> Tensor:
        """The vectors of all rows of one block: (size, base_dim)."""
        return self.lift(self.parts(block)["table"], block.slot).expand(block.size, -1)

    def table_rows(self, rows: Tensor, slots: Slots) -> Tensor:
        """A row of its own for each, or the one that all share: -> (...)."""
        is_shared = self.blocks[0].storage.dim == 0
        return (torch.zeros_like(rows) if is_shared else rows) + self.of_slots(slots, 0)

    def fit(self, block: StoredBlock, source: RowSource, metric: Metric | None) -> Lost:
        """Set a block to the nearest matrix of its rank, the weighted SVD; a shared row to the mean."""
        dim, parts, directions, lost = block.storage.dim, self.parts(block), None, Lost()
        if dim == 0:
            sums = Sums.of(source)
            parts["table"].copy_((sums.first / (sums.mass or 1.0))[None] * source.scale)
            return sums.lost_by_mean(metric)
        if "projection" in parts:
            directions, projection, lost = Sums.of(source).main_directions(metric, dim)
            check_finite(projection)
            parts["projection"].copy_(projection)
        for here, vectors, weights in source.chunks():
            parts["table"][here].copy_(vectors if directions is None else vectors @ directions)
            if directions is None:
                vectors = vectors / source.scale
                lost += Lost.between(vectors, vectors, weights, metric)
        return lost

    @classmethod
    def alone(
        cls, block: StoredBlock, base_dim: int, dtype: torch.dtype, device: torch.device
    ) -> FloatRows:
        """A table of one block, as that is trained, of any numbers."""
        trained = replace(block, storage=block.storage.trainable(), first_row=0, slot=0)
        dim = trained.storage.dim
        tensors = {"table": torch.empty(block.size, dim, dtype=dtype, device=device)}
        if dim < base_dim:
            tensors["projection"] = torch.empty(1, dim, base_dim, dtype=dtype, device=device)
        numbers = torch.zeros(1, 1, dtype=torch.int64, device=device)
        return cls([trained], base_dim, tensors, numbers, sparse=False)

    @property
    def graph_group(self) -> str:
        """Rows that are not lifted are looked up together, those of one block and those all share."""
        return super().graph_group if "projection" in self.tensors else ""

    def places_in_graph(self, blocks: Sequence[HeldBlock]) -> list[Place]:
        """Blocks are one below the other, with a row of zeros at the end."""
        stored = (held.block.storage.stored_rows(held.block.size) for held in blocks)
        *firsts, end = accumulate(stored, initial=0)
        return [
            Place(first, end, is_shared=not held.block.storage.has_own_rows)
            for first, held in zip(firsts, blocks, strict=True)
        ]

    def take_in_graph(
        self, graph: Graph, rows: str, blocks: Sequence[HeldBlock], *, blocks_first: bool
    ) -> str:
        """One Gather."""
        tables = [held.parts["table"] for held in blocks]
        zeros = tables[0].new_zeros(1, tables[0].shape[1])
        return graph.add("Gather", graph.weights(torch.cat([*tables, zeros])), rows)
