"""How stored rows are taken inside a graph, by storage. Knows nothing about ids or features.

Each group writes the tables of parts of one storage and width and takes rows of them: of C parts at
once, of M rows each, in the shape (M, C) or (C, M).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mixdim.serving.graph import Graph
from mixdim.serving.parts import Part
from mixdim.storages import Hashed, QuotientRemainder, Rows
from mixdim.storages.codes import CODES, GROUP
from mixdim.storages.hashing import MASK


class Place(NamedTuple):
    """How a rank within a part becomes a row of the group's table, and which row stands for none."""

    first: int
    nowhere: int
    is_shared: bool = False  # all ranks are the first row


@dataclass(frozen=True, eq=False)
class Group(ABC):
    """Parts of one storage and width."""

    parts: Sequence[Part]
    base_dim: int

    needs_mask = False  # whether vectors of no row must be made zero afterwards

    @property
    def width(self) -> int:
        """How many numbers a stored row has."""
        return self.parts[0].storage.width(self.base_dim)

    @property
    def places(self) -> list[Place]:
        """Of each part; where rows are not one below the other, ranks stay ranks."""
        return [Place(0, 0) for _ in self.parts]

    @abstractmethod
    def take(self, graph: Graph, rows: str, *, parts_first: bool) -> str:
        """Take rows as they are stored: (M, C), or with `parts_first` (C, M), -> (..., width)."""

    def projections(self) -> Tensor | None:
        """What lifts the parts: (C, width, base_dim)."""
        if "projection" not in self.parts[0].tensors:
            return None
        return torch.stack([part.tensors["projection"] for part in self.parts])

    def of_parts(self, graph: Graph, numbers: Sequence[int], *, parts_first: bool, more: int = 0) -> str:
        """A number for each part, to combine with rows, with so many more dimensions behind."""
        shape = (len(self.parts), *([1] * (parts_first + more)))
        return graph.constant(np.reshape(numbers, shape))


class NarrowGroup(Group):
    """Tables one below the other, with a row of zeros at the end."""

    @property
    def places(self) -> list[Place]:
        """Each part begins where the one before ends."""
        places, first = [], 0
        for part in self.parts:
            places.append((first, len(part.tensors["table"]) < part.size))
            first += len(part.tensors["table"])
        return [Place(start, first, is_shared) for start, is_shared in places]

    def take(self, graph: Graph, rows: str, *, parts_first: bool) -> str:
        """One Gather."""
        tables = [part.tensors["table"] for part in self.parts]
        zeros = tables[0].new_zeros(1, tables[0].shape[1])
        return graph.add("Gather", graph.weights(torch.cat([*tables, zeros])), rows)


class QuantizedGroup(Group):
    """Codes and scales, taken first and multiplied then: to decode a whole table takes 500 times longer.

    Rows without meaning are put between parts, so that a part begins with a new scale.
    """

    @property
    def _bits(self) -> int:
        storage = self.parts[0].storage
        assert isinstance(storage, Rows)
        return storage.bits

    def _padded_rows(self, rows: int) -> int:
        period = GROUP[self._bits] // math.gcd(GROUP[self._bits], self.width)
        return -(-rows // period) * period

    @property
    def places(self) -> list[Place]:
        """Each part begins where the one before ends with its padding."""
        places, first = [], 0
        for part in self.parts:
            places.append(first)
            first += self._padded_rows(part.size)
        return [Place(start, first) for start in places]

    def take(self, graph: Graph, rows: str, *, parts_first: bool) -> str:
        """Gather codes and scales, then multiply."""
        codes, scales = self._tables()
        scale_of = graph.weights(scales, as_stored=True)
        group = graph.constant(GROUP[self._bits])
        first = rows if self.width == 1 else graph.add("Mul", rows, graph.constant(self.width))
        if GROUP[self._bits] % self.width == 0:  # a row has one scale
            scale = graph.add("Gather", scale_of, graph.add("Div", first, group))
            scale = graph.add("Unsqueeze", scale, graph.constant([-1]))
        else:
            scale = graph.add("Gather", scale_of, graph.add("Div", self._values(graph, first), group))
        whole = (
            self._codes8(graph, codes, rows)
            if self._bits == 8
            else self._codes4(graph, codes, rows, first)
        )
        return graph.add("Mul", whole, graph.cast(scale, np.float32))

    def _codes8(self, graph: Graph, codes: Tensor, rows: str) -> str:
        table = graph.weights(codes.view(-1, self.width))
        return graph.cast(graph.add("Gather", table, rows), np.float32)

    def _codes4(self, graph: Graph, codes: Tensor, rows: str, first: str) -> str:
        """Two codes a byte, the first in the lower half, each plus 8."""
        fifteen, four, two = graph.constant(15, np.uint8), graph.constant(4, np.uint8), graph.constant(2)
        if self.width % 2 == 0:  # a row is whole bytes
            byte = graph.add("Gather", graph.weights(codes.view(-1, self.width // 2)), rows)
            byte = graph.add("Unsqueeze", byte, graph.constant([-1]))
            low = graph.add("BitwiseAnd", byte, fifteen)
            high = graph.add("BitShift", byte, four, direction="RIGHT")
            half = graph.reshape(graph.concat([low, high], axis=-1), [0, 0, self.width])
        else:
            values = self._values(graph, first)
            byte = graph.add("Gather", graph.weights(codes), graph.add("Div", values, two))
            is_even = graph.add("Equal", graph.add("Mod", values, two), graph.constant(0))
            low = graph.add("BitwiseAnd", byte, fifteen)
            high = graph.add("BitShift", byte, four, direction="RIGHT")
            half = graph.add("Where", is_even, low, high)
        return graph.add("Sub", graph.cast(half, np.float32), graph.constant(8, np.float32))

    def _values(self, graph: Graph, first: str) -> str:
        """The number of each value of rows that begin with value `first`: (...) -> (..., width)."""
        first = graph.add("Unsqueeze", first, graph.constant([-1]))
        return graph.add("Add", first, graph.constant(np.arange(self.width)))

    def _tables(self) -> tuple[Tensor, Tensor]:
        """The codes and scales of all parts, with their padding and a row of zeros at the end."""
        bits, width = self._bits, self.width
        zero = 0 if bits == 8 else 0x88
        codes, scales = [], []
        sizes = [part.size for part in self.parts]
        held = [part.tensors for part in self.parts]
        for size, tensors in zip([*sizes, 1], [*held, None], strict=True):
            values = self._padded_rows(size) * width
            padded = torch.full((values * bits // 8,), zero, dtype=getattr(torch, CODES[bits]))
            scale = torch.zeros(values // GROUP[bits], dtype=torch.float16)
            if tensors is not None:
                padded[: len(tensors["codes"])] = tensors["codes"]
                scale[: len(tensors["scales"])] = tensors["scales"]
            codes.append(padded)
            scales.append(scale)
        return torch.cat(codes), torch.cat(scales)


class HashedGroup(Group):
    """Shared rows, chosen by the hash of a rank, added up."""

    needs_mask = True

    def take(self, graph: Graph, rows: str, *, parts_first: bool) -> str:
        """Gather the shared rows of each rank: (..., hashes, width), and add them up."""
        storages = [part.storage for part in self.parts]
        buckets = [s.buckets for s in storages if isinstance(s, Hashed)]
        hashes = next(s.hashes for s in storages if isinstance(s, Hashed))
        tables = [part.tensors["table"] for part in self.parts]
        firsts = np.cumsum([0, *(len(table) for table in tables)])[:-1].tolist()
        rows = graph.add("Unsqueeze", rows, graph.constant([-1]))
        hashed = hash_ranks(graph, rows, graph.constant(_salts(range(hashes))))
        buckets_of, first_of = (
            self.of_parts(graph, numbers, parts_first=parts_first, more=1)
            for numbers in (buckets, firsts)
        )
        shared = graph.add("Add", graph.add("Mod", hashed, buckets_of), first_of)
        found = graph.add("Gather", graph.weights(torch.cat(tables)), shared)
        return graph.add("ReduceSum", found, graph.constant([-2]), keepdims=0)


class QuotientRemainderGroup(Group):
    """The product of a quotient's row and a remainder's."""

    needs_mask = True

    def take(self, graph: Graph, rows: str, *, parts_first: bool) -> str:
        """Two Gathers and a product."""
        firsts, buckets, quotients, first = [], [], [], 0
        for part in self.parts:
            assert isinstance(part.storage, QuotientRemainder)
            firsts.append(first)
            buckets.append(part.storage.buckets)
            quotients.append(first + part.storage.quotients(part.size))
            first += len(part.tensors["table"])
        numbers = (
            self.of_parts(graph, column, parts_first=parts_first)
            for column in (firsts, buckets, quotients)
        )
        first_quotient, bucket, first_remainder = numbers
        table = graph.weights(torch.cat([part.tensors["table"] for part in self.parts]))
        quotient = graph.add("Add", graph.add("Div", rows, bucket), first_quotient)
        remainder = graph.add("Add", graph.add("Mod", rows, bucket), first_remainder)
        return graph.add(
            "Mul", graph.add("Gather", table, quotient), graph.add("Gather", table, remainder)
        )


class RobeGroup(Group):
    """Pieces of one circular array."""

    needs_mask = True

    def take(self, graph: Graph, rows: str, *, parts_first: bool) -> str:
        """Gather numbers one by one from where the hash says."""
        length = graph.constant(self.parts[0].storage.shared_parameters)
        salts = self.of_parts(graph, _salts(part.slot for part in self.parts), parts_first=parts_first)
        start = graph.add("Mod", hash_ranks(graph, rows, salts), length)
        start = graph.add("Unsqueeze", start, graph.constant([-1]))
        places = graph.add("Add", start, graph.constant(np.arange(self.width)))
        array = graph.weights(self.parts[0].tensors["table"])
        return graph.add("Gather", array, graph.add("Mod", places, length))


GROUPS: dict[tuple[str, bool], Callable[[Sequence[Part], int], Group]] = {
    ("rows", False): NarrowGroup,
    ("rows", True): QuantizedGroup,
    ("hashed", False): HashedGroup,
    ("quotient_remainder", False): QuotientRemainderGroup,
    ("robe", False): RobeGroup,
}


def groups_of(parts: Sequence[Part], base_dim: int) -> list[Group]:
    """Parts by storage and width; a row that many share is as wide as all that are not lifted."""
    found: dict[str, list[Part]] = {}
    for part in parts:
        is_full = _kind(part) == ("rows", False) and part.storage.width(base_dim) == base_dim
        found.setdefault("" if is_full else part.storage.group, []).append(part)
    for own in found.values():
        if _kind(own[0]) not in GROUPS:
            raise ValueError(f"blocks stored as {own[0].storage} cannot be exported to ONNX yet")
    # Those of full width first: they are not lifted.
    return [GROUPS[_kind(found[key][0])](found[key], base_dim) for key in sorted(found)]


def _kind(part: Part) -> tuple[str, bool]:
    return part.storage.kind, part.storage.is_quantized


def hash_ranks(graph: Graph, ranks: str, salts: str) -> str:
    """`mixdim.storages.hashing.hash_row` with operators of ONNX; all numbers are below 2^63."""

    def masked(value: str) -> str:
        return graph.add("BitwiseAnd", value, graph.constant(MASK))

    def mixed(value: str, shift: int) -> str:
        return graph.add("BitwiseXor", value, graph.add("Div", value, graph.constant(1 << shift)))

    value = masked(graph.add("BitwiseXor", mixed(ranks, 32), salts))
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        value = masked(graph.add("Mul", mixed(value, shift), graph.constant(factor)))
    return mixed(value, 16)


def _salts(numbers: Iterable[int]) -> list[int]:
    return [(number * 0x9E3779B9) & MASK for number in numbers]
