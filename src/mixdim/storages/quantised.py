"""A narrow block rounded to a few bits a number, for serving: codes and scales, which nobody trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from mixdim.kernels import rounded
from mixdim.kernels.rounded import RoundedTable
from mixdim.storages.init import Init
from mixdim.storages.narrow import Narrow, NarrowTable
from mixdim.storages.rounding import (
    CODES,
    GROUP,
    SCALES,
    check_finite,
    code_bytes,
    num_groups,
    round_values,
    values_at,
)
from mixdim.storages.storage import Cost, Storage
from mixdim.storages.table import Held, Slots, StoredBlock, Table


class QuantisedTable(Table):
    """The codes of all blocks of one width, one block after the other, their scales and projections."""

    row_sparse = ()

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return _bits_of(self.blocks[0])

    @staticmethod
    def holds(blocks: Sequence[StoredBlock], base_dim: int) -> dict[str, Held]:
        """Codes and scales, and unless at full width a projection a block in float32."""
        dim, bits = blocks[0].storage.dim, _bits_of(blocks[0])
        *_, (codes, scales) = _starts(blocks)
        held = {"codes": Held((codes,), CODES[bits], False), "scales": Held((scales,), SCALES, False)}
        if dim < base_dim:
            held["projection"] = Held((len(blocks), dim, base_dim), torch.float32, False)
        return held

    @classmethod
    def all_slot_numbers(cls, blocks: Sequence[StoredBlock]) -> list[tuple[int, ...]]:
        """The numbers of each block's first code and first scale."""
        codes_a_byte = 8 // _bits_of(blocks[0])
        return [(codes_a_byte * first_byte, scale) for first_byte, scale in _starts(blocks)[:-1]]

    def take(self, rows: Tensor, slots: Slots) -> Tensor:
        """Multiply codes by their scales, in float32: -> (..., dim)."""
        dim = self.blocks[0].storage.dim
        table = RoundedTable(self.tensors["codes"], self.tensors["scales"], self.numbers, self.bits, dim)
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
        """Copy the parts of a block; a table (size, dim) is rounded."""
        if "table" in parts:
            codes, scales = round_values(parts["table"].flatten(), self.bits)
            if "projection" in parts:
                check_finite(parts["projection"])
            parts = {**parts, "codes": codes, "scales": scales}
        super().fill(block, parts)

    def fill_rows(self, block: StoredBlock, first: int, rows: Tensor) -> None:
        """Round stored rows; those before `first` are groups without a rest."""
        codes, scales = round_values(rows.flatten(), self.bits)
        parts, before = self.parts(block), first * block.storage.dim
        first_code, first_scale = code_bytes(before, self.bits), num_groups(before, self.bits)
        parts["codes"][first_code : first_code + len(codes)].copy_(codes)
        parts["scales"][first_scale : first_scale + len(scales)].copy_(scales)

    def draw(self, block: StoredBlock, init: Init, generator: torch.Generator | None) -> None:
        """Draw the weights of a narrow block, and round them."""
        if self.tensors["codes"].is_meta:
            return
        narrow = self._as_narrow(block, torch.float32)
        narrow.draw(narrow.blocks[0], init, generator)
        self.fill(block, narrow.parts(narrow.blocks[0]))

    def fit_dense(self, block: StoredBlock, matrix: Tensor, row_weights: Tensor) -> None:
        """Fit a narrow block, and round it."""
        narrow = self._as_narrow(block, torch.float64)
        narrow.fit_dense(narrow.blocks[0], matrix, row_weights)
        self.fill(block, narrow.parts(narrow.blocks[0]))

    def _as_narrow(self, block: StoredBlock, dtype: torch.dtype) -> NarrowTable:
        """A narrow block of the same size and width, alone in its table."""
        alone = [replace(block, storage=Narrow(block.storage.dim), first_row=0, slot=0)]
        device = self.tensors["codes"].device
        tensors = {
            name: torch.empty(held.shape, dtype=dtype, device=device)
            for name, held in NarrowTable.holds(alone, self.base_dim).items()
        }
        return NarrowTable(alone, self.base_dim, tensors, self.numbers.new_zeros(1, 1), sparse=False)


@dataclass(frozen=True)
class Quantised(Storage):
    """The table of `Narrow(dim)` rounded to codes of 8 or 4 bits; the projection stays float32.

    Each 64 consecutive values of the block's table share a scale in float16, with 4 bits each 32. All of
    it is held and nothing trained: train the plan before, then `layer.quantised()`.

    >>> Quantised(4).cost(size=1000, base_dim=16)  # 4,000 codes, 63 scales and a projection
    Cost(table=0, projection=0, held_bytes=4382)
    """

    bits: int = 8

    kind = "quantised"
    Table = QuantisedTable
    is_trained = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bits not in GROUP:
            raise ValueError(f"bits must be 8 or 4, got {self.bits}")

    @property
    def group(self) -> str:
        """Blocks of one width and number of bits share a table."""
        return f"int{self.bits}_{self.dim}"

    def stored_rows(self, size: int) -> int:
        """One for each."""
        return size

    def cost(self, size: int, base_dim: int) -> Cost:
        """The bytes of codes, scales and the projection."""
        narrow, values = Narrow(self.dim).cost(size, base_dim), size * self.dim
        rounded = code_bytes(values, self.bits) + num_groups(values, self.bits) * SCALES.itemsize
        return Cost(0, 0, held_bytes=rounded + narrow.projection * torch.float32.itemsize)

    def describe(self, size: int) -> str:
        """Such as "4 of 8 bits"."""
        return f"{self.dim} of {self.bits} bits"


def _bits_of(block: StoredBlock) -> int:
    assert isinstance(block.storage, Quantised)
    return block.storage.bits


def _starts(blocks: Sequence[StoredBlock]) -> list[tuple[int, int]]:
    """Where the bytes of codes and the scales of each block begin, and at last where all end."""
    bits, values = _bits_of(blocks[0]), [block.size * block.storage.dim for block in blocks]
    codes = accumulate((code_bytes(count, bits) for count in values), initial=0)
    scales = accumulate((num_groups(count, bits) for count in values), initial=0)
    return list(zip(codes, scales, strict=True))
