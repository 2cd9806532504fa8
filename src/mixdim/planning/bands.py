"""How the rows of a feature fall into bands of popularity. Knows nothing about widths or tables.

One way at a time (`whole_feature`, `equal_mass_bands`, `octave_bands`), or many to choose from
(`candidate_cuts`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mixdim._util.arguments import nonnegative_vector, whole_number

OCTAVES = "octaves"
MOST_BANDS = 64  # of a field that is cut in the best of many ways

Bands = int | str  # a number, or "octaves"


@dataclass(frozen=True, eq=False)
class Blocks:
    """The rows of one feature, cut into blocks of consecutive popularity ranks.

    `order[rank]` is the id of the row with that rank; without an order, ids are ranks.
    `block_probs` is the share of the feature's queries that falls into each block.
    """

    block_sizes: np.ndarray
    block_probs: np.ndarray
    order: np.ndarray | None = None
    num_requested: int = 1

    @property
    def num_blocks(self) -> int:
        """How many blocks there are; at most `num_requested`."""
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
        fewer = f" ({self.num_requested} requested)" if self.num_blocks < self.num_requested else ""
        return f"{self.num_blocks} blocks{fewer} of {sizes} rows"


def whole_feature(num_rows: int) -> Blocks:
    """Block by feature: all rows of the feature are one block (paper, Sec. 3)."""
    return Blocks(block_sizes=np.array([num_rows]), block_probs=np.array([1.0]))


def equal_mass_bands(counts: Any, num_bands: int) -> Blocks:
    """Cut the rows of a feature into bands of equal popularity mass (paper, Alg. 3).

    Rows are sorted by count, descending, ties by id, and cut after the row at which the cumulative
    mass reaches i/num_bands. A row heavier than a band swallows the cuts it spans, so there may be
    fewer bands than requested; rows that were never queried end up in the last band. When nothing was
    queried at all, no row is more popular than another and one band holds them all.

    >>> bands = equal_mass_bands([1, 6, 0, 2, 3], num_bands=2)
    >>> bands.order.tolist(), bands.block_sizes.tolist(), bands.block_probs.tolist()
    ([1, 4, 3, 0, 2], [1, 4], [0.5, 0.5])
    >>> print(equal_mass_bands([100, 1, 0], num_bands=8))
    2 blocks (8 requested) of 1, 2 rows
    """
    counts, num_bands = _countable(counts), whole_number(num_bands, "num_bands")
    order = descending_order(counts)
    mass = np.cumsum(counts[order])  # (rows,)
    total = mass[-1]
    if total == 0:
        starts = np.array([0])
    elif num_bands > len(counts):
        starts = _starts_of_many(mass, num_bands)
    else:
        cuts = np.searchsorted(mass, _shares(total, num_bands), side="left") + 1
        starts = np.unique(np.concatenate([[0], cuts[cuts < len(counts)]]))
    return _cut(starts, mass, order, num_requested=num_bands)


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
    seen = octaves[falling > 0]
    octaves = np.maximum(octaves, seen[-1] if len(seen) else 0)
    starts = np.flatnonzero(np.append(True, octaves[1:] < octaves[:-1]))
    return _cut(starts, np.cumsum(counts[order]), order, num_requested=len(starts))


def _countable(counts: Any) -> np.ndarray:
    counts = nonnegative_vector(counts, "counts")
    if counts.sum(dtype=np.float64) >= 2**63:
        raise ValueError("counts must sum to less than 2**63")
    return counts


def _cut(starts: np.ndarray, mass: np.ndarray, order: np.ndarray, *, num_requested: int) -> Blocks:
    """The blocks that begin at these ranks; `mass` is the cumulative count by rank."""
    ends, total = np.append(starts[1:], len(mass)), mass[-1]
    probs = np.diff(mass[ends - 1], prepend=0) / total if total else np.ones(1)
    return Blocks(block_sizes=ends - starts, block_probs=probs, order=order, num_requested=num_requested)


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


def _starts_of_many(mass: np.ndarray, num_bands: int) -> np.ndarray:
    """The starts of equal-mass bands where there are more bands than rows, in time of the rows.

    A row is the last of a band if one of the shares i/num_bands falls within its mass.
    """
    total = mass[-1]
    if isinstance(total, np.integer) and int(total) * num_bands >= 2**63:
        mass = mass.astype(object)
    ends = np.minimum(mass * num_bands // total, num_bands - 1)
    cuts = np.flatnonzero(np.diff(ends, prepend=0) > 0) + 1
    return np.unique(np.concatenate([[0], cuts[cuts < len(mass)]]))


@dataclass(frozen=True, eq=False)
class Pieces:
    """The rows of a field cut as finely as any of some ways to cut it.

    All ways are unions of the same pieces, so what rows add up to is found once for each piece. A cut
    says at which piece each of its bands begins. `in_order` means that pieces are ranges of ids, one
    after another: then bands need no rank of each id.
    """

    of_id: np.ndarray  # (rows,) the piece of each id of the field, from popular to rare
    sizes: np.ndarray  # (pieces,)
    cuts: tuple[tuple[int, ...], ...]
    in_order: bool
    num_requested: int | None = None  # bands, where there is no choice of cuts

    @property
    def may_merge(self) -> bool:
        """Whether bands may be other unions of pieces that follow each other."""
        return self.num_requested is None

    @classmethod
    def of_blocks(cls, blocks: Blocks) -> Pieces:
        """The one way that these blocks are."""
        starts, order = tuple(range(blocks.num_blocks)), blocks.order
        of_id, in_order = _pieces_of_ids(blocks.block_sizes, order)
        return cls(of_id, blocks.block_sizes, (starts,), in_order, blocks.num_requested)

    def ids(self) -> list[np.ndarray]:
        """The ids of each piece, ascending, counted from the first of the field."""
        return np.split(np.argsort(self.of_id, kind="stable"), np.cumsum(self.sizes)[:-1])

    def needs_map(self, cut: tuple[int, ...]) -> bool:
        """Whether ids must be turned into ranks, if this cut is taken."""
        return len(cut) > 1 and not self.in_order

    def band_of_id(self, cut: tuple[int, ...]) -> np.ndarray:
        """The band of each id in one of the cuts."""
        is_start = np.zeros(len(self.sizes), _small_type(len(cut)))
        is_start[list(cut[1:])] = 1
        return np.cumsum(is_start, dtype=is_start.dtype)[self.of_id]


def candidate_cuts(counts: np.ndarray, bands: Bands) -> Pieces:
    """The ways to cut a field: one band, and 2, 4, 8 ... up to `bands`, each in two ways.

    By equal popularity mass, and by octaves of the count: the rarest ones on their own, all above
    together. Rows that were never looked up are a band of their own in both. Pieces are all octaves, so
    that they can be merged in other ways too.

    >>> pieces = candidate_cuts(np.array([1, 9, 0, 2, 3]), bands=2)
    >>> pieces.cuts, [ids.tolist() for ids in pieces.ids()]
    (((0,), (0, 3)), [[1], [3, 4], [0], [2]])
    """
    order = descending_order(counts)
    falling = counts[order]
    seen = falling[: int((falling > 0).sum())]
    starts = {(0,)}
    if len(seen):
        unseen = [len(seen)] if len(seen) < len(falling) else []
        octaves = [*octave_bands(seen).block_starts.tolist(), *unseen]
        most = min(MOST_BANDS, len(octaves)) if isinstance(bands, str) else bands
        for number in _numbers_of_bands(most):
            by_mass = equal_mass_bands(seen, max(number - len(unseen), 1)).block_starts.tolist()
            starts |= {(*by_mass, *unseen), (0, *octaves[1:][-(number - 1) :])}
    finest = octaves if len(starts) > 1 else []
    pieces = sorted({start for cut in starts for start in cut} | set(finest))
    cuts = tuple(
        tuple(pieces.index(start) for start in cut)
        for cut in sorted(starts, key=lambda cut: (len(cut), cut))
    )
    sizes = np.diff([*pieces, len(order)])
    of_id, in_order = _pieces_of_ids(sizes, order)
    return Pieces(of_id, sizes, cuts, in_order)


def check_bands(bands: Bands) -> None:
    """Refuse what is no number of bands for `candidate_cuts`."""
    if bands == OCTAVES:
        return
    if isinstance(bands, str):
        raise ValueError(f"bands must be a whole number or 'octaves', got {bands!r}")
    if whole_number(bands, "bands") > MOST_BANDS:
        raise ValueError(f"bands must be at most {MOST_BANDS}, got {bands}")


def _pieces_of_ids(sizes: np.ndarray, order: np.ndarray | None) -> tuple[np.ndarray, bool]:
    """The piece of each id, and whether that never falls from id to id."""
    of_rank = np.repeat(np.arange(len(sizes), dtype=_small_type(len(sizes))), sizes)
    if order is None:
        return of_rank, True
    of_id = np.empty_like(of_rank)
    of_id[order] = of_rank
    return of_id, not bool(np.less(of_id[1:], of_id[:-1]).any())


def _small_type(numbers: int) -> type[np.unsignedinteger[Any]]:
    """A type for the numbers below `numbers`."""
    return np.uint8 if numbers <= 256 else np.uint32


def _numbers_of_bands(most: int) -> list[int]:
    """2, 4, 8, ... below `most`, and `most` itself."""
    doubled = [2**k for k in range(1, most.bit_length()) if 2**k < most]
    return [*doubled, most] if most > 1 else []
