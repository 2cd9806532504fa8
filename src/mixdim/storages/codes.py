"""Rows of codes: packed to the bit, read and written. Knows nothing about blocks or storages.

The codes of a row are one stream of bits, the first in the lowest bits of the first byte; a row begins
with a byte. A number is the level of its code times the step of its direction.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from mixdim._util.lazy import import_later
from mixdim.storages.levels import LEVELS, first_level, levels_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from mixdim.serving.graph import Graph

import_later(globals(), torch="torch")

STEPS, STEP_BYTES, LARGEST_STEP = "float16", 2, 65504.0


@dataclass(frozen=True)
class RowCode:
    """How a row of numbers is kept as codes: so many bits for each of its directions.

    >>> RowCode((4, 4, 3)).row_bytes
    2
    """

    bits: tuple[int, ...]

    @property
    def dim(self) -> int:
        """How many numbers a row has."""
        return len(self.bits)

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of the codes of a row."""
        return -(-sum(self.bits) // 8)

    @cached_property
    def _first_bits(self) -> np.ndarray:
        return np.array([*accumulate(self.bits[:-1], initial=0)])

    @cached_property
    def _is_split(self) -> bool:
        """Whether a code begins in one byte and ends in the next."""
        return bool((self._first_bits % 8 + self.bits > 8).any())

    def nearest(self, values: Tensor, steps: Tensor) -> Tensor:
        """The code of the level nearest to each number: (rows, dim), (dim,) -> (rows, dim) int32."""
        unit = values / steps
        codes = torch.empty(values.shape, dtype=torch.int32)
        for bits in set(self.bits):
            first, count = self.bits.index(bits), self.bits.count(bits)
            edges = _edges(bits).to(values.dtype)
            own = unit[:, first : first + count].contiguous()
            codes[:, first : first + count] = torch.bucketize(own, edges, out_int32=True)
        return codes

    def pack(self, codes: Tensor) -> Tensor:
        """Pack codes into bytes: (rows, dim) whole numbers -> (rows, row_bytes) uint8."""
        if set(self.bits) == {8}:
            return codes.to(torch.uint8)
        columns, words = codes.t().contiguous(), codes.new_zeros(self.row_bytes + 1, len(codes))
        for column, first in zip(columns, self._first_bits.tolist(), strict=True):
            word = column << first % 8
            words[first // 8] |= word & 255
            words[first // 8 + 1] |= word >> 8
        return words[:-1].to(torch.uint8).t().contiguous()

    def unpack(self, codes: Tensor, first: Tensor) -> Tensor:
        """Read the codes of rows that begin at given bytes: (...) -> (..., dim) whole numbers."""
        device, bits = first.device, self._first_bits
        low = torch.tensor(bits // 8, device=device)
        shift = torch.tensor(bits % 8, dtype=torch.int32, device=device)
        mask = torch.tensor([2**own - 1 for own in self.bits], dtype=torch.int32, device=device)
        word = codes[first[..., None] + low].to(torch.int32)
        if self._is_split:
            # Of the last byte of a row there is no next one, nor is it needed.
            high = torch.tensor(np.minimum(bits // 8 + 1, self.row_bytes - 1), device=device)
            word = word | codes[first[..., None] + high].to(torch.int32) << 8
        return word >> shift & mask

    def levels(self, codes: Tensor) -> Tensor:
        """The level of each code, in float32: (..., dim) -> (..., dim)."""
        places = codes + torch.tensor(self._first_levels, dtype=torch.int32, device=codes.device)
        levels = torch.tensor(LEVELS, device=codes.device)
        return levels.index_select(0, places.view(-1)).view(places.shape)

    @cached_property
    def _first_levels(self) -> list[int]:
        return [first_level(own) for own in self.bits]

    def decode_in_graph(self, graph: Graph, table: Tensor, rows: str) -> str:
        """The levels of rows of a table (rows, row_bytes): (...) -> (..., dim).

        Codes are gathered first and decoded then: decoding a whole table takes 500 times longer.
        """
        found = graph.add("Gather", graph.weights(table), rows)
        if set(self.bits) != {8}:
            found = self._unpack_in_graph(graph, found)
        found = graph.cast(found, np.int32)
        if len(set(self.bits)) == 1:
            return graph.add("Gather", graph.constant(levels_of(self.bits[0]), np.float32), found)
        found = graph.add("Add", found, graph.constant(self._first_levels, np.int32))
        return graph.add("Gather", graph.constant(LEVELS, np.float32), found)

    def _unpack_in_graph(self, graph: Graph, found: str) -> str:
        """The codes of rows: (..., row_bytes) -> (..., dim)."""
        # Of the types that ONNX Runtime shifts, the smallest that has a code of two bytes.
        kind: Any = np.uint32 if self._is_split else np.uint8
        bits = self._first_bits
        word = graph.add("Gather", found, graph.constant(bits // 8), axis=-1)
        if self._is_split:
            high = np.minimum(bits // 8 + 1, self.row_bytes - 1)
            after = graph.cast(graph.add("Gather", found, graph.constant(high), axis=-1), kind)
            after = graph.add("BitShift", after, graph.constant(8, kind), direction="LEFT")
            word = graph.add("BitwiseOr", graph.cast(word, kind), after)
        word = graph.add("BitShift", word, graph.constant(bits % 8, kind), direction="RIGHT")
        mask = graph.constant([2**own - 1 for own in self.bits], kind)
        return graph.add("BitwiseAnd", word, mask)


@cache
def all_levels() -> Tensor:
    """The levels of all numbers of bits, in float32."""
    return torch.from_numpy(LEVELS)


@cache
def _edges(bits: int) -> Tensor:
    """The numbers halfway between two levels, in float64."""
    levels = levels_of(bits).astype(np.float64)
    return torch.from_numpy((levels[1:] + levels[:-1]) / 2)


def check_finite(values: Tensor) -> None:
    """Refuse numbers that a training which diverged may leave."""
    wrong = ~values.isfinite()
    if bool(wrong.any()):
        raise ValueError(f"its numbers must be finite, got {values[wrong][0].item()}")
