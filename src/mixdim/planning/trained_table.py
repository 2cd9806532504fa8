"""A trained table and how often its rows are looked up: what a plan can be chosen from.

Knows nothing about bands, widths or budgets. The table is an array or a tensor of torch, which is not
imported here. It is never copied whole: rows are read a chunk at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from mixdim._util.arguments import (
    WrongTypeError,
    nonnegative_vector,
    positive_number,
    whole_number,
)

AT_ONCE = 2**20  # numbers of a chunk, 8 MB in float64
UNSEEN = 1e-6  # of the mean count: what a row counts that was never looked up
RIDGE = 1e-3  # of the metric's mean eigenvalue


@dataclass(frozen=True, eq=False)
class TrainedTable:
    """A table of (rows, width) with the counts of its rows.

    - `weight`: an array, or a tensor of floating point numbers on any device.
    - `counts`: how often each row was looked up; None is equally often. A row that never was counts as
      `unseen` times the mean, so it gets what is left; if none was, all are equal.
    - `fields`: sizes of consecutive ranges of ids that are features of their own; if empty, all is one.
    - `metric`: (width, width), H of the distance (e - e')^T H (e - e'), such as the mean of g g^T over
      gradients g of a loss at the table's output. It may be singular: a thousandth of its mean
      eigenvalue is added to its diagonal. None is the identity.
    - `padding_id`: an id that gives zeros and takes no gradient, whatever its row; it counts nothing.
    - `sampled_ids`: the ids that the rows of `weight` belong to, if these are a sample; counts are then
      of all ids. The sampled rows of a band stand for all of its rows.
    - `lookups`: how often the table is used, to weigh it against other tables; the sum of its counts if
      not given.
    - `itemsize`: bytes of a number in the tables to be made; those of a tensor, or 4 of an array, if not
      given.
    """

    name: str
    weight: Any
    counts: Any = None
    fields: tuple[int, ...] = ()
    metric: Any = None
    padding_id: int | None = None
    sampled_ids: Any = None
    lookups: float | None = None
    itemsize: int | None = None
    unseen: float = UNSEEN

    def __post_init__(self) -> None:
        of_table = f"of table {self.name!r}"
        weight = checked_weight(self.weight, self.name)
        if self.sampled_ids is not None and self.counts is None:
            raise ValueError(f"sampled_ids {of_table} need the counts of all its rows")
        counts = np.ones(weight.shape[0]) if self.counts is None else self.counts
        counts = nonnegative_vector(counts, f"counts {of_table}")
        rows = weight.shape[0] if self.sampled_ids is None else len(counts)
        if len(counts) != rows:
            raise ValueError(f"counts {of_table} must be one for each of {rows} rows, got {len(counts)}")
        sizes = tuple(whole_number(size, f"a size in fields {of_table}") for size in self.fields)
        if sizes and sum(sizes) != rows:
            raise ValueError(f"fields {of_table} must add up to its {rows} rows, got {sum(sizes)}")
        checked: dict[str, Any] = {"weight": weight, "counts": counts, "fields": sizes or (rows,)}
        if self.lookups is not None:
            checked["lookups"] = positive_number(self.lookups, f"lookups {of_table}")
        if self.itemsize is not None:
            checked["itemsize"] = whole_number(self.itemsize, f"itemsize {of_table}")
        if self.metric is not None:
            checked["metric"] = _checked_metric(self.metric, weight.shape[1], f"metric {of_table}")
        if self.padding_id is not None:
            name = f"padding_id {of_table}"
            checked["padding_id"] = whole_number(self.padding_id, name, at_least=-(2**63))
        if self.sampled_ids is not None:
            checked["sampled_ids"] = _checked_sample(self.sampled_ids, weight.shape[0], rows, of_table)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def rows(self) -> int:
        """How many ids there are."""
        return len(self.counts)

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        return int(self.weight.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes of all rows at full width."""
        return self.rows * self.width * self.number_bytes

    @property
    def number_bytes(self) -> int:
        """Bytes of a number in the tables to be made."""
        own = self.weight.element_size() if is_tensor(self.weight) else 4
        return int(own if self.itemsize is None else self.itemsize)

    @property
    def use(self) -> float:
        """How often the table is used, as against others."""
        return float(self.counts.sum(dtype=np.float64) if self.lookups is None else self.lookups)

    @cached_property
    def row_probs(self) -> np.ndarray:
        """The probability that a lookup is of each row (p): (rows,)."""
        counts = self.counts.astype(np.float64)
        counts[counts == 0] = self.unseen * counts.mean() if counts.any() else 1.0
        if self.padding_id is not None and 0 <= self.padding_id < self.rows:
            counts[self.padding_id] = 0.0
        return counts / (counts.sum() or 1.0)

    @cached_property
    def metric_root(self) -> MetricRoot | None:
        """The square root of the metric and its inverse, if there is one."""
        if self.metric is None:
            return None
        values, vectors = np.linalg.eigh((self.metric + self.metric.T) / 2)
        values = values.clip(min=0)
        # Where no gradient came by, nothing matters: but what budget is left should go to good use.
        values = values + RIDGE * values.mean() + float(np.finfo(np.float32).tiny)
        return MetricRoot(*((vectors * scale) @ vectors.T for scale in (values**0.5, values**-0.5)))

    def read(self, ids: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """Read rows a chunk at a time, in float64, each chunk with its place among the ids.

        A chunk is the reader's own: it may be changed.
        """
        weight, at_once = _as_numpy(self.weight), rows_at_once(self.width)
        for start in range(0, len(ids), at_once):
            here = slice(start, min(start + at_once, len(ids)))
            if weight is not None:
                yield here, weight.take(ids[here], axis=0).astype(np.float64)
            else:
                yield here, self.weight.detach()[ids[here]].cpu().double().numpy()

    def moments(self, ids: np.ndarray) -> Moments:
        """How many, how often and in which directions rows are; ValueError if one is not finite."""
        probs, mass = self.row_probs[ids], float(self.row_probs[ids].sum())
        rows_of_weight = ids
        if self.sampled_ids is not None:
            rows_of_weight = self._row_of_id[ids]
            rows_of_weight, probs = (part[rows_of_weight >= 0] for part in (rows_of_weight, probs))
            if len(probs) == 0:
                raise ValueError(
                    f"sampled_ids of table {self.name!r} have no row of a band of {len(ids):,} rows"
                )
            # The sample may have missed all rows that are looked up.
            probs = probs if probs.any() else np.ones(len(probs))
            probs = probs * (mass / probs.sum())
        first, second = np.zeros(self.width), np.zeros((self.width, self.width))
        # What is not finite is found below, and gets a name.
        with np.errstate(all="ignore"):
            for here, rows in self.read(rows_of_weight):
                roots = np.sqrt(probs[here])
                rows *= roots[:, None]
                first += roots @ rows
                second += rows.T @ rows
                # A row of no weight can be wrong too: zero times infinity is not a number either.
                if not (np.isfinite(first).all() and np.isfinite(second).all()):
                    raise self._not_finite(rows, rows_of_weight[here])
        return Moments(len(ids), mass, first, second)

    @cached_property
    def _row_of_id(self) -> np.ndarray:
        """The row of each id in a sample; -1 where there is none."""
        rows = np.full(self.rows, -1)
        rows[self.sampled_ids] = np.arange(len(self.sampled_ids))
        return rows

    def _not_finite(self, rows: np.ndarray, rows_of_weight: np.ndarray) -> ValueError:
        wrong = ~np.isfinite(rows).all(axis=1)
        if not wrong.any():
            return ValueError(f"the weights of table {self.name!r} must be below 1e150")
        row = int(rows_of_weight[wrong.argmax()])
        return ValueError(f"the weights of table {self.name!r} must be finite, row {row} is not")


class Moments(NamedTuple):
    """What rows add up to: their number, probability, and the sums of p e and of p e e^T."""

    size: int
    mass: float
    first: np.ndarray  # (width,)
    second: np.ndarray  # (width, width)

    @classmethod
    def total(cls, parts: Sequence[Moments]) -> Moments:
        """What all rows of some parts add up to."""
        size, mass, first, second = zip(*parts, strict=True)
        return cls(sum(size), sum(mass), np.sum(first, axis=0), np.sum(second, axis=0))

    def seen_by(self, root: MetricRoot | None) -> Moments:
        """The moments of H^1/2 e: distances in a metric H are usual ones there."""
        if root is None:
            return self
        first, second = root.root @ self.first, root.root @ self.second @ root.root
        return self._replace(first=first, second=second)

    def energies(self) -> np.ndarray:
        """The eigenvalues of the sum of p e e^T, descending: (width,).

        They are the squared singular values of diag(sqrt(p)) @ table. Those that are no more than what
        float64 rounds are 0.
        """
        energies = np.linalg.eigvalsh(self.second)[::-1]
        noise = 16 * len(energies) * np.finfo(np.float64).eps * energies[0]
        return np.where(energies > noise, energies, 0.0)


class MetricRoot(NamedTuple):
    """The symmetric square root of a metric, and its inverse: (width, width) each."""

    root: np.ndarray
    inverse: np.ndarray


def rows_at_once(width: int) -> int:
    """How many rows of a table are read together: a multiple of what shares a scale when quantized."""
    return max(AT_ONCE // width // 64, 1) * 64


def is_tensor(values: Any) -> bool:
    """Whether this is a tensor of torch."""
    return hasattr(values, "detach") and hasattr(values, "is_floating_point")


def checked_weight(weight: Any, name: str) -> Any:
    """Return a tensor as it is and all else as an array; both are numbers of (rows, width)."""
    if is_tensor(weight):
        is_right = weight.is_floating_point()
    else:
        weight = np.asarray(weight)
        is_right = weight.dtype.kind in "iuf"
    if not is_right or weight.ndim != 2 or 0 in weight.shape:
        raise ValueError(
            f"table {name!r} must be numbers of shape (rows, width), "
            f"got {weight.dtype} {tuple(weight.shape)}"
        )
    return weight


def _as_numpy(weight: Any) -> np.ndarray | None:
    """The same memory as an array; None where there is no such, as on another device."""
    if not is_tensor(weight):
        return np.asarray(weight)
    try:
        return np.asarray(weight.detach().numpy())
    except (TypeError, RuntimeError):
        return None


def _checked_metric(metric: Any, width: int, name: str) -> np.ndarray:
    if is_tensor(metric):
        metric = metric.detach().cpu().double().numpy()
    if not isinstance(metric, np.ndarray) or metric.shape != (width, width):
        got = getattr(metric, "shape", type(metric).__name__)
        raise WrongTypeError(f"{name} must be a matrix of shape {(width, width)}, got {got}")
    if not np.isfinite(metric).all():
        raise ValueError(f"{name} must be finite")
    return metric.astype(np.float64)


def _checked_sample(given: Any, sampled: int, rows: int, of_table: str) -> np.ndarray:
    ids = np.asarray(given)
    if ids.dtype.kind not in "iu" or ids.shape != (sampled,):
        raise ValueError(
            f"sampled_ids {of_table} must be {sampled} whole numbers, one for each of its rows, "
            f"got {ids.dtype} {ids.shape}"
        )
    if ids.min() < 0 or ids.max() >= rows or len(np.unique(ids)) < len(ids):
        raise ValueError(f"sampled_ids {of_table} must be different ids below {rows}")
    return ids
