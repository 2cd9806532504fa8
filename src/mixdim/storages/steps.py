"""The step of least squared error for codes of a direction. Knows nothing about blocks or storages.

Numbers are read once, into a histogram of their absolute values; then every step is tried on that.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from mixdim._util.lazy import import_later
from mixdim.storages.levels import levels_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

import_later(globals(), torch="torch")

# Bins of equal ratio, so that any tail has its place: 16 for each doubling, from 2^-14 to 2^18.
PER_DOUBLING, LEAST, MOST = 16, -14, 18
BINS = PER_DOUBLING * (MOST - LEAST)
PER_BIN = 8  # numbers of a bin that stand for all
# The steps to try: 16 for each doubling.
TRIED = 2.0 ** (np.arange(-3 * PER_DOUBLING, 5 * PER_DOUBLING) / PER_DOUBLING)


class Spread:
    """How the numbers of each direction are spread around zero, weighted; their mean square is 1."""

    def __init__(self, dim: int) -> None:
        self.bins = torch.zeros(dim * BINS, dtype=torch.float64)

    def add(self, parts: Tensor, weights: Tensor) -> None:
        """Count some rows: (rows, dim) in float32, (rows,) in float64."""
        # The bits of a float: its exponent, and the 16ths between two powers of two.
        bins = (parts.abs().view(torch.int32) >> 19) - PER_DOUBLING * (127 + LEAST)
        places = bins.clamp_(0, BINS - 1) + BINS * torch.arange(parts.shape[1], dtype=torch.int32)
        every = weights[:, None].expand_as(parts).reshape(-1)
        self.bins += torch.bincount(places.view(-1), every, minlength=len(self.bins))

    def steps(self, bits: tuple[int, ...]) -> Tensor:
        """The best step of each direction for so many bits, in float64: (dim,)."""
        counted = self.bins.view(len(bits), BINS).numpy()
        best = [int((_errors(own) @ counts).argmin()) for own, counts in zip(bits, counted, strict=True)]
        return torch.from_numpy(TRIED[best])


@cache
def _errors(bits: int) -> np.ndarray:
    """The mean squared error in each bin with each step that is tried: (steps, bins)."""
    place = np.arange(BINS)
    low, width = 2.0 ** (place // PER_DOUBLING + LEAST), 2.0 ** (place // PER_DOUBLING + LEAST)
    low, width = low * (1 + place % PER_DOUBLING / PER_DOUBLING), width / PER_DOUBLING
    levels = levels_of(bits).astype(np.float64)
    edges, steps = (levels[1:] + levels[:-1]) / 2, TRIED[:, None]
    error = np.zeros((len(TRIED), BINS))
    for part in (np.arange(PER_BIN) + 0.5) / PER_BIN:  # a bin may have numbers of several levels
        number = low + part * width
        error += (steps * levels[np.searchsorted(edges, number / steps)] - number) ** 2
    return error / PER_BIN
