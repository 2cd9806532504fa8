"""The paper's storage: every row of a block has `dim` numbers of its own. Knows no other storages.

Beyond the paper, width 0: no numbers of its own, but one row that all rows of the block share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mixdim.storages.fitting import main_directions
from mixdim.storages.storage import Storage, stored_cost
from mixdim.storages.table import Slots, StoredBlock, Table


class NarrowTable(Table):
    """Rows of one width, one below the other; what the kernels know too."""

    def take(self, rows: Tensor, slots: Slots) -> Tensor:
        """Take rows as they are stored: -> (..., dim)."""
        return F.embedding(self._table_rows(rows, slots), self.tensors["table"], sparse=self.sparse)

    def pool(
        self, rows: Tensor, slots: Tensor | int, numbers: Tensor, num_bags: int, weights: Tensor | None
    ) -> Tensor:
        """Add up stored rows by the number of their bag: (V,) -> (num_bags, dim)."""
        table = self.tensors["table"]
        return F.embedding_bag(
            self._table_rows(rows, slots),
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

    def _table_rows(self, rows: Tensor, slots: Slots) -> Tensor:
        is_shared = self.blocks[0].storage.dim == 0
        return (torch.zeros_like(rows) if is_shared else rows) + self.of_slots(slots, 0)

    def fit_dense(self, block: StoredBlock, matrix: Tensor, row_weights: Tensor) -> None:
        """Set a block to the nearest matrix of its rank, the weighted SVD; a shared row to the mean."""
        parts = self.parts(block)
        if block.storage.dim == 0:
            matrix = (row_weights @ matrix / row_weights.sum())[None]
        if "projection" in parts:
            directions = main_directions(matrix, row_weights, block.storage.dim)
            parts["projection"].copy_(directions.t())
            matrix = matrix @ directions
        parts["table"].copy_(matrix)


@dataclass(frozen=True)
class Narrow(Storage):
    """A table of width `dim`, lifted to base_dim by a projection of the block's own (paper, Alg. 2).

    Width 0 is one row of base_dim for all rows of the block.

    >>> Narrow(4).cost(size=1000, base_dim=16), Narrow(0).cost(size=1000, base_dim=16).parameters
    (Cost(table=4000, projection=64, held_bytes=0), 16)
    """

    kind = "narrow"
    Table = NarrowTable
    least_dim = 0

    @property
    def group(self) -> str:
        """Blocks of one width share a table."""
        return str(self.dim)

    def stored_rows(self, size: int) -> int:
        """One for each, or one for all."""
        return size if self.dim else 1

    def width(self, base_dim: int) -> int:
        """A shared row has full width."""
        return self.dim or base_dim

    def describe(self, size: int) -> str:
        """The width, and what becomes of rows without any."""
        return str(self.dim) if self.dim else "0, one row"


def narrow_cost(sizes: np.ndarray, dims: np.ndarray, base_dim: int) -> Any:
    """The cost of each of many narrow blocks, in float64: exact up to 2**53.

    >>> narrow_cost(np.array([1000, 1000]), np.array([4, 0]), base_dim=16).parameters.tolist()
    [4064.0, 16.0]
    """
    rows, widths = np.where(dims > 0, sizes, 1), np.where(dims > 0, dims, base_dim)
    return stored_cost(rows.astype(np.float64), widths.astype(np.float64), base_dim)
