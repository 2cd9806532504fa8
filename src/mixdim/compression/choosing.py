"""From trained tables and a budget to bands and widths: one budget in bytes for all tables.

Knows nothing about models, nor how a table is filled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np

from mixdim._util.arguments import whole_number
from mixdim.compression.curves import width_bytes, width_errors
from mixdim.compression.cutting import Bands, Pieces, check_bands, cut_field
from mixdim.compression.pricing import Cut, pick, smallest
from mixdim.compression.subject import Moments, Subject
from mixdim.layer.rank_code import RankCode, rank_code_nbytes
from mixdim.planning.budget import BudgetTooSmallError, format_bytes
from mixdim.planning.feature import Block, Feature
from mixdim.planning.plan import Plan
from mixdim.storages import Rows, Storage


@dataclass(frozen=True, eq=False)
class Chosen:
    """How one table is to be stored, and what that keeps.

    `plan` has one feature, by the table's name, and its ids are ranks; `codes` lead there from ids, None
    where these are ranks already. `error` is the sum over rows of p |e - e'|^2 in the table's metric, as
    the eigenvalues that are dropped say, and `energy` that of p |e|^2. `nbytes` is all that is kept:
    tables, projections, shared rows, scales and codes.
    """

    plan: Plan
    codes: RankCode | None
    nbytes: int
    error: float
    energy: float


def choose(
    subjects: Sequence[Subject],
    budget: int,
    *,
    bands: Bands = 8,
    min_dim: int = 0,
    bits: int | None = None,
) -> list[Chosen]:
    """Choose bands and widths for all tables, within one budget of bytes.

    It minimises the sum over rows of p |e - e'|^2, tables weighted by how often they are asked for. A
    table that never was weighs what others do on average.

    - `bands`: the most bands of a field, or "octaves": one for each power of two of the count. Fewer
      are chosen where that is better, down to one, which needs no ranks of ids.
    - `min_dim`: the least width; 0 lets all rows of a band share one, their mean.
    - `bits`: 8 or 4 to round narrow tables. What rounding adds to the error is not part of the choice.

    A budget that is too small is a ValueError that says the smallest; so are weights that are not
    finite, by table and row.

    >>> import torch
    >>> counts = np.array([900, 500, 40, 30] + 996 * [1])  # ids are in order of popularity
    >>> table = Subject("x", torch.randn(1000, 16), counts)
    >>> [(block.size, block.dim) for block in choose([table], budget=400)[0].plan.blocks]
    [(4, 16), (996, 0)]
    """
    budget, min_dim = whole_number(budget, "budget"), whole_number(min_dim, "min_dim", at_least=0)
    check_bands(bands)
    if bits is not None:
        bits = Rows(1, bits=bits).bits
    if not subjects:
        raise ValueError("subjects must not be empty: there is no table to choose for")
    asked = [float(subject.counts.sum(dtype=np.float64)) for subject in subjects]
    usual = float(np.mean([often for often in asked if often] or [1.0]))
    tables = [_Options.of(subject, bands, min_dim, bits) for subject in subjects]
    fields = [
        [replace(cut, errors=(often or usual) * cut.errors) for cut in cuts]
        for table, often in zip(tables, asked, strict=True)
        for cuts in table.fields
    ]
    least = smallest(fields)
    if budget < least:
        error = BudgetTooSmallError(
            f"budget of {format_bytes(budget)} ({budget:,} bytes) is too small: the smallest for "
            f"{'this table' if len(tables) == 1 else f'these {len(tables)} tables'} is {least:,} bytes"
            f"{f' with min_dim {min_dim}' if min_dim else ''}"
        )
        error.least = least
        raise error
    picked = pick(fields, budget)
    edges = list(accumulate((len(table.fields) for table in tables), initial=0))
    return [
        table.chosen(picked.cuts[a:b], picked.widths[a:b])
        for table, (a, b) in zip(tables, pairwise(edges), strict=True)
    ]


@dataclass(frozen=True, eq=False)
class _Options:
    """All ways to store a table, field by field."""

    subject: Subject
    pieces: list[Pieces]
    masses: list[np.ndarray]  # by field, of each piece
    fields: list[list[Cut]]
    energy: float
    min_dim: int
    bits: int | None

    @classmethod
    def of(cls, subject: Subject, bands: Bands, min_dim: int, bits: int | None) -> _Options:
        all_pieces, masses, fields, energy = [], [], [], 0.0
        min_dim = min(min_dim, subject.width)
        for first_id, end in pairwise(accumulate(subject.fields, initial=0)):
            pieces = cut_field(subject.counts[first_id:end], first_id, bands)
            moments = [subject.moments(ids) for ids in pieces.ids()]
            fields.append([_cut(subject, pieces, moments, cut, min_dim, bits) for cut in pieces.cuts])
            energy += float(Moments.total(moments).seen_by(subject.metric_root).second.trace())
            masses.append(np.array([each.mass for each in moments]))
            all_pieces.append(pieces)
        return cls(subject, all_pieces, masses, fields, energy, min_dim, bits)

    def chosen(self, cuts: Sequence[int], widths: Sequence[np.ndarray]) -> Chosen:
        """The plan of some of these options, and what it keeps."""
        subject, blocks, error, start = self.subject, [], 0.0, 0
        bands: list[np.ndarray | int] = []  # of the ids of each field
        for pieces, masses, of_field, number, chosen in zip(
            self.pieces, self.masses, self.fields, cuts, widths, strict=True
        ):
            cut = pieces.cuts[number]
            sizes = np.add.reduceat(pieces.sizes, cut)
            error += float(of_field[number].errors[np.arange(len(chosen)), chosen].sum())
            for size, mass, option in zip(sizes, np.add.reduceat(masses, cut), chosen, strict=True):
                storage = self._storage(min(int(option) + self.min_dim, subject.width))
                blocks.append(Block(start, int(size), storage, float(mass / size)))
                start += int(size)
            bands.append(pieces.band_of_id(cut) if pieces.needs_code(cut) else len(pieces.of_id))
        codes = None if all(isinstance(band, int) for band in bands) else RankCode.of(bands)
        feature = Feature(subject.name, subject.rows, tuple(blocks), bands_asked=len(blocks))
        plan = Plan(subject.width, {"rule": "compressed"}, (feature,))
        nbytes = plan.nbytes(subject.weight.dtype) + (0 if codes is None else codes.nbytes)
        return Chosen(plan, codes, nbytes, error, self.energy)

    def _storage(self, dim: int) -> Storage:
        return Rows(dim) if self.bits is None or dim == 0 else Rows(dim, self.bits)


def _cut(
    subject: Subject,
    pieces: Pieces,
    moments: list[Moments],
    cut: tuple[int, ...],
    min_dim: int,
    bits: int | None,
) -> Cut:
    """What the widths of the bands of a cut cost and lose."""
    costs, errors, itemsize = [], [], subject.weight.dtype.itemsize
    for first, last in pairwise([*cut, len(moments)]):
        band = Moments.total(moments[first:last])
        costs.append(width_bytes(band.size, subject.width, itemsize, bits)[min_dim:])
        errors.append(width_errors(band, subject.metric_root)[min_dim:])
    held = 0
    if pieces.needs_code(cut):
        held = rank_code_nbytes(len(pieces.of_id), len(cut), of_rows=subject.rows)
    return Cut(np.array(costs), np.array(errors), held)
