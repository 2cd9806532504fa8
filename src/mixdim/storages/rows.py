"""Every row of a block has numbers of its own: as they are trained, or as codes of a few bits.

The paper's storage. Beyond the paper: width 0, one row that all rows of the block share, and fewer
bits a number, for serving. Knows no other storages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from mixdim._util.arguments import whole_number
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
    rows_in_graph,
    values_at,
)
from mixdim.storages.fitting import main_directions
from mixdim.storages.init import Init
from mixdim.storages.storage import FLOAT_BYTES, Cost, Storage, stored_cost
from mixdim.storages.table import (
    HeldBlock,
    KernelBlock,
    Place,
    Slots,
    StoredBlock,
    Table,
    TensorSpec,
)

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor

    from mixdim.kernels import backend
    from mixdim.kernels import decode as decoding
    from mixdim.serving.graph import Graph

import_later(globals(), torch="torch", F="torch.nn.functional")
import_later(globals(), backend="mixdim.kernels.backend", decoding="mixdim.kernels.decode")

BITS = (32, *GROUP)


class FloatRows(Table):
    """Rows of one width, one below the other; what the kernels know too."""

    @staticmethod
    def kernel_blocks(blocks: Sequence[StoredBlock]) -> list[KernelBlock]:
        """Rows follow each other."""
        return [KernelBlock(32, block.first_row) for block in blocks]

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


class CodedRows(Table):
    """The codes of all blocks of one width, one block after the other, their scales and projections."""

    row_sparse = ()

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return self.blocks[0].storage.bits

    @staticmethod
    def holds(blocks: Sequence[StoredBlock], base_dim: int) -> dict[str, TensorSpec]:
        """Codes and scales."""
        *_, (codes, scales) = _starts(blocks)
        return {
            "codes": TensorSpec((codes,), CODES[blocks[0].storage.bits], is_trained=False),
            "scales": TensorSpec((scales,), SCALES, is_trained=False),
        }

    @staticmethod
    def kernel_blocks(blocks: Sequence[StoredBlock]) -> list[KernelBlock]:
        """Codes follow each other."""
        bits = blocks[0].storage.bits
        return [KernelBlock(bits, code * 8 // bits, scale) for code, scale in _starts(blocks)[:-1]]

    @classmethod
    def all_slot_numbers(cls, blocks: Sequence[StoredBlock]) -> list[tuple[int, ...]]:
        """The numbers of each block's first code and first scale."""
        codes_a_byte = 8 // blocks[0].storage.bits
        return [(codes_a_byte * first_byte, scale) for first_byte, scale in _starts(blocks)[:-1]]

    def take(self, rows: Tensor, slots: Slots) -> Tensor:
        """Multiply codes by their scales, in float32: -> (..., dim)."""
        dim = self.blocks[0].storage.dim
        table = decoding.CodedTable(
            self.tensors["codes"], self.tensors["scales"], self.numbers, self.bits, dim
        )
        found = backend.dispatch("decode", backend.DecodeCall(table, rows, slots))
        if found is not None:
            return found
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

    def places_in_graph(self, blocks: Sequence[HeldBlock]) -> list[Place]:
        """Blocks are one below the other, padded so that each begins with a new scale; then zeros."""
        *firsts, end = accumulate((self._padded(held.block.size) for held in blocks), initial=0)
        return [Place(first, end) for first in firsts]

    def take_in_graph(
        self, graph: Graph, rows: str, blocks: Sequence[HeldBlock], *, blocks_first: bool
    ) -> str:
        """Gather codes and scales, and multiply them."""
        dim, codes, scales = self.blocks[0].storage.dim, [], []
        zero = 0 if self.bits == 8 else 0x88  # a byte of codes
        own: list[tuple[int, dict[str, Tensor]]] = [(held.block.size, held.parts) for held in blocks]
        for size, parts in [*own, (1, {})]:  # at the end a row of zeros
            values = self._padded(size) * dim
            code = torch.full((code_bytes(values, self.bits),), zero, dtype=self.tensors["codes"].dtype)
            scale = torch.zeros(num_groups(values, self.bits), dtype=self.tensors["scales"].dtype)
            if parts:
                code[: len(parts["codes"])] = parts["codes"]
                scale[: len(parts["scales"])] = parts["scales"]
            codes.append(code)
            scales.append(scale)
        return rows_in_graph(graph, (torch.cat(codes), torch.cat(scales)), rows, dim, self.bits)

    def _padded(self, rows: int) -> int:
        """So many rows and some more, until a scale ends with a row."""
        period = GROUP[self.bits] // math.gcd(GROUP[self.bits], self.blocks[0].storage.dim)
        return -(-rows // period) * period

    def _trainable(self, block: StoredBlock, dtype: torch.dtype) -> FloatRows:
        """A block of the same size and width before it is quantized, alone in its table."""
        alone = [replace(block, storage=block.storage.trainable(), first_row=0, slot=0)]
        device = self.tensors["codes"].device
        dim = block.storage.dim
        tensors = {"table": torch.empty(block.size, dim, dtype=dtype, device=device)}
        if dim < self.base_dim:
            tensors["projection"] = torch.empty(1, dim, self.base_dim, dtype=dtype, device=device)
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
        if not self.is_quantized:
            return cost
        values = size * self.dim
        coded = code_bytes(values, self.bits) + num_groups(values, self.bits) * SCALE_BYTES
        return Cost(0, 0, held_bytes=coded + cost.projection * FLOAT_BYTES)

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


def _starts(blocks: Sequence[StoredBlock]) -> list[tuple[int, int]]:
    """Where the bytes of codes and the scales of each block begin, and at last where all end."""
    bits, values = blocks[0].storage.bits, [block.size * block.storage.dim for block in blocks]
    codes = accumulate((code_bytes(count, bits) for count in values), initial=0)
    scales = accumulate((num_groups(count, bits) for count in values), initial=0)
    return list(zip(codes, scales, strict=True))
