"""A trained table and how often its rows are asked for: what is to be made small.

Knows nothing about bands or widths. The table is never copied whole: rows are read a chunk at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mixdim._util.arguments import WrongTypeError, nonnegative_vector, whole_number

AT_ONCE = 2**20  # numbers of a chunk, 8 MB in float64
NEVER_ASKED = 1e-6  # of the mean count: what a row counts that was never asked for
RIDGE = 1e-3  # of the metric's mean eigenvalue


@dataclass(frozen=True, eq=False)
class Subject:
    """A table of (rows, width) with the counts of its rows.

    - `counts`: how often each row was asked for. A row that never was counts as a millionth of the mean,
      so it gets what is left; if none was, all are equal.
    - `fields`: sizes of consecutive ranges of ids that are features of their own; if empty, all is one.
    - `metric`: (width, width), H of the distance (e - e')^T H (e - e'), such as the mean of g g^T over
      gradients g of a loss at the table's output. It may be singular: a thousandth of its mean
      eigenvalue is added to its diagonal. None is the identity.
    - `padding_id`: an id that gives zeros and takes no gradient, whatever its row; it counts nothing.
    """

    name: str
    weight: Tensor
    counts: np.ndarray
    fields: tuple[int, ...] = ()
    metric: Tensor | None = None
    padding_id: int | None = None

    def __post_init__(self) -> None:
        of_table = f"of table {self.name!r}"
        if self.weight.dim() != 2 or 0 in self.weight.shape or not self.weight.is_floating_point():
            raise ValueError(
                f"weight {of_table} must be floating point of shape (rows, width), got "
                f"{self.weight.dtype} {tuple(self.weight.shape)}"
            )
        counts = nonnegative_vector(self.counts, f"counts {of_table}")
        if len(counts) != self.rows:
            raise ValueError(
                f"counts {of_table} must be one for each of {self.rows} rows, got {len(counts)}"
            )
        object.__setattr__(self, "counts", counts)
        sizes = tuple(whole_number(size, f"a size in fields {of_table}") for size in self.fields)
        if sizes and sum(sizes) != self.rows:
            raise ValueError(f"fields {of_table} must add up to its {self.rows} rows, got {sum(sizes)}")
        object.__setattr__(self, "fields", sizes or (self.rows,))
        if self.metric is not None:
            _check_metric(self.metric, self.width, f"metric {of_table}")
        if self.padding_id is not None:
            padding_id = whole_number(self.padding_id, f"padding_id {of_table}", at_least=-(2**63))
            object.__setattr__(self, "padding_id", padding_id)

    @property
    def rows(self) -> int:
        """How many ids there are."""
        return self.weight.shape[0]

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        return self.weight.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of the table as it is."""
        return self.weight.numel() * self.weight.element_size()

    @cached_property
    def row_probs(self) -> np.ndarray:
        """The probability that a query asks for each row (p): (rows,)."""
        counts = self.counts.astype(np.float64)
        counts[counts == 0] = NEVER_ASKED * counts.mean() or 1.0
        if self.padding_id is not None and 0 <= self.padding_id < self.rows:
            counts[self.padding_id] = 0.0
        return counts / (counts.sum() or 1.0)

    @cached_property
    def metric_root(self) -> MetricRoot | None:
        """The square root of the metric and its inverse, if there is one."""
        if self.metric is None:
            return None
        metric = self.metric.detach().to("cpu", torch.float64)
        values, vectors = torch.linalg.eigh((metric + metric.t()) / 2)
        values = values.clamp(min=0)
        # Where no gradient came by, nothing matters: but what budget is left should go to good use.
        values = values + RIDGE * values.mean() + torch.finfo(torch.float32).tiny
        return MetricRoot(
            *((vectors * scale) @ vectors.t() for scale in (values.sqrt(), values.rsqrt()))
        )

    def read(self, ids: np.ndarray) -> Iterator[tuple[slice, Tensor]]:
        """Read rows a chunk at a time, in float64 on the CPU, each with its place among the ids.

        A chunk is the reader's own: it may be changed.
        """
        weight, at_once = self.weight.detach(), rows_at_once(self.width)
        for start in range(0, len(ids), at_once):
            here = slice(start, min(start + at_once, len(ids)))
            asked = torch.from_numpy(ids[here]).to(weight.device)
            yield here, weight.index_select(0, asked).to("cpu", torch.float64)

    def moments(self, ids: np.ndarray) -> Moments:
        """How many, how often and in which directions rows are; ValueError if one is not finite."""
        probs, width = torch.from_numpy(self.row_probs), self.width
        second = torch.zeros(width, width, dtype=torch.float64)
        first = torch.zeros(width, dtype=torch.float64)
        for here, rows in self.read(ids):
            roots = probs[torch.from_numpy(ids[here])].sqrt_()
            rows.mul_(roots[:, None])
            first.addmv_(rows.t(), roots)
            second.addmm_(rows.t(), rows)
            # A row of no weight can be wrong too: zero times infinity is not a number either.
            if not bool(torch.isfinite(first).all() and torch.isfinite(second).all()):
                raise self._not_finite(rows, ids[here])
        return Moments(len(ids), float(self.row_probs[ids].sum()), first, second)

    def _not_finite(self, rows: Tensor, ids: np.ndarray) -> ValueError:
        wrong = ~rows.isfinite().all(dim=1)
        if not bool(wrong.any()):
            return ValueError(f"the weights of table {self.name!r} must be below 1e150")
        row = int(ids[int(wrong.to(torch.uint8).argmax())])
        return ValueError(f"the weights of table {self.name!r} must be finite, row {row} is not")


class Moments(NamedTuple):
    """What rows add up to: their number, probability, and the sums of p e and of p e e^T."""

    size: int
    mass: float
    first: Tensor  # (width,)
    second: Tensor  # (width, width)

    @classmethod
    def total(cls, parts: Sequence[Moments]) -> Moments:
        """What all rows of some parts add up to."""
        size, mass = sum(part.size for part in parts), sum(part.mass for part in parts)
        sums = (torch.stack(own).sum(0) for own in list(zip(*parts, strict=True))[2:])
        return cls(size, mass, *sums)

    def seen_by(self, root: MetricRoot | None) -> Moments:
        """The moments of H^1/2 e: distances in a metric H are usual ones there."""
        if root is None:
            return self
        first, second = root.root @ self.first, root.root @ self.second @ root.root
        return self._replace(first=first, second=second)


class MetricRoot(NamedTuple):
    """The symmetric square root of a metric, and its inverse: (width, width) each."""

    root: Tensor
    inverse: Tensor


def rows_at_once(width: int) -> int:
    """How many rows of a table are read together: a multiple of what shares a scale when quantized."""
    return max(AT_ONCE // width // 64, 1) * 64


def _check_metric(metric: Tensor, width: int, name: str) -> None:
    if not isinstance(metric, Tensor) or tuple(metric.shape) != (width, width):
        got = tuple(metric.shape) if isinstance(metric, Tensor) else type(metric).__name__
        raise WrongTypeError(f"{name} must be a tensor of shape {(width, width)}, got {got}")
    if not bool(metric.isfinite().all()):
        raise ValueError(f"{name} must be finite")
