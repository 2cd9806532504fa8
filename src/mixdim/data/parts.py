"""Which samples of a batch one of several processes takes. Knows nothing about where they come from."""

from __future__ import annotations

from typing import Any

import numpy as np

from mixdim._util.arguments import WrongTypeError, whole_number

Part = tuple[int, int]  # which process, of how many


def checked_part(part: Any) -> Part | None:
    """The part as two whole numbers, if there is one.

    >>> checked_part([2, 2])
    Traceback (most recent call last):
    ValueError: part must be (rank, world) with rank below world, got (2, 2)
    """
    if part is None:
        return None
    if not isinstance(part, tuple | list) or len(part) != 2:
        raise WrongTypeError(f"part must be (rank, world), such as (0, 2), got {part!r}")
    rank, world = whole_number(part[0], "rank", at_least=0), whole_number(part[1], "world")
    if rank >= world:
        raise ValueError(f"part must be (rank, world) with rank below world, got ({rank}, {world})")
    return rank, world


def positions_of(samples: int, part: Part) -> tuple[np.ndarray, np.ndarray]:
    """The positions in a batch that are a process's share, and how much each counts, as float32.

    All shares are of one size, ceil(samples / world): where there are not enough samples the last one is
    repeated, and counts nothing.

    >>> [positions_of(5, (rank, 2)) for rank in (0, 1)][1]
    (array([3, 4, 4]), array([1., 1., 0.], dtype=float32))
    """
    rank, world = part
    share = -(-samples // world)
    positions = np.arange(rank * share, (rank + 1) * share)
    return np.minimum(positions, samples - 1), (positions < samples).astype(np.float32)
