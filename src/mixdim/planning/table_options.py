"""What storages of the bands of trained tables cost and lose: the options of a knapsack, and its answer.

Knows nothing about how tables are cut or read. With weighted second moments S = sum of p e e^T of the
rows of a band, the best vectors of width d (the weighted SVD) leave the eigenvalues of S after the d-th;
in a metric H, those of H^1/2 S H^1/2. Fewer bits add a share of what is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from mixdim.planning.bands import Pieces
from mixdim.planning.budget import BudgetTooSmallError, format_bytes
from mixdim.planning.feature import Block, Feature
from mixdim.planning.knapsack import SAME, Cut, CutSolution, best_cuts, lower_bound, smallest
from mixdim.planning.plan import Plan
from mixdim.planning.trained_table import Moments, TrainedTable
from mixdim.storages import Rows
from mixdim.storages.rows import rows_cost

RELATIVE_GAP = 1e-3  # the error is at most about this share above the least possible
GAP_OF_GIVEN_BANDS = 1e-4  # where only widths and bits are chosen
# What rounding adds to the error, as a share of the energy that is kept: the best 256 and 16 levels for
# normal numbers. Measured for the codes of `Rows`, by spectrum and width: 1e-5 to 1e-4, 3e-3 to 2e-2.
NOISE = {32: 0.0, 8: 5e-5, 4: 9.5e-3}

IdMapBytes = Callable[[int, int, int], int]


@dataclass(frozen=True, eq=False)
class Choice:
    """How one table is to be stored, and what that keeps.

    - `plan` has one feature, by the table's name; its ids are ranks.
    - `bands`: what leads there from ids: by field, the band of each id, whose order within a band stays;
      or the number of rows of a field whose ids are ranks already. None where that are all.
    - `nbytes` is all that is kept: tables, projections, shared rows, scales, and id maps if these are
      part of the budget.
    - `error` is the sum over rows of p |e - e'|^2 in the table's metric, as the eigenvalues that are
      dropped say, and `energy` that of p |e|^2. What rounding adds is part of neither.
    """

    plan: Plan
    bands: tuple[np.ndarray | int, ...] | None
    nbytes: int
    error: float
    energy: float

    @property
    def kept_energy(self) -> float:
        """The share of the energy that is kept."""
        return 1 - self.error / self.energy if self.energy else 1.0


def ranges(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Where each of these begins and ends, one after another."""
    return pairwise(accumulate(sizes, initial=0))


class Band(NamedTuple):
    """What is known of the rows of a band: `errors[d]` is the least that width d = 0 .. width leaves."""

    size: int
    mass: float
    energy: float
    errors: np.ndarray

    @classmethod
    def of(cls, moments: Moments) -> Band:
        """Width 0 is one row for all, the weighted mean: it leaves all energy but that of the mean."""
        errors = np.append(np.cumsum(moments.energies()[::-1])[::-1], 0.0)
        energy = float(errors[0])
        left = energy - float(moments.first @ moments.first) / (moments.mass or 1.0)
        errors[0] = max(left if left > SAME * energy else 0.0, errors[1])
        return cls(moments.size, moments.mass, energy, errors)


@dataclass(frozen=True, eq=False)
class MeasuredTable:
    """A table with all that its storages need to be compared."""

    table: TrainedTable
    use: float
    pieces: list[Pieces]  # by field
    bands: list[list[list[Band]]]  # by field and cut
    energy: float

    @classmethod
    def of(cls, table: TrainedTable, pieces: list[Pieces], usual: float) -> MeasuredTable:
        """Read a table once; a table that is never used weighs `usual`."""
        root, bands, energy = table.metric_root, [], 0.0
        for own, (first_id, _) in zip(pieces, ranges(table.fields), strict=True):
            moments = [table.moments(ids + first_id).seen_by(root) for ids in own.ids()]
            bands.append([
                [Band.of(Moments.total(moments[a:b])) for a, b in pairwise([*cut, len(moments)])]
                for cut in own.cuts
            ])  # fmt: skip
            energy += float(Moments.total(moments).second.trace())
        return cls(table, table.use or usual, pieces, bands, energy)


@dataclass(frozen=True, eq=False)
class Options:
    """All ways to store some tables, as a knapsack for each base_dim; None is a table's own width."""

    measured: list[MeasuredTable]
    dims: list[int]
    bits: list[int]
    id_map_bytes: IdMapBytes | None

    def best(self, base_dims: Sequence[int | None], budget: int) -> tuple[int | None, CutSolution]:
        """The base_dim that leaves the least error, and what is then taken."""
        bounds, least = [], []
        for base_dim in base_dims:
            fields = self._fields(base_dim)
            least.append(smallest(fields))
            if least[-1] <= budget:
                bounds.append((lower_bound(fields, budget), base_dim))
        if not bounds:
            raise self._too_small(budget, min(least))
        is_given = all(len(pieces.cuts) == 1 for one in self.measured for pieces in one.pieces)
        gap = GAP_OF_GIVEN_BANDS if is_given else RELATIVE_GAP
        found: tuple[int | None, CutSolution] | None = None
        for bound, base_dim in sorted(bounds, key=lambda each: each[0]):
            if found is not None and bound >= (1 - gap) * found[1].error:
                break  # neither this base_dim nor a later one can do better
            tried = best_cuts(self._fields(base_dim), budget, relative_gap=gap)
            if found is None or tried.error < found[1].error:
                found = base_dim, tried
        assert found is not None
        return found

    def choices(self, base_dim: int | None, found: CutSolution) -> list[Choice]:
        """What is taken of each table, as a plan."""
        storages = [self._storages(one, base_dim) for one in self.measured]
        taken, first_field = [], 0
        for one, known in zip(self.measured, storages, strict=True):
            here = slice(first_field, first_field + len(one.pieces))
            chosen = [[known[option] for option in of_field] for of_field in found.options[here]]
            taken.append((one, found.cuts[here], chosen))
            first_field = here.stop
        if base_dim is not None:  # others were only possible
            base_dim = max(s.dim for _, _, chosen in taken for of_field in chosen for s in of_field)
        return [self._choice(*each, base_dim or each[0].table.width) for each in taken]

    def _choice(
        self, one: MeasuredTable, cuts: list[int], chosen: list[list[Rows]], base_dim: int
    ) -> Choice:
        table, blocks, error, map_bytes, start = one.table, [], 0.0, 0, 0
        maps: list[np.ndarray | int] = []
        for pieces, of_cuts, number, storages in zip(one.pieces, one.bands, cuts, chosen, strict=True):
            for band, storage in zip(of_cuts[number], storages, strict=True):
                error += float(band.errors[min(storage.dim, table.width)])
                blocks.append(Block(start, band.size, storage, float(band.mass / band.size)))
                start += band.size
            cut = pieces.cuts[number]
            maps.append(pieces.band_of_id(cut) if pieces.needs_map(cut) else len(pieces.of_id))
            map_bytes += self._map_bytes(table, pieces, cut)
        needs_map = any(isinstance(of_field, np.ndarray) for of_field in maps)
        requested = one.pieces[0].num_requested or len(blocks)
        feature = Feature(table.name, table.rows, tuple(blocks), requested)
        plan = Plan(base_dim, {"rule": "compressed"}, (feature,))
        nbytes = plan.cost.parameters * table.number_bytes + plan.cost.held_bytes + map_bytes
        return Choice(plan, tuple(maps) if needs_map else None, nbytes, error, one.energy)

    def _fields(self, base_dim: int | None) -> list[list[Cut]]:
        """The cuts of all fields of all tables, with what storages cost and lose."""
        fields = []
        for one in self.measured:
            for pieces, of_cuts in zip(one.pieces, one.bands, strict=True):
                both = zip(pieces.cuts, of_cuts, strict=True)
                fields.append([self._cut(one, pieces, cut, bands, base_dim) for cut, bands in both])
        return fields

    def _cut(
        self,
        one: MeasuredTable,
        pieces: Pieces,
        cut: tuple[int, ...],
        bands: list[Band],
        base_dim: int | None,
    ) -> Cut:
        full = one.table.width if base_dim is None else base_dim
        sizes, errors = np.array([band.size for band in bands]), np.array([b.errors for b in bands])
        energies = np.array([band.energy for band in bands])
        costs, lost = [], []
        for bits, dims in self._dims(full):
            cost = rows_cost(sizes[:, None], dims, full, bits)
            costs.append(cost.parameters * one.table.number_bytes + cost.held_bytes)
            left = errors[:, np.minimum(dims, one.table.width)]
            noise = NOISE[bits] if len(self.bits) > 1 else 0.0
            lost.append(left + noise * np.where(dims > 0, energies[:, None] - left, 0.0))
        return Cut(
            np.concatenate(costs, axis=1).astype(np.int64),
            one.use * np.concatenate(lost, axis=1),
            self._map_bytes(one.table, pieces, cut),
        )

    def _dims(self, full: int) -> list[tuple[int, np.ndarray]]:
        """The widths up to the full one, by their bits; the row that all share is there once.

        It is the last: of options alike the first is taken, and a band of one row is as well stored on
        its own.
        """
        own = [*(dim for dim in self.dims if 0 < dim < full), full]
        last = [*own, 0] if 0 in self.dims else own
        return [(bits, np.array(own)) for bits in self.bits[:-1]] + [(self.bits[-1], np.array(last))]

    def _storages(self, one: MeasuredTable, base_dim: int | None) -> list[Rows]:
        """What the options of a band of a table are, in the order of their costs and errors."""
        by_bits = self._dims(one.table.width if base_dim is None else base_dim)
        return [Rows(dim, bits if dim else 32) for bits, dims in by_bits for dim in dims.tolist()]

    def _map_bytes(self, table: TrainedTable, pieces: Pieces, cut: tuple[int, ...]) -> int:
        if self.id_map_bytes is None or not pieces.needs_map(cut):
            return 0
        return self.id_map_bytes(len(pieces.of_id), len(cut), table.rows)

    def _too_small(self, budget: int, least: int) -> BudgetTooSmallError:
        number, least_dim = len(self.measured), min(self.dims, default=0)
        error = BudgetTooSmallError(
            f"budget of {format_bytes(budget)} ({budget:,} bytes) is too small: the smallest for "
            f"{'this table' if number == 1 else f'these {number} tables'} is {least:,} bytes"
            f"{f' with min_dim {least_dim}' if least_dim else ''}"
        )
        error.least = least
        return error
