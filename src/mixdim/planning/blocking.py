"""How the rows of a feature fall into blocks. Knows nothing about widths or tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mixdim._util.arguments import nonnegative_vector, whole_number


@dataclass(frozen=True, eq=False)
class Blocks:
    """The rows of one feature, cut into blocks of consecutive popularity ranks.

    `order[rank]` is the id of the row with that rank; without an order, ids are ranks.
    `block_probs` is the share of the feature's queries that falls into each block.
    """

    block_sizes: np.ndarray
    block_probs: np.ndarray
    order: np.ndarray | None = None
    num_asked: int = 1

    @property
    def num_blocks(self) -> int:
        """How many blocks there are; at most `num_asked`."""
        return len(self.block_sizes)

    @property
    def block_starts(self) -> np.ndarray:
        """The rank at which each block begins (the paper's t)."""
        return np.cumsum(self.block_sizes) - self.block_sizes

    @property
    def row_probs(self) -> np.ndarray:
        """The mean probability, within each block, that a query asks for one given row (p)."""
        return self.block_probs / self.block_sizes

    def __str__(self) -> str:
        sizes = ", ".join(f"{size:,}" for size in self.block_sizes)
        fewer = f" ({self.num_asked} asked)" if self.num_blocks < self.num_asked else ""
        return f"{self.num_blocks} blocks{fewer} of {sizes} rows"


def whole_feature(num_rows: int) -> Blocks:
    """Block by feature: all rows of the feature are one block (paper, Sec. 3)."""
    return Blocks(block_sizes=np.array([num_rows]), block_probs=np.array([1.0]))


def equal_mass_bands(counts: Any, num_bands: int) -> Blocks:
    """Cut the rows of a feature into bands of equal popularity mass (paper, Alg. 3).

    Rows are sorted by count, descending, ties by id, and cut after the row at which the cumulative
    mass reaches i/num_bands. A row heavier than a band swallows the cuts it spans, so there may be
    fewer bands than asked; rows that were never queried end up in the last band. When nothing was
    queried at all, no row is more popular than another and one band holds them all.

    >>> bands = equal_mass_bands([1, 6, 0, 2, 3], num_bands=2)
    >>> bands.order.tolist(), bands.block_sizes.tolist(), bands.block_probs.tolist()
    ([1, 4, 3, 0, 2], [1, 4], [0.5, 0.5])
    >>> print(equal_mass_bands([100, 1, 0], num_bands=8))
    2 blocks (8 asked) of 1, 2 rows
    """
    counts, num_bands = _countable(counts), whole_number(num_bands, "num_bands")
    order = descending_order(counts)
    mass = np.cumsum(counts[order])  # (rows,)
    total = mass[-1]
    if total == 0:
        starts = np.array([0])
    else:
        cuts = np.searchsorted(mass, _shares(total, num_bands), side="left") + 1
        starts = np.unique(np.concatenate([[0], cuts[cuts < len(counts)]]))
    return _cut(starts, mass, order, num_asked=num_bands)


def octave_bands(counts: Any) -> Blocks:
    """Cut the rows of a feature into bands by powers of two of their counts, from popular to rare.

    Rows of 4 to 7 queries share a band, those of 8 to 15 another; rows that were never queried are in
    the lowest band that there is, with those they are most like.

    >>> bands = octave_bands([1, 6, 0, 2, 3, 7])
    >>> bands.order.tolist(), bands.block_sizes.tolist()
    ([5, 1, 4, 3, 0, 2], [2, 2, 2])
    """
    counts = _countable(counts)
    order = descending_order(counts)
    falling = counts[order].astype(np.float64)
    octaves = np.frexp(falling)[1]  # of 4 to 7: 3
    asked = octaves[falling > 0]
    octaves = np.maximum(octaves, asked[-1] if len(asked) else 0)
    starts = np.flatnonzero(np.append(True, octaves[1:] < octaves[:-1]))
    return _cut(starts, np.cumsum(counts[order]), order, num_asked=len(starts))


def _countable(counts: Any) -> np.ndarray:
    counts = nonnegative_vector(counts, "counts")
    if counts.sum(dtype=np.float64) >= 2**63:
        raise ValueError("counts must sum to less than 2**63")
    return counts


def _cut(starts: np.ndarray, mass: np.ndarray, order: np.ndarray, *, num_asked: int) -> Blocks:
    """The blocks that begin at these ranks; `mass` is the cumulative count by rank."""
    ends, total = np.append(starts[1:], len(mass)), mass[-1]
    probs = np.diff(mass[ends - 1], prepend=0) / total if total else np.ones(1)
    return Blocks(block_sizes=ends - starts, block_probs=probs, order=order, num_asked=num_asked)


def descending_order(counts: np.ndarray) -> np.ndarray:
    """The ids of the rows from the most to the least popular, ties by id."""
    id_type = np.int32 if len(counts) <= np.iinfo(np.int32).max else np.int64
    # Prepared data numbers its ids by popularity: then there is nothing to sort.
    if (counts[1:] <= counts[:-1]).all():
        return np.arange(len(counts), dtype=id_type)
    return np.argsort(-counts, kind="stable").astype(id_type)


def _shares(total: Any, num_bands: int) -> np.ndarray:
    """The cumulative masses i/num_bands * total at which to cut, i = 1..num_bands-1."""
    if isinstance(total, np.integer):
        # In whole numbers, rounded up: a cumulative count either reaches a share or does not.
        return np.array([-(-i * int(total) // num_bands) for i in range(1, num_bands)], np.int64)
    return np.arange(1, num_bands) / num_bands * total
