"""What a band of rows costs and loses in each way that it may be stored. Knows no budgets and no tables.

A band is known by its spectrum: how much of p |e|^2 lies along each of its main directions, in the
metric. To keep d directions in float32 leaves the others; a direction of energy x that is kept in r bits
leaves x * NOISE[r] (`mixdim.storages.levels`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from mixdim.planning.trained_table import MetricRoot, Moments
from mixdim.storages import Rows
from mixdim.storages.codes import STEP_BYTES
from mixdim.storages.levels import BITS, NOISE

SAME = 1e-12  # relatively: energies that differ by less are equal but for what float64 rounds
# More bits for a direction, one step after another: how many, and which share of its energy they save.
_WIDER = np.diff((0, *BITS))
_SAVED = -np.diff([NOISE[bits] for bits in (0, *BITS)])

Bits = Literal["auto"] | list[int]  # by direction, or one of some numbers for a band


class Spectra(NamedTuple):
    """What is known of some bands of one table."""

    sizes: np.ndarray  # (bands,) rows
    masses: np.ndarray  # (bands,) probability
    energies: np.ndarray  # (bands, width) along the main directions, falling
    centered: np.ndarray  # (bands, width) the same of rows without their mean
    columns: np.ndarray  # (bands,) what the columns add up to, each on its own, in the metric

    @classmethod
    def of(cls, seen: Sequence[Moments], columns: Sequence[float]) -> Spectra:
        """Of the moments of bands in the metric, and what `columns_in` says of each."""
        masses = np.array([own.mass for own in seen])
        first, second = np.stack([own.first for own in seen]), np.stack([own.second for own in seen])
        energies = _falling(second)
        noise = 16 * second.shape[1] * np.finfo(np.float64).eps * energies[:, :1]
        means = first / np.where(masses > 0, masses, 1.0)[:, None]
        centered = _falling(second - means[:, :, None] * first[:, None, :])
        kept = [np.where(found > noise, found, 0.0) for found in (energies, centered)]
        sizes = np.array([own.size for own in seen])
        return cls(sizes, masses, kept[0], kept[1], np.array(columns))

    def at(self, bands: Sequence[int]) -> Spectra:
        """Some of the bands."""
        return Spectra(*(part[list(bands)] for part in self))

    @property
    def whole(self) -> np.ndarray:
        """All the energy of each band."""
        return self.energies.sum(axis=1)

    def dropped(self, dims: np.ndarray) -> np.ndarray:
        """What is left out at each width, 0 being one row for all, the mean: (bands, dims)."""
        left = np.cumsum(self.energies[:, ::-1], axis=1)[:, ::-1]
        left = np.concatenate([left, np.zeros((len(left), 1))], axis=1)
        shared, whole = self.centered.sum(axis=1), self.whole
        left[:, 0] = np.maximum(np.where(shared > SAME * whole, shared, 0.0), left[:, 1])
        return left[:, np.minimum(dims, self.energies.shape[1])]


def columns_in(moments: Moments, root: MetricRoot | None) -> float:
    """The sum over columns of their energy, each weighed by the metric: tr(diag(H) diag(S))."""
    own = moments.second.diagonal()
    return float(own.sum() if root is None else own @ (root.root**2).sum(axis=0))


@dataclass(frozen=True, eq=False)
class BandOptions:
    """The ways to store some bands: bytes and errors (bands, options), and what each way is."""

    costs: np.ndarray
    errors: np.ndarray
    ways: list[Way]
    spectra: Spectra

    def storage(self, band: int, option: int) -> Rows:
        """The storage that an option is for a band."""
        return self.ways[option].storage(self.spectra, band)


class Way(NamedTuple):
    """So many directions in so many bits; or in a row of so many bytes, whose bits are shared out."""

    dim: int
    bits: int = 32
    row_bytes: int = 0
    mean: bool = False

    def storage(self, spectra: Spectra, band: int) -> Rows:
        """The same as a storage."""
        if not self.row_bytes:
            return Rows(self.dim, self.bits)
        energies = (spectra.centered if self.mean else spectra.energies)[band, : self.dim]
        more, _ = _shared_out(energies[None])
        taken = more[0, : int((np.cumsum(_WIDER[more[0] % len(BITS)]) <= 8 * self.row_bytes).sum())]
        steps = np.bincount(taken // len(BITS), minlength=self.dim)
        bits = [(0, *BITS)[step] for step in steps if step]
        return Rows(len(bits), tuple(bits), self.mean)


def band_options(
    spectra: Spectra, base_dim: int, dims: Sequence[int], bits: Bits, number_bytes: int
) -> BandOptions:
    """All ways to store bands: of `dims` in each of `bits`; or any bits by direction.

    `base_dim` is always one of the widths. Where 0 is one of them, a row that all share is the last.
    """
    own = [*(d for d in dims if 0 < d < base_dim), base_dim]
    alike = [(number, own) for number in bits] if bits != "auto" else list[tuple[int, list[int]]]()
    ways, parts = list[Way](), list[tuple[np.ndarray, np.ndarray]]()
    if bits == "auto":
        for mean in (False, True):
            for dim in _counts(base_dim - mean):
                parts.append(_by_direction(spectra, base_dim, dim, mean=mean))
                ways += [Way(dim, row_bytes=n + 1, mean=mean) for n in range(dim)]
        # At full width without a lift, and in float32: what needs no directions, and what loses nothing.
        alike = [*((number, [base_dim]) for number in BITS[::-1]), (32, _counts(base_dim))]
    if 0 in dims:
        alike.append((32, [0]))
    for number, widths in alike:
        parts.append(_alike(spectra, base_dim, np.array(widths), number, number_bytes))
        ways += [Way(dim, number) for dim in widths]
    costs, errors = (np.concatenate(part, axis=1) for part in zip(*parts, strict=True))
    return BandOptions(costs, errors, ways, spectra)


def _alike(
    spectra: Spectra, base_dim: int, dims: np.ndarray, bits: int, number_bytes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Bytes and errors of each width in so many bits: (bands, dims) each."""
    sizes, width = spectra.sizes[:, None].astype(np.int64), spectra.energies.shape[1]
    rows, widths = np.where(dims > 0, sizes, 1), np.where(dims > 0, dims, base_dim)
    lifts = widths * base_dim * (widths < base_dim)
    dropped = spectra.dropped(dims)
    if bits == 32:
        return number_bytes * (rows * widths + lifts), dropped
    costs = rows * (-(-dims * bits // 8)) + STEP_BYTES * (dims + lifts)
    # At full width nothing is turned: a column has the noise of its own numbers.
    coded = np.where(dims == width, spectra.columns[:, None], spectra.whole[:, None] - dropped)
    return costs, dropped + NOISE[bits] * coded


def _by_direction(
    spectra: Spectra, base_dim: int, dim: int, *, mean: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Bytes and errors of at most `dim` directions, in rows of 1 to `dim` bytes: (bands, dim) each."""
    energies = spectra.centered if mean else spectra.energies
    more, saved = _shared_out(energies[:, :dim])
    ends = np.cumsum(_WIDER[more % len(BITS)], axis=1)
    directions = np.cumsum(more % len(BITS) == 0, axis=1)
    row_bytes = np.arange(1, dim + 1)
    last = (ends[:, None, :] <= 8 * row_bytes[:, None]).sum(axis=2) - 1  # (bands, dim)
    kept = np.take_along_axis(directions, last, axis=1)
    lifts = STEP_BYTES * (kept + (kept + mean) * base_dim)
    costs = spectra.sizes[:, None].astype(np.int64) * row_bytes + lifts
    errors = energies.sum(axis=1)[:, None] - np.take_along_axis(np.cumsum(saved, axis=1), last, axis=1)
    return costs, errors.clip(min=0)


def _shared_out(energies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every step to more bits for a direction, what saves most per bit first; and what each saves.

    A step is the number of its direction times 7, and how many steps that direction has had.
    """
    saved = (energies[:, :, None] * _SAVED).reshape(len(energies), -1)
    per_bit = saved / np.tile(_WIDER, energies.shape[1])
    order = np.argsort(-per_bit, axis=1, kind="stable")
    return order, np.take_along_axis(saved, order, axis=1)


def _counts(most: int) -> list[int]:
    """How many directions may be kept: 1, 2, 3, 4, 6, 8, 12, ... and all."""
    powers = [2**k for k in range(most.bit_length())]
    return sorted({n for power in powers for n in (power, power * 3 // 2) if n <= most} | {most} - {0})


def _falling(matrices: np.ndarray) -> np.ndarray:
    """Eigenvalues of symmetric matrices, falling, none below 0."""
    return np.linalg.eigvalsh(matrices)[:, ::-1].clip(min=0)
