"""Memory that is kept for the next call: fresh memory costs a fault for every page. Knows no kernels."""

from __future__ import annotations

import torch
from torch import Tensor

MOST_KEPT = 4
_free: list[Tensor] = []


class Borrowed:
    """A float32 buffer of at least `count` numbers, of any content; back in the pool when it is forgotten."""

    def __init__(self, count: int) -> None:
        fitting = [n for n, buffer in enumerate(_free) if buffer.numel() >= count]
        try:
            self.buffer = _free.pop(min(fitting, key=lambda n: _free[n].numel())) if fitting else None
        except IndexError:  # another thread was faster
            self.buffer = None
        if self.buffer is None:
            if _free and len(_free) >= MOST_KEPT:
                _free.pop(0)  # too small for what is asked for now
            self.buffer = torch.empty(count + count // 8)

    def __del__(self) -> None:
        buffer = getattr(self, "buffer", None)
        if buffer is not None and len(_free) < MOST_KEPT:
            _free.append(buffer)

    def address(self, offset: int = 0) -> int:
        """Where number `offset` is."""
        return self.buffer.data_ptr() + 4 * offset
