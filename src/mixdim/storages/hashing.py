"""The hash that says where rows are stored that share memory. Knows nothing about storages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixdim._util.lazy import import_later

if TYPE_CHECKING:
    import torch
    from torch import Tensor

import_later(globals(), torch="torch")

MASK = 2**32 - 1


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
    mixed = (rows ^ (rows >> 32) ^ (number * 0x9E3779B9)) & MASK
    # Products beyond 2^63 wrap around, and leave the lower 32 bits as they must be.
    mixed = ((mixed ^ (mixed >> 16)) * 0x85EBCA6B) & MASK
    mixed = ((mixed ^ (mixed >> 13)) * 0xC2B2AE35) & MASK
    return mixed ^ (mixed >> 16)
