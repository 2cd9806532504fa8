"""Which pieces of a field to merge to one band, by dynamic programming, at a price per byte.

Knows nothing about spectra: each band has its options, which are costs and errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from mixdim.planning.band_options import BandOptions
from mixdim.planning.knapsack import Cut
from mixdim.planning.measured_tables import MeasuredField
from mixdim.storages import Rows

BISECTIONS = 16  # of the price's logarithm, over 60 doublings
AROUND = 2.0 ** np.arange(-4, 5)  # prices around the one found, whose merges are tried too
FEW = 4  # fields, of which one is so much of the budget that a price does not lead to the best cut


@dataclass(frozen=True, eq=False)
class FieldOptions:
    """All ways to store the bands of a field, and the cuts to choose from.

    `map_bytes[k]` is what finding the bands of ids costs where there are k of them.
    """

    field: MeasuredField
    options: BandOptions
    use: float
    map_bytes: np.ndarray
    cuts: list[tuple[int, ...]]

    def as_knapsack(self) -> list[Cut]:
        """The cuts with the options of their bands."""
        return [
            Cut(
                self.options.costs[bands],
                self.use * self.options.errors[bands],
                int(self.map_bytes[len(cut)]),
            )
            for cut, bands in ((cut, self.field.of_cut(cut)) for cut in self.cuts)
        ]

    def storages(self, cut: tuple[int, ...], options: Sequence[int]) -> list[Rows]:
        """What was chosen for the bands of a cut."""
        both = zip(self.field.of_cut(cut), options, strict=True)
        return [self.options.storage(band, int(option)) for band, option in both]

    @cached_property
    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        """Where each band begins and ends."""
        first, end = np.array(list(self.field.bands)).T
        return first, end

    def merged(self, price: float) -> tuple[list[tuple[int, ...]], float]:
        """The cuts of least error + price * cost for each number of bands, and the cost of the best.

        The best of k bands up to a piece ends with a band that begins where the best of k - 1 ends.
        """
        number, most = len(self.field.pieces.sizes), len(self.map_bytes) - 1
        totals = self.use * self.options.errors + price * self.options.costs
        of_bands = np.full((number + 1, number + 1), np.inf)
        of_bands[self._places] = totals.min(axis=1)
        best = np.full((most + 1, number + 1), np.inf)
        best[0, 0] = 0.0
        before = np.zeros((most + 1, number + 1), np.int64)
        for k in range(1, most + 1):
            tried = best[k - 1][:, None] + of_bands
            before[k] = tried.argmin(axis=0)
            best[k] = tried.min(axis=0)
        cuts = [_cut(before, k, number) for k in range(1, most + 1)]
        k = int((best[:, number] + price * self.map_bytes).argmin())
        bands = self.field.of_cut(cuts[k - 1])
        taken = totals[bands].argmin(axis=1)
        return cuts, float(self.options.costs[bands, taken].sum() + self.map_bytes[k])


def _cut(before: np.ndarray, bands: int, end: int) -> tuple[int, ...]:
    """Where the best of so many bands begin."""
    cut = list[int]()
    for k in range(bands, 0, -1):
        end = int(before[k, end])
        cut.insert(0, end)
    return tuple(cut)


def with_merges(fields: Sequence[FieldOptions], budget: int) -> list[FieldOptions]:
    """The same fields, with the cuts that are best near the price at which the budget is kept."""
    high = 2.0 * sum(field.use * field.options.errors.max() for field in fields)
    low = high * 2.0**-60
    for _ in range(BISECTIONS):
        price = float(np.sqrt(low * high))
        if sum(field.merged(price)[1] for field in fields) <= budget:
            high = price
        else:
            low = price
    found = []
    for field in fields:
        if field.field.pieces.may_merge:
            cuts = {*field.cuts, *(cut for share in AROUND for cut in field.merged(high * share)[0])}
            if len(fields) <= FEW and len(field.map_bytes) > 2:
                cuts |= {(0, start) for start in range(1, len(field.field.pieces.sizes))}
            field = replace(field, cuts=sorted(cuts, key=lambda cut: (len(cut), cut)))
        found.append(field)
    return found
