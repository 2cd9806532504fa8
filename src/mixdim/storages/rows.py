"""Every row of a block has numbers of its own: as they are trained, or as codes of a few bits.

The paper's storage. Beyond the paper: width 0, one row that all rows of the block share, and fewer
bits a number, for serving. Knows no other storages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from mixdim._util.lazy import import_later
from mixdim.storages.codes import (
    CODES,
    GROUP,
    SCALE_BYTES,
    SCALES,
    check_finite,
    code_bytes,
    num_groups,
    quantize_values,
    values_at,
)
from mixdim.storages.fitting import main_directions
from mixdim.storages.init import Init
from mixdim.storages.storage import FLOAT_BYTES, Cost, Storage, stored_cost
from mixdim.storages.table import Slots, StoredBlock, Table, TensorSpec

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor

    from mixdim.kernels import rounded

import_later(globals(), torch="torch", F="torch.nn.functional", rounded="mixdim.kernels.rounded")

BITS = (32, *GROUP)


class FloatRows(Table):
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


class CodedRows(Table):
    """The codes of all blocks of one width, one block after the other, their scales and projections."""

    row_sparse = ()

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return self.blocks[0].storage.bits

    @staticmethod
    def holds(blocks: Sequence[StoredBlock], base_dim: int) -> dict[str, TensorSpec]:
        """Codes and scales, and unless at full width a projection a block in float32."""
        dim, bits = blocks[0].storage.dim, blocks[0].storage.bits
        *_, (codes, scales) = _starts(blocks)
        specs = {
            "codes": TensorSpec((codes,), CODES[bits], is_trained=False),
            "scales": TensorSpec((scales,), SCALES, is_trained=False),
        }
        if dim < base_dim:
            shape = (len(blocks), dim, base_dim)
            specs["projection"] = TensorSpec(shape, "float32", is_trained=False)
        return specs

    @classmethod
    def all_slot_numbers(cls, blocks: Sequence[StoredBlock]) -> list[tuple[int, ...]]:
        """The numbers of each block's first code and first scale."""
        codes_a_byte = 8 // blocks[0].storage.bits
        return [(codes_a_byte * first_byte, scale) for first_byte, scale in _starts(blocks)[:-1]]

    def take(self, rows: Tensor, slots: Slots) -> Tensor:
        """Multiply codes by their scales, in float32: -> (..., dim)."""
        dim = self.blocks[0].storage.dim
        table = rounded.RoundedTable(
            self.tensors["codes"], self.tensors["scales"], self.numbers, self.bits, dim
        )
        if rounded.takes(table, rows):
            return rounded.take(table, rows, slots)
        places = rows[..., None] * dim + torch.arange(dim, device=rows.device)  # in the block
        first_code, first_scale = (self.of_slots(slots, column)[..., None] for column in range(2))
        codes = values_at(self.tensors["codes"], self.bits, first_code + places)
        return codes * self.tensors["scales"][first_scale + places // GROUP[self.bits]]

    def parts(self, block: StoredBlock) -> dict[str, Tensor]:
        """The codes, the scales and the projection of one block."""
        starts = _starts(self.blocks)
        (code, scale), (next_code, next_scale) = starts[block.slot : block.slot + 2]
        parts = {
            "codes": self.tensors["codes"][code:next_code],
            "scales": self.tensors["scales"][scale:next_scale],
        }
        if "projection" in self.tensors:
            parts["projection"] = self.tensors["projection"][block.slot]
        return parts

    def fill(self, block: StoredBlock, parts: Mapping[str, Tensor]) -> None:
        """Copy the parts of a block; a table (size, dim) becomes codes."""
        if "table" in parts:
            codes, scales = quantize_values(parts["table"].flatten(), self.bits)
            if "projection" in parts:
                check_finite(parts["projection"])
            parts = {**parts, "codes": codes, "scales": scales}
        super().fill(block, parts)

    def fill_rows(self, block: StoredBlock, first: int, rows: Tensor) -> None:
        """Quantize stored rows; those before `first` are groups without a rest."""
        codes, scales = quantize_values(rows.flatten(), self.bits)
        parts, before = self.parts(block), first * block.storage.dim
        first_code, first_scale = code_bytes(before, self.bits), num_groups(before, self.bits)
        parts["codes"][first_code : first_code + len(codes)].copy_(codes)
        parts["scales"][first_scale : first_scale + len(scales)].copy_(scales)

    def draw(self, block: StoredBlock, init: Init, generator: torch.Generator | None) -> None:
        """Draw the weights of trained rows, and quantize them."""
        if self.tensors["codes"].is_meta:
            return
        trained = self._trainable(block, torch.float32)
        trained.draw(trained.blocks[0], init, generator)
        self.fill(block, trained.parts(trained.blocks[0]))

    def fit_dense(self, block: StoredBlock, matrix: Tensor, row_weights: Tensor) -> None:
        """Fit trained rows, and quantize them."""
        trained = self._trainable(block, torch.float64)
        trained.fit_dense(trained.blocks[0], matrix, row_weights)
        self.fill(block, trained.parts(trained.blocks[0]))

    def _trainable(self, block: StoredBlock, dtype: torch.dtype) -> FloatRows:
        """A block of the same size and width before it is quantized, alone in its table."""
        alone = [replace(block, storage=block.storage.trainable(), first_row=0, slot=0)]
        device = self.tensors["codes"].device
        tensors = {
            name: torch.empty(spec.shape, dtype=dtype, device=device)
            for name, spec in FloatRows.holds(alone, self.base_dim).items()
        }
        return FloatRows(alone, self.base_dim, tensors, self.numbers.new_zeros(1, 1), sparse=False)


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
        if self.bits not in BITS:
            raise ValueError(
                f"bits must be {', '.join(map(str, BITS[:-1]))} or {BITS[-1]}, got {self.bits}"
            )
        if self.dim == 0 and self.is_quantized:
            raise ValueError(f"a row that all share has 32 bits, got {self.bits}: use Rows(0)")

    @property
    def table_type(self) -> type[Table]:
        """Numbers as they are, or codes."""
        return CodedRows if self.is_quantized else FloatRows

    @property
    def is_quantized(self) -> bool:
        """Whether rows are codes, which are not trained."""
        return self.bits < 32

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


def _starts(blocks: Sequence[StoredBlock]) -> list[tuple[int, int]]:
    """Where the bytes of codes and the scales of each block begin, and at last where all end."""
    bits, values = blocks[0].storage.bits, [block.size * block.storage.dim for block in blocks]
    codes = accumulate((code_bytes(count, bits) for count in values), initial=0)
    scales = accumulate((num_groups(count, bits) for count in values), initial=0)
    return list(zip(codes, scales, strict=True))
