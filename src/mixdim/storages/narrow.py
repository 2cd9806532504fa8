"""The paper's storage: every row of a block has `dim` numbers of its own. Knows no other storages."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mixdim.storages.fitting import main_directions
from mixdim.storages.storage import Storage
from mixdim.storages.table import Slots, StoredBlock, Table


class NarrowTable(Table):
    """Rows of one width, one below the other; what the kernels know too."""

    def take(self, rows: Tensor, slots: Slots) -> Tensor:
        """Take rows as they are stored: -> (..., dim)."""
        table_rows = rows + self.of_slots(slots, 0)
        return F.embedding(table_rows, self.tensors["table"], sparse=self.sparse)

    def pool(
        self, rows: Tensor, slots: Tensor | int, numbers: Tensor, num_bags: int, weights: Tensor | None
    ) -> Tensor:
        """Add up stored rows by the number of their bag: (V,) -> (num_bags, dim)."""
        table = self.tensors["table"]
        return F.embedding_bag(
            rows + self.of_slots(slots, 0),
            table,
            torch.searchsorted(numbers, torch.arange(num_bags + 1, device=numbers.device)),
            mode="sum",
            per_sample_weights=None if weights is None else weights.to(table.dtype),
            include_last_offset=True,
            sparse=self.sparse,
        )

    def dense(self, block: StoredBlock) -> Tensor:
        """The vectors of all rows of one block: (size, base_dim)."""
        return self.lift(self.parts(block)["table"], block.slot)

    def fit_dense(self, block: StoredBlock, matrix: Tensor, row_weights: Tensor) -> None:
        """Set a block to the nearest matrix of its rank: the weighted SVD."""
        parts = self.parts(block)
        if "projection" in parts:
            directions = main_directions(matrix, row_weights, block.storage.dim)
            parts["projection"].copy_(directions.t())
            matrix = matrix @ directions
        parts["table"].copy_(matrix)


@dataclass(frozen=True)
class Narrow(Storage):
    """A table of width `dim`, lifted to base_dim by a projection of the block's own (paper, Alg. 2).

    >>> Narrow(4).cost(size=1000, base_dim=16)
    Cost(table=4000, projection=64, held_bytes=0)
    """

    kind = "narrow"
    Table = NarrowTable

    @property
    def group(self) -> str:
        """Blocks of one width share a table."""
        return str(self.dim)

    def stored_rows(self, size: int) -> int:
        """One for each."""
        return size
