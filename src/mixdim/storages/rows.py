"""Every row of a block has numbers of its own: as they are trained, or as codes of a few bits.

The paper's storage. Beyond the paper: width 0, one row that all rows of the block share, and fewer
bits a number, for serving. Knows no other storages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mixdim._util.arguments import whole_number
from mixdim._util.lazy import import_later
from mixdim.storages.codes import GROUP, SCALE_BYTES, code_bytes, num_groups
from mixdim.storages.row_tables import CodedRows, FloatRows
from mixdim.storages.storage import FLOAT_BYTES, Cost, Storage, stored_cost
from mixdim.storages.table import StoredBlock, Table

if TYPE_CHECKING:
    import torch
    from torch import Tensor

import_later(globals(), torch="torch")

BITS = (32, *GROUP)


@dataclass(frozen=True)
class Rows(Storage):
    """Each row is `dim` numbers, lifted to base_dim by a projection of the block's own (paper, Alg. 2).

    - `dim`: 0 is one row of base_dim for all rows of the block.
    - `bits`: 32 are trained. With 8 or 4, rows are served as codes: 64 consecutive numbers of the block
      (32 with 4 bits) share a scale in float16, and the projection stays float32. Nothing of that is
      trained: train a layer of `plan.trainable()`, then serve `layer.quantized()`.

    >>> Rows(4).cost(size=1000, base_dim=16), Rows(0).cost(size=1000, base_dim=16).parameters
    (Cost(table=4000, projection=64, held_bytes=0), 16)
    >>> Rows(4, bits=8).cost(size=1000, base_dim=16)  # 4,000 codes, 63 scales and a projection
    Cost(table=0, projection=0, held_bytes=4382)
    """

    bits: int = 32

    kind = "rows"
    least_dim = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bits(self.bits)
        if self.dim == 0 and self.is_quantized:
            raise ValueError(f"a row that all share has 32 bits, got {self.bits}: use Rows(0)")

    @property
    def table_type(self) -> type[Table]:
        """Numbers as they are, or codes."""
        return CodedRows if self.is_quantized else FloatRows

    @property
    def least_bits(self) -> int:
        """Projections and scales have more."""
        return self.bits

    @property
    def is_shardable(self) -> bool:
        """TorchRec holds numbers, no codes."""
        return not self.is_quantized

    @property
    def has_own_rows(self) -> bool:
        """Width 0 has none."""
        return self.dim > 0

    @property
    def group(self) -> str:
        """Blocks of one width and number of bits share a table."""
        return f"int{self.bits}_{self.dim}" if self.is_quantized else str(self.dim)

    @property
    def order(self) -> tuple[bool, bool, int, str]:
        """Rows as they are trained come first, the widest before others."""
        # A row that a block of width 0 shares is as wide as can be.
        return (self.is_quantized, self.dim > 0, -self.dim, self.group)

    def trainable(self) -> Rows:
        """The same width in 32 bits."""
        return Rows(self.dim)

    def quantized(self, bits: int) -> Rows:
        """The same width in fewer bits; a row that all share stays as it is."""
        quantized = Rows(max(self.dim, 1), bits)
        return quantized if self.dim and not self.is_quantized else self

    def stored_rows(self, size: int) -> int:
        """One for each, or one for all."""
        return size if self.dim else 1

    def width(self, base_dim: int) -> int:
        """A shared row has full width."""
        return self.dim or base_dim

    def cost(self, size: int, base_dim: int) -> Cost:
        """Parameters of a table and a projection; or the bytes of codes, scales and a projection."""
        cost = super().cost(size, base_dim)
        return _coded(cost, size * self.dim, self.bits) if self.is_quantized else cost

    def describe(self, size: int) -> str:
        """The width, and what becomes of rows without any: such as "4", "0, one row", "4 of 8 bits"."""
        if self.is_quantized:
            return f"{self.dim} of {self.bits} bits"
        return str(self.dim) if self.dim else "0, one row"


def check_bits(bits: Any) -> int:
    """Return the bits of a number if rows can be kept in so many; otherwise say which there are.

    >>> check_bits(8)
    8
    """
    bits = whole_number(bits, "bits")
    if bits not in BITS:
        raise ValueError(f"bits must be {', '.join(map(str, BITS[:-1]))} or {BITS[-1]}, got {bits}")
    return bits


def rows_cost(sizes: np.ndarray, dims: np.ndarray, base_dim: int, bits: int = 32) -> Any:
    """The cost of each of many blocks of `Rows(dim, bits)`, in float64: exact up to 2**53.

    A block of width 0 has 32 bits, whatever the others have.

    >>> rows_cost(np.array([1000, 1000]), np.array([4, 0]), base_dim=16).parameters.tolist()
    [4064.0, 16.0]
    >>> rows_cost(np.array([1000, 1000]), np.array([4, 0]), base_dim=16, bits=8).held_bytes.tolist()
    [4382.0, 0.0]
    """
    rows, widths = np.where(dims > 0, sizes, 1), np.where(dims > 0, dims, base_dim)
    cost = stored_cost(rows.astype(np.float64), widths.astype(np.float64), base_dim)
    if bits == 32:
        return cost
    coded = _coded(cost, rows * widths.astype(np.float64), bits)
    numbers: Any = [np.where(dims > 0, few, full) for few, full in zip(coded, cost, strict=True)]
    return Cost(*numbers)


def _coded(cost: Cost, values: Any, bits: int) -> Cost:
    """What rows of that many numbers cost as codes, where `cost` is that in 32 bits; arrays too."""
    coded = code_bytes(values, bits) + num_groups(values, bits) * SCALE_BYTES
    return Cost(0, 0, held_bytes=coded + cost.projection * FLOAT_BYTES)


def table_of(matrix: Tensor) -> FloatRows:
    """A table of one block of full width, whose rows are those of a matrix (size, base_dim)."""
    size, base_dim = matrix.shape
    numbers = torch.zeros((1, 1), dtype=torch.int64, device=matrix.device)
    block = StoredBlock(Rows(base_dim), size, first_row=0, slot=0)
    return FloatRows([block], base_dim, {"table": matrix}, numbers, sparse=False)
