"""The hash that says where rows are stored that share memory. Knows nothing about storages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mixdim._util.lazy import import_later

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from mixdim.serving.graph import Graph

import_later(globals(), torch="torch")

MASK = 2**32 - 1
SALT, FACTORS = 0x9E3779B9, (0x85EBCA6B, 0xC2B2AE35)


def hash_rows(rows: Tensor, hashes: int) -> Tensor:
    """Hash the ranks of rows in `hashes` ways, each to [0, 2^32): (...) -> (..., hashes).

    >>> hash_rows(torch.tensor([0, 1, 2]), hashes=2).tolist()
    [[0, 2462723854], [1364076727, 920564995], [821347078, 3024231355]]
    """
    return hash_row(rows[..., None], torch.arange(hashes, device=rows.device))


def hash_row(rows: Tensor, number: Tensor) -> Tensor:
    """Hash `number` of the ranks of rows, to [0, 2^32); both broadcast.

    Hash k of a rank is the finaliser of MurmurHash3 (32 bits) of rank xor (rank >> 32) xor
    (k * 0x9E3779B9), all modulo 2^32: the same on every machine, and in every version.
    """
    mixed = (rows ^ (rows >> 32) ^ (number * SALT)) & MASK
    # Products beyond 2^63 wrap around, and leave the lower 32 bits as they must be.
    mixed = ((mixed ^ (mixed >> 16)) * FACTORS[0]) & MASK
    mixed = ((mixed ^ (mixed >> 13)) * FACTORS[1]) & MASK
    return mixed ^ (mixed >> 16)


def salts(numbers: Iterable[int]) -> list[int]:
    """What `hash_row_in_graph` takes in the place of the numbers of hashes."""
    return [(number * SALT) & MASK for number in numbers]


def hash_row_in_graph(graph: Graph, rows: str, salts: str) -> str:
    """`hash_row` with operators of ONNX: all numbers stay below 2^63."""

    def masked(value: str) -> str:
        return graph.add("BitwiseAnd", value, graph.constant(MASK))

    def mixed(value: str, shift: int) -> str:
        return graph.add("BitwiseXor", value, graph.add("Div", value, graph.constant(1 << shift)))

    value = masked(graph.add("BitwiseXor", mixed(rows, 32), salts))
    for shift, factor in zip((16, 13), FACTORS, strict=True):
        value = masked(graph.add("Mul", mixed(value, shift), graph.constant(factor)))
    return mixed(value, 16)
