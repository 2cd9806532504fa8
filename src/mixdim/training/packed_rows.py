"""How the rows of a block lie in a table of TorchRec: index arithmetic, and weights there and back.

Knows nothing about TorchRec. FBGEMM trains tables whose rows have a multiple of 4 numbers. So a stored
row holds 4 // dim rows of a block of width 1 or 2, side by side, and other widths are padded with zeros.

Stored rows are not in order of popularity, or a table cut by rows would have all its popular ones on one
rank. Row s lies at s * stride modulo rows, with a stride near rows / golden ratio, which spreads any run
of rows evenly. That depends on the table alone, so that checkpoints do not depend on who holds what.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from mixdim._util.lazy import import_later

if TYPE_CHECKING:
    import torch
    from torch import Tensor

import_later(globals(), torch="torch")  # only tensors need it

QUANTUM = 4
NUMBERS_AT_ONCE = 2**16
GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class PackedRows:
    """A block of `size` rows of `dim` numbers, as a table of `rows` rows of `width` numbers.

    Widths are multiples of `quantum`; 1 packs one number a row in the order of wider rows.

    >>> PackedRows(10, dim=1).shape, PackedRows(10, dim=2).shape, PackedRows(10, dim=6).shape
    ((3, 4), (5, 4), (10, 8))
    """

    size: int
    dim: int
    quantum: int = QUANTUM

    @property
    def fold(self) -> int:
        """How many rows of the block one stored row holds."""
        return max(1, self.quantum // self.dim) if self.dim in (1, 2) else 1

    @property
    def rows(self) -> int:
        """Stored rows."""
        return -(-self.size // self.fold)

    @property
    def width(self) -> int:
        """Numbers of a stored row."""
        return -(-self.fold * self.dim // self.quantum) * self.quantum

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the table."""
        return self.rows, self.width

    @property
    def is_padded(self) -> bool:
        """Whether some numbers of each stored row stand for nothing."""
        return self.fold * self.dim < self.width

    @cached_property
    def stride(self) -> int:
        """From one stored row to the place of the next; it has no factor in common with `rows`."""
        stride = max(1, round(self.rows * GOLDEN))
        while math.gcd(stride, self.rows) > 1:
            stride += 1
        return stride

    def places(self, first: int, count: int) -> Tensor:
        """Where the stored rows of some rows of the block lie; `first` is a multiple of `fold`."""
        stored = torch.arange(first // self.fold, -(-(first + count) // self.fold))
        return stored * self.stride % self.rows

    def put(self, first: int, values: Tensor, local: Tensor, local_first: int) -> None:
        """Write rows of the block into those stored rows that are here.

        `values` (n, dim) are the rows from `first` on, a multiple of `fold`; `local` (m, width) holds
        the stored rows from `local_first` on.
        """
        places = self.places(first, len(values)) - local_first
        stored = values.new_zeros(len(places) * self.fold, self.dim)
        stored[: len(values)] = values
        stored = stored.view(len(places), self.fold * self.dim)
        here = (places >= 0) & (places < len(local))
        local[places[here], : stored.shape[1]] = stored[here].to(local)

    def fill(self, rows: Callable[[Tensor, int], Tensor], local: Tensor, local_first: int) -> None:
        """Write the rows of the block that belong into those stored rows that are here, some at a time.

        `rows` gives the rows of some numbers in the block when its rows have a given width: where a
        stored row holds several rows of the block, it is one row of them all. `local` is as in `put`.
        """
        width = self.fold * self.dim
        at_once = max(1, NUMBERS_AT_ONCE // width)
        for start in range(0, len(local), at_once):
            here = local[start : start + at_once, :width]
            stored = self._stored(local_first + start, len(here))
            here.copy_(rows(stored, width))
            if self.size % self.fold:  # the last stored row is not full
                here[stored == self.rows - 1, self.size % self.fold * self.dim :] = 0

    def _stored(self, first: int, count: int) -> Tensor:
        """The numbers of the stored rows that lie at places from `first` on: the inverse of `places`."""
        return torch.arange(first, first + count) * pow(self.stride, -1, self.rows) % self.rows

    def take(self, local: Tensor, local_first: int, block: Tensor, block_first: int = 0) -> None:
        """Read the rows of the block that are in some stored rows: the inverse of `put`.

        `local` (m, width) are the stored rows from `local_first` on, and `block` (n, dim) gets those of
        its rows, which are the block's from `block_first` on, that they hold.
        """
        stored = self._stored(local_first, len(local))
        rows = (stored[:, None] * self.fold + torch.arange(self.fold)).flatten() - block_first
        here = (rows >= 0) & (rows < len(block))
        values = local[:, : self.fold * self.dim].reshape(-1, self.dim)
        block[rows[here]] = values[here].to(block)
