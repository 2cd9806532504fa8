"""Trained tables read once: the spectra of all bands that their rows may be cut into.

Knows nothing about storages or budgets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, pairwise

from mixdim.planning.band_options import Spectra, columns_in
from mixdim.planning.bands import Pieces
from mixdim.planning.trained_table import Moments, TrainedTable

MOST_WORK = 2e9  # multiply-adds for the spectra of all merges of a field's pieces; else of its cuts only


@dataclass(frozen=True, eq=False)
class MeasuredField:
    """The rows of a field in pieces, and the spectra of the bands that they may be merged to.

    `bands[first, end]` is the number, among the spectra, of the band of pieces `first` to `end`.
    """

    pieces: Pieces
    bands: dict[tuple[int, int], int]
    spectra: Spectra
    energy: float

    @classmethod
    def of(cls, table: TrainedTable, pieces: Pieces, first_id: int) -> MeasuredField:
        """Read the rows of a field."""
        root = table.metric_root
        moments = [table.moments(ids + first_id) for ids in pieces.ids()]
        columns = [columns_in(own, root) for own in moments]
        seen, number = [own.seen_by(root) for own in moments], len(moments)
        pairs = {pair for cut in pieces.cuts for pair in pairwise([*cut, number])}
        if pieces.may_merge:
            every = set(combinations(range(number + 1), 2))
            pairs = every if len(every) * table.width**3 <= MOST_WORK else pairs
        found, bands = list[tuple[Moments, float]](), dict[tuple[int, int], int]()
        for first in range(number):
            # From piece to piece: a difference of sums would lose what is small.
            totals = accumulate(seen[first:], lambda before, own: Moments.total([before, own]))
            for end, total in enumerate(totals, start=first + 1):
                if (first, end) in pairs:
                    bands[first, end] = len(found)
                    found.append((total, sum(columns[first:end])))
        spectra = Spectra.of([total for total, _ in found], [column for _, column in found])
        return cls(pieces, bands, spectra, sum(float(own.second.trace()) for own in seen))

    def of_cut(self, cut: tuple[int, ...]) -> list[int]:
        """The numbers of the bands of a cut."""
        return [self.bands[pair] for pair in pairwise([*cut, len(self.pieces.sizes)])]


@dataclass(frozen=True, eq=False)
class MeasuredTable:
    """A table with all that its storages need to be compared."""

    table: TrainedTable
    use: float
    fields: list[MeasuredField]

    @classmethod
    def of(cls, table: TrainedTable, use: float, pieces: list[Pieces]) -> MeasuredTable:
        """Read a table, whose errors weigh so much."""
        both = zip(pieces, ranges(table.fields), strict=True)
        fields = [MeasuredField.of(table, own, first_id) for own, (first_id, _) in both]
        return cls(table, use, fields)

    @property
    def energy(self) -> float:
        """The sum of p |e|^2 over all rows, in the metric."""
        return sum(field.energy for field in self.fields)


def ranges(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Where each of these begins and ends, one after another."""
    return pairwise(accumulate(sizes, initial=0))
