"""Rows that weight decay by time has left behind, brought up to date by a kernel, in place."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from mixdim.kernels.library import call, outside_of_graphs

# The struct Decayed of decay.h.
_PLACES = ("weight", "decayed_to", "limit", "width")
DECAYED = np.dtype([(name, np.int64) for name in _PLACES] + [("now", np.float64)])


@outside_of_graphs
def bring_up(weight: Tensor, decayed_to: Tensor, rows: Tensor, now: float) -> int:
    """Multiply each row (width,) by exp(now - decayed_to), once, and note it; returns the rows."""
    width = weight[:1].numel()
    table = (weight.data_ptr(), decayed_to.data_ptr(), len(weight), width, now)
    seen = call("mixdim_bring_up", np.array([table], DECAYED), rows, len(rows))
    if seen != len(rows):
        raise IndexError(f"row {int(rows[seen])} is not one of the {len(weight)} of a table")
    return seen
