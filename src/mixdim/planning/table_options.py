"""All ways to store some tables as a knapsack, and its answer as plans.

Knows nothing about how tables are read, nor what a storage costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mixdim.planning.band_merges import FieldOptions, with_merges
from mixdim.planning.band_options import Bits, band_options
from mixdim.planning.budget import BudgetTooSmallError, format_bytes
from mixdim.planning.feature import Block, Feature
from mixdim.planning.knapsack import CutSolution, best_cuts, lower_bound, smallest
from mixdim.planning.measured_tables import MeasuredField, MeasuredTable
from mixdim.planning.plan import Plan
from mixdim.storages import Rows

RELATIVE_GAP = 1e-3  # the error is at most about this share above the least possible
GAP_OF_GIVEN_BANDS = 1e-4  # where only widths and bits are chosen

IdMapBytes = Callable[[int, int, int], int]


@dataclass(frozen=True, eq=False)
class Choice:
    """How one table is to be stored, and what that keeps.

    - `plan` has one feature, by the table's name; its ids are ranks.
    - `bands`: what leads there from ids: by field, the band of each id, whose order within a band stays;
      or the number of rows of a field whose ids are ranks already. None where that are all.
    - `nbytes` is all that is kept: tables, projections, shared rows, codes, steps, and id maps if these
      are part of the budget.
    - `error` is the sum over rows of p |e - e'|^2 in the table's metric: of what is dropped, and of
      codes, as if numbers were normal. `energy` is that of p |e|^2.
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


class _Taken(NamedTuple):
    """What is taken of all fields, for one base_dim."""

    base_dim: int | None
    fields: list[FieldOptions]
    solution: CutSolution


@dataclass(frozen=True, eq=False)
class Options:
    """All ways to store some tables, as a knapsack for each base_dim; None is a table's own width."""

    measured: list[MeasuredTable]
    dims: list[int]
    bits: Bits
    most_bands: int
    id_map_bytes: IdMapBytes | None

    def best(self, base_dims: Sequence[int | None], budget: int) -> list[Choice]:
        """What is taken of each table, with the base_dim that leaves the least error."""
        bounds, least = [], []
        for base_dim in base_dims:
            cuts = [field.as_knapsack() for field in self._fields(base_dim)]
            least.append(smallest(cuts))
            if least[-1] <= budget:
                bounds.append((lower_bound(cuts, budget), base_dim))
        if not bounds:
            raise self._too_small(budget, min(least))
        every = [field.pieces for one in self.measured for field in one.fields]
        gap = RELATIVE_GAP if any(pieces.may_merge for pieces in every) else GAP_OF_GIVEN_BANDS
        found: _Taken | None = None
        for bound, base_dim in sorted(bounds, key=lambda each: each[0]):
            if found is not None and bound >= (1 - gap) * found.solution.error:
                break  # neither this base_dim nor a later one can do better
            fields = with_merges(self._fields(base_dim), budget)
            tried = best_cuts([field.as_knapsack() for field in fields], budget, relative_gap=gap)
            if found is None or tried.error < found.solution.error:
                found = _Taken(base_dim, fields, tried)
        assert found is not None
        return self._choices(found)

    def _choices(self, taken: _Taken) -> list[Choice]:
        cuts = [field.cuts[n] for field, n in zip(taken.fields, taken.solution.cuts, strict=True)]
        own = zip(taken.fields, cuts, taken.solution.options, strict=True)
        storages = [field.storages(cut, options.tolist()) for field, cut, options in own]
        base_dim = taken.base_dim
        if base_dim is not None:  # others were only possible
            base_dim = max(storage.dim for of_field in storages for storage in of_field)
        choices, first = [], 0
        for one in self.measured:
            here = slice(first, first + len(one.fields))
            errors = zip(taken.fields[here], cuts[here], taken.solution.options[here], strict=True)
            error = sum(
                float(field.options.errors[field.field.of_cut(cut), options].sum())
                for field, cut, options in errors
            )
            parts = (one, cuts[here], storages[here], base_dim or one.table.width)
            choices.append(self._choice(*parts, error))
            first = here.stop
        return choices

    def _choice(
        self,
        one: MeasuredTable,
        cuts: list[tuple[int, ...]],
        storages: list[list[Rows]],
        base_dim: int,
        error: float,
    ) -> Choice:
        blocks, maps, map_bytes, start = list[Block](), list[np.ndarray | int](), 0, 0
        for field, cut, of_field in zip(one.fields, cuts, storages, strict=True):
            spectra, pieces = field.spectra.at(field.of_cut(cut)), field.pieces
            for size, mass, storage in zip(spectra.sizes, spectra.masses, of_field, strict=True):
                blocks.append(Block(start, int(size), storage, float(mass / size)))
                start += int(size)
            maps.append(pieces.band_of_id(cut) if pieces.needs_map(cut) else len(pieces.of_id))
            map_bytes += int(self._map_bytes(one, field, len(cut))[len(cut)])
        needs_map = any(isinstance(of_field, np.ndarray) for of_field in maps)
        requested = one.fields[0].pieces.num_requested or len(blocks)
        feature = Feature(one.table.name, one.table.rows, tuple(blocks), requested)
        plan = Plan(base_dim, {"rule": "compressed"}, (feature,))
        nbytes = plan.cost.parameters * one.table.number_bytes + plan.cost.held_bytes + map_bytes
        return Choice(plan, tuple(maps) if needs_map else None, nbytes, error, one.energy)

    def _fields(self, base_dim: int | None) -> list[FieldOptions]:
        """All fields of all tables, with what storages of their bands cost and lose."""
        return [
            FieldOptions(
                field,
                band_options(
                    field.spectra,
                    base_dim or one.table.width,
                    self.dims,
                    self.bits,
                    one.table.number_bytes,
                ),
                one.use,
                self._map_bytes(one, field, max(self.most_bands, *map(len, field.pieces.cuts))),
                list(field.pieces.cuts),
            )
            for one in self.measured
            for field in one.fields
        ]

    def _map_bytes(self, one: MeasuredTable, field: MeasuredField, most: int) -> np.ndarray:
        """Bytes that find the bands of ids, by their number up to `most`."""
        rows, most = len(field.pieces.of_id), min(most, len(field.pieces.sizes))
        if self.id_map_bytes is None or field.pieces.in_order:
            return np.zeros(most + 1, np.int64)
        return np.array([
            self.id_map_bytes(rows, bands, one.table.rows) if bands > 1 else 0
            for bands in range(most + 1)
        ])  # fmt: skip

    def _too_small(self, budget: int, least: int) -> BudgetTooSmallError:
        number, least_dim = len(self.measured), min(self.dims, default=0)
        error = BudgetTooSmallError(
            f"budget of {format_bytes(budget)} ({budget:,} bytes) is too small: the smallest for "
            f"{'this table' if number == 1 else f'these {number} tables'} is {least:,} bytes"
            f"{f' with min_dim {least_dim}' if least_dim else ''}"
        )
        error.least = least
        return error
