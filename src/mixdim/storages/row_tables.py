"""How rows of their own become vectors: numbers as they are trained, or codes of a few bits.

The tables of `mixdim.storages.rows.Rows`, which they do not know.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

from mixdim._util.lazy import import_later
from mixdim.storages.codes import (
    CODES,
    GROUP,
    SCALES,
    check_finite,
    code_bytes,
    num_groups,
    quantize_values,
    rows_in_graph,
    values_at,
)
from mixdim.storages.fitting import Lost, Metric, RowSource, Sums
from mixdim.storages.init import Init
from mixdim.storages.table import HeldBlock, KernelBlock, Place, Slots, StoredBlock, Table, TensorSpec

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor

    from mixdim.kernels import backend
    from mixdim.kernels import decode as decoding
    from mixdim.serving.graph import Graph

import_later(globals(), torch="torch", F="torch.nn.functional")
import_later(globals(), backend="mixdim.kernels.backend", decoding="mixdim.kernels.decode")


AT_ONCE = 2**18  # numbers that become codes


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

    def fit(self, block: StoredBlock, source: RowSource, metric: Metric | None) -> Lost:
        """Set a block to the nearest matrix of its rank, the weighted SVD; a shared row to the mean."""
        return _fit_rows(self, block, source, metric)

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
        """Copy the parts of a block; a table (size, dim) becomes codes, a chunk at a time."""
        if "table" not in parts:
            super().fill(block, parts)
            return
        if "projection" in parts:
            check_finite(parts["projection"])
            self.parts(block)["projection"].copy_(parts["projection"])
        at_once = max(AT_ONCE // block.storage.dim // 64, 1) * 64  # whole groups
        for first in range(0, block.size, at_once):
            self.fill_rows(block, first, parts["table"][first : first + at_once])

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

    def fit(self, block: StoredBlock, source: RowSource, metric: Metric | None) -> Lost:
        """Fit rows as they would be trained, and quantize them."""
        return _fit_rows(self, block, source, metric)

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


def _fit_rows(
    table: FloatRows | CodedRows, block: StoredBlock, source: RowSource, metric: Metric | None
) -> Lost:
    """Set a block to the nearest rows of its width: as they are, along main directions, or the mean."""
    dim, parts, directions, lost = block.storage.dim, table.parts(block), None, Lost()
    if dim == 0:
        sums = Sums.of(source)
        table.fill_rows(block, 0, (sums.first / (sums.mass or 1.0))[None] * source.scale)
        return sums.lost_by_mean(metric)
    if "projection" in parts:
        directions, projection, lost = Sums.of(source).main_directions(metric, dim)
        check_finite(projection)
        parts["projection"].copy_(projection)
    for here, vectors, weights in source.chunks():
        table.fill_rows(block, here.start, vectors if directions is None else vectors @ directions)
        if directions is None:
            vectors = vectors / source.scale
            lost += Lost.between(vectors, vectors, weights, metric)
    # What codes lose is measured.
    return table.lost(block, source, metric) if block.storage.is_quantized else lost


def _starts(blocks: Sequence[StoredBlock]) -> list[tuple[int, int]]:
    """Where the bytes of codes and the scales of each block begin, and at last where all end."""
    bits, values = blocks[0].storage.bits, [block.size * block.storage.dim for block in blocks]
    codes = accumulate((code_bytes(count, bits) for count in values), initial=0)
    scales = accumulate((num_groups(count, bits) for count in values), initial=0)
    return list(zip(codes, scales, strict=True))
