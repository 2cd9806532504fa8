"""Memory that is kept for the next call, in large pages where the system has them. Knows no kernels.

Fresh memory costs a fault for every page, and rows that are read at random cost more than the reading
where each lies in a page of its own.
"""

from __future__ import annotations

import math
import mmap
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

MOST_KEPT = 6
LARGE = 2**20  # floats: two pages of 2 MB
_free: list[Tensor] = []


class Borrowed:
    """A buffer of at least `count` floats, of any content; back in the pool when it is forgotten."""

    def __init__(self, count: int) -> None:
        self.buffer = _fitting(count)
        if self.buffer is None:
            if len(_free) >= MOST_KEPT:
                _free.pop(0)  # smaller than what is needed now
            self.buffer = _fresh(count + count // 8)

    def __del__(self) -> None:
        buffer = getattr(self, "buffer", None)
        if buffer is not None and len(_free) < MOST_KEPT:
            _free.append(buffer)

    def address(self, offset: int = 0) -> int:
        """Where number `offset` is."""
        assert self.buffer is not None
        return self.buffer.data_ptr() + 4 * offset


def empty(*shape: int) -> Tensor:
    """Like torch.empty; a large tensor is back in the pool when it is forgotten."""
    count = math.prod(shape)
    if count < LARGE:
        return torch.empty(shape)
    return torch.from_numpy(np.asarray(_Lent(Borrowed(count), shape)))


class _Lent:
    """What an array is made from, and keeps alive."""

    def __init__(self, borrowed: Borrowed, shape: tuple[int, ...]) -> None:
        self.borrowed = borrowed
        place = (borrowed.address(), False)
        self.__array_interface__ = {"version": 3, "typestr": "<f4", "shape": shape, "data": place}


def _fitting(count: int) -> Tensor | None:
    """Take the smallest free buffer that is large enough."""
    try:
        fitting = [n for n, buffer in enumerate(_free) if buffer.numel() >= count]
        return _free.pop(min(fitting, key=lambda n: _free[n].numel())) if fitting else None
    except IndexError:  # another thread was faster
        return None


def _fresh(count: int) -> Tensor:
    if count < LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(count, device="cpu", dtype=torch.float32)
    try:
        memory = mmap.mmap(-1, 4 * count)
    except OSError as error:
        raise MemoryError(f"no memory for {4 * count:,} bytes that the kernels work with") from error
    with suppress(OSError):  # it is a wish
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.from_numpy(np.frombuffer(memory, dtype=np.float32))
