"""Every row of a block has numbers of its own: as they are trained, or as codes of a few bits.

The paper's storage. Beyond the paper: width 0, one row that all rows of the block share, and fewer
bits a number, for serving. Knows no other storages.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from mixdim._util.arguments import WrongTypeError, whole_number
from mixdim._util.lazy import import_later
from mixdim.storages.coded_rows import CodedRows
from mixdim.storages.codes import STEP_BYTES, RowCode
from mixdim.storages.float_rows import FloatRows
from mixdim.storages.levels import BITS
from mixdim.storages.storage import Cost, Storage, stored_cost
from mixdim.storages.table import StoredBlock, Table

if TYPE_CHECKING:
    import torch
    from torch import Tensor

import_later(globals(), torch="torch")

TRAINED = 32  # bits of a number that training changes


@dataclass(frozen=True)
class Rows(Storage):
    """Each row is `dim` numbers, lifted to base_dim by a projection of the block's own (paper, Alg. 2).

    - `dim`: 0 is one row of base_dim for all rows of the block.
    - `bits`: 32 are trained. With 1, 2, 3, 4, 5, 6 or 8, rows are served as codes, packed to the bit: a
      number is the level of its code times the step of its direction, and steps and projections are
      float16. A tuple has the bits of each direction, none more than the one before; these are the main
      directions, so that the block is lifted at full width too.
    - `mean`: whether codes are of what is left when the mean of the block is taken away. The mean is one
      more row of the projection, and costs as much.

    Codes are not trained: train a layer of `plan.trainable()`, then serve `layer.quantized()`.

    >>> Rows(4).cost(size=1000, base_dim=16), Rows(0).cost(size=1000, base_dim=16).parameters
    (Cost(table=4000, projection=64, held_bytes=0), 16)
    >>> Rows(4, bits=8).cost(size=1000, base_dim=16)  # 4,000 codes, 4 steps and 64 of a projection
    Cost(table=0, projection=0, held_bytes=4136)
    >>> Rows(3, bits=(4, 3, 1)).cost(size=1000, base_dim=16).held_bytes  # a byte a row
    1102
    """

    bits: int | tuple[int, ...] = TRAINED
    mean: bool = False

    kind = "rows"
    least_dim = 0
    not_in_json = frozenset({"mean"})

    def __post_init__(self) -> None:
        dim = whole_number(self.dim, "dim", at_least=self.least_dim)
        bits = _bits_by_direction(self.bits, dim) if _is_listed(self.bits) else check_bits(self.bits)
        if not isinstance(self.mean, bool | np.bool_):
            raise WrongTypeError(f"mean must be true or false, got {self.mean!r}")
        for name, value in {"dim": dim, "bits": bits, "mean": bool(self.mean)}.items():
            object.__setattr__(self, name, value)
        if dim == 0 and self.is_quantized:
            raise ValueError(f"a row that all share has 32 bits, got {bits}: use Rows(0)")
        if self.mean and not self.is_quantized:
            raise ValueError("only codes are of what is left without a mean: Rows of 32 bits have none")

    def __repr__(self) -> str:
        given = {"dim": self.dim, "bits": self.bits, "mean": self.mean}
        usual = {"mean": False} | ({} if self.is_quantized else {"bits": TRAINED})
        return f"Rows({', '.join(f'{n}={v}' for n, v in given.items() if usual.get(n) != v)})"

    @property
    def table_type(self) -> type[Table]:
        """Numbers as they are, or codes."""
        return CodedRows if self.is_quantized else FloatRows

    @property
    def code(self) -> RowCode:
        """How a row is kept as codes."""
        return RowCode((self.bits,) * self.dim if isinstance(self.bits, int) else self.bits)

    @property
    def least_bits(self) -> int:
        """Projections and steps have more."""
        return self.bits if isinstance(self.bits, int) else min(self.bits)

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
        """Blocks of one width and of the same bits share a table."""
        if not self.is_quantized:
            return str(self.dim)
        return f"int{self._bits_in_words('_')}_{self.dim}{'_mean' if self.mean else ''}"

    @property
    def order(self) -> tuple[bool, bool, int, str]:
        """Rows as they are trained come first, the widest before others."""
        # A row that a block of width 0 shares is as wide as can be.
        return (self.is_quantized, self.dim > 0, -self.dim, self.group)

    def trainable(self) -> Rows:
        """The same width in 32 bits; what is lifted has its mean among its directions."""
        return Rows(self.dim + self.mean)

    def quantized(self, bits: int) -> Rows:
        """The same width in fewer bits; a row that all share stays as it is."""
        quantized = Rows(max(self.dim, 1), bits)
        return quantized if self.dim and not self.is_quantized else self

    def stored_rows(self, size: int) -> int:
        """One for each, or one for all."""
        return size if self.dim else 1

    def width(self, base_dim: int) -> int:
        """A shared row has full width; of a mean, a row has the share of it, which is 1."""
        return self.dim + self.mean or base_dim

    def is_lifted(self, base_dim: int) -> bool:
        """At full width too where directions differ, or there is a mean."""
        return super().is_lifted(base_dim) or isinstance(self.bits, tuple) or self.mean

    def cost(self, size: int, base_dim: int) -> Cost:
        """Parameters of a table and a projection; or the bytes of codes, steps and a projection."""
        if not self.is_quantized:
            return super().cost(size, base_dim)
        lift = self.width(base_dim) * base_dim * self.is_lifted(base_dim)
        return Cost(0, 0, held_bytes=size * self.code.row_bytes + STEP_BYTES * (self.dim + lift))

    def describe(self, size: int) -> str:
        """Such as "4", "0, one row", "4 of 8 bits", "3 of 4-3-1 bits and a mean"."""
        if not self.is_quantized:
            return str(self.dim) if self.dim else "0, one row"
        return f"{self.dim} of {self._bits_in_words('-')} bits{' and a mean' if self.mean else ''}"

    def _bits_in_words(self, between: str) -> str:
        """Such as "8" or "4-3-1"; of many alike, how many: "4x16-3x8"."""
        if isinstance(self.bits, int):
            return str(self.bits)
        numbers = {own: self.bits.count(own) for own in self.bits}
        return between.join(f"{own}x{n}" if n > 1 else str(own) for own, n in numbers.items())


def check_bits(bits: Any) -> int:
    """Return the bits of a number if rows can be kept in so many; otherwise say which there are.

    >>> check_bits(8)
    8
    """
    bits = whole_number(bits, "bits")
    if bits != TRAINED and bits not in BITS:
        raise ValueError(f"bits must be {', '.join(map(str, BITS))} or {TRAINED}, got {bits}")
    return bits


def _is_listed(bits: Any) -> bool:
    return isinstance(bits, tuple | list | np.ndarray)


def _bits_by_direction(bits: Any, dim: int) -> int | tuple[int, ...]:
    """Bits of each direction; one number where all have the same."""
    own = tuple(check_bits(number) for number in bits)
    if len(own) != dim:
        raise ValueError(f"bits must be one for each of {dim} directions, got {len(own)}")
    if TRAINED in own:
        raise ValueError(f"bits of a direction must be {', '.join(map(str, BITS))}, got {TRAINED}")
    if any(after > before for before, after in pairwise(own)):
        raise ValueError(f"bits must not rise from direction to direction, got {own}")
    return own[0] if len(set(own)) == 1 else own


def rows_cost(sizes: np.ndarray, dims: np.ndarray, base_dim: int) -> Any:
    """The cost of each of many blocks of `Rows(dim)`, in float64: exact up to 2**53.

    >>> rows_cost(np.array([1000, 1000]), np.array([4, 0]), base_dim=16).parameters.tolist()
    [4064.0, 16.0]
    """
    rows, widths = np.where(dims > 0, sizes, 1), np.where(dims > 0, dims, base_dim)
    return stored_cost(rows.astype(np.float64), widths.astype(np.float64), base_dim)


def table_of(matrix: Tensor) -> FloatRows:
    """A table of one block of full width, whose rows are those of a matrix (size, base_dim)."""
    size, base_dim = matrix.shape
    numbers = torch.zeros((1, 1), dtype=torch.int64, device=matrix.device)
    block = StoredBlock(Rows(base_dim), size, first_row=0, slot=0)
    return FloatRows([block], base_dim, {"table": matrix}, numbers, sparse=False)
