"""The ways in which the rows of a field can be cut into bands of popularity. Knows no widths.

All of them are unions of the same pieces, so what rows add up to is found once for each piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from mixdim._util.arguments import whole_number
from mixdim.layer.rank_code import MOST_BANDS
from mixdim.planning.blocking import descending_order, equal_mass_bands, octave_bands

Bands = int | Literal["octaves"]


@dataclass(frozen=True, eq=False)
class Pieces:
    """The rows of a field cut as finely as any of its cuts.

    A cut says at which piece each of its bands begins. `in_order` means that ids are in order of
    popularity already, so that bands are ranges of ids and need no rank of each.
    """

    first_id: int
    of_id: np.ndarray  # (rows,) the piece of each id of the field, from popular to rare
    sizes: np.ndarray  # (pieces,)
    cuts: tuple[tuple[int, ...], ...]
    in_order: bool

    def ids(self) -> list[np.ndarray]:
        """The ids of each piece in the table, ascending."""
        by_piece = np.argsort(self.of_id, kind="stable") + self.first_id
        return np.split(by_piece, np.cumsum(self.sizes)[:-1])

    def needs_code(self, cut: tuple[int, ...]) -> bool:
        """Whether ids must be turned into ranks, if this cut is taken."""
        return len(cut) > 1 and not self.in_order

    def band_of_id(self, cut: tuple[int, ...]) -> np.ndarray:
        """The band of each id in one of the cuts."""
        starts = np.zeros(len(self.sizes), np.uint8)
        starts[list(cut[1:])] = 1
        return np.cumsum(starts, dtype=np.uint8)[self.of_id]


def cut_field(counts: np.ndarray, first_id: int, bands: Bands) -> Pieces:
    """The ways to cut a field: one band, and 2, 4, 8 ... up to `bands`, each in two ways.

    By equal popularity mass, and by octaves of the count: the rarest ones on their own, all above
    together. Rows that were never asked for are a band of their own in both.
    """
    order = descending_order(counts)
    falling = counts[order]
    asked = falling[: int((falling > 0).sum())]
    starts = {(0,)}
    if len(asked):
        unasked = [len(asked)] if len(asked) < len(falling) else []
        octaves = [*octave_bands(asked).block_starts.tolist(), *unasked]
        most = min(MOST_BANDS, len(octaves)) if bands == "octaves" else bands
        for number in _numbers_of_bands(most):
            by_mass = equal_mass_bands(asked, max(number - len(unasked), 1)).block_starts.tolist()
            starts |= {(*by_mass, *unasked), (0, *octaves[1:][-(number - 1) :])}
    pieces = sorted({start for cut in starts for start in cut})
    sizes = np.diff([*pieces, len(order)])
    of_id = np.empty(len(order), np.uint8 if len(pieces) <= 256 else np.uint16)
    of_id[order] = np.repeat(np.arange(len(pieces), dtype=of_id.dtype), sizes)
    cuts = tuple(
        tuple(pieces.index(start) for start in cut)
        for cut in sorted(starts, key=lambda cut: (len(cut), cut))
    )
    is_in_order = not bool(np.less(of_id[1:], of_id[:-1]).any())
    return Pieces(first_id, of_id, sizes, cuts, is_in_order)


def check_bands(bands: Bands) -> None:
    """Refuse what is no number of bands."""
    if bands == "octaves":
        return
    if isinstance(bands, str):
        raise ValueError(f"bands must be a whole number or 'octaves', got {bands!r}")
    if whole_number(bands, "bands") > MOST_BANDS:
        raise ValueError(f"bands must be at most {MOST_BANDS}, got {bands}")


def _numbers_of_bands(most: int) -> list[int]:
    """2, 4, 8, ... below `most`, and `most` itself."""
    doubled = [2**k for k in range(1, most.bit_length()) if 2**k < most]
    return [*doubled, most] if most > 1 else []
