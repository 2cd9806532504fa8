"""How stored rows come near given vectors: least squares, and the directions that matter most.

Knows nothing about storages. All numbers are float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

from mixdim._util.lazy import import_later

if TYPE_CHECKING:
    import torch
    from torch import Tensor

import_later(globals(), torch="torch")

STEPS, TOLERANCE = 200, 1e-10  # of conjugate gradients
DESCENT_STEPS = 200


RIDGE = 1e-3  # of a metric's mean eigenvalue


class RowSource(Protocol):
    """The vectors of a block's rows, which are read a chunk at a time, as often as needed."""

    @property
    def scale(self) -> float:
        """A power of two: squares of vectors that are divided by it neither overflow nor vanish."""

    def chunks(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Places in the block, vectors (rows, D) that may be changed, and how much each row counts."""


class Metric(NamedTuple):
    """The square root of H in the distance (e - e')^T H (e - e'), and its inverse: (D, D) each."""

    root: Tensor
    inverse: Tensor

    @classmethod
    def of(cls, matrix: Tensor) -> Metric:
        """Take H, which may be singular: a thousandth of its mean eigenvalue is added.

        Where no gradient came by, nothing matters; but what budget is left should go to good use.
        """
        matrix = matrix.detach().to("cpu", torch.float64)
        values, vectors = torch.linalg.eigh((matrix + matrix.t()) / 2)
        values = values.clamp(min=0)
        values = values + RIDGE * values.mean() + torch.finfo(torch.float32).tiny
        return cls(*((vectors * scale) @ vectors.t() for scale in (values.sqrt(), values.rsqrt())))


class Lost(NamedTuple):
    """Weighted squares: of what was lost, and of all that there was."""

    error: float = 0.0
    energy: float = 0.0

    @classmethod
    def between(
        cls, found: Tensor, vectors: Tensor, weights: Tensor, metric: Metric | None = None
    ) -> Lost:
        """Measure what stands for vectors: (rows, D) twice, (rows,)."""
        seen = [found - vectors, vectors]
        if metric is not None:
            seen = [each @ metric.root for each in seen]
        return cls(*(float(weights @ (each**2).sum(1)) for each in seen))

    def __add__(self, other: tuple[float, float]) -> Lost:  # type: ignore[override]  # not a longer tuple
        return Lost(self.error + other[0], self.energy + other[1])

    @property
    def share(self) -> float:
        """0 is nothing lost, 1 nothing kept."""
        return self.error / self.energy if self.energy else 0.0


class Sums(NamedTuple):
    """What the rows of a block add up to: how much they count, and sums of w e and of w e e^T."""

    mass: float
    first: Tensor  # (D,)
    second: Tensor  # (D, D)

    @classmethod
    def of(cls, source: RowSource) -> Sums:
        """Read all rows once; a row that is not finite is a ValueError."""
        mass, first, second = 0.0, None, None
        for here, vectors, weights in source.chunks():
            roots = weights.sqrt()
            rows = vectors.div_(source.scale).mul_(roots[:, None])
            if first is None or second is None:
                first, second = rows.new_zeros(rows.shape[1]), rows.new_zeros(2 * rows.shape[1:])
            first.addmv_(rows.t(), roots)
            second.addmm_(rows.t(), rows)
            mass += float(weights.sum())
            # A row of no weight can be wrong too: zero times infinity is not a number either.
            if not bool(first.isfinite().all() and second.isfinite().all()):
                wrong = ~rows.isfinite().all(1)
                raise ValueError(
                    f"its numbers must be finite, row {here.start + int(wrong.nonzero()[0])} is not"
                )
        assert first is not None
        assert second is not None
        return cls(mass, first, second)

    def centered(self) -> Sums:
        """The same of rows without their mean."""
        mean = self.first / (self.mass or 1.0)
        second = self.second - torch.outer(mean, self.first)
        return Sums(self.mass, torch.zeros_like(mean), (second + second.t()) / 2)

    def _seen_by(self, metric: Metric | None) -> tuple[Tensor, Tensor]:
        """First and second of H^1/2 e: distances in a metric H are usual ones there."""
        if metric is None:
            return self.first, self.second
        return metric.root @ self.first, metric.root @ self.second @ metric.root

    def energy(self, metric: Metric | None) -> float:
        """All that there is."""
        return float(self._seen_by(metric)[1].trace())

    def lost_by_mean(self, metric: Metric | None) -> Lost:
        """What is lost where all rows become their mean."""
        first, second = self._seen_by(metric)
        energy = float(second.trace())
        return Lost(max(energy - float(first @ first) / (self.mass or 1.0), 0.0), energy)

    def main_directions(self, metric: Metric | None, dim: int) -> tuple[Tensor, Tensor, Lost]:
        """What turns vectors into `dim` numbers, (D, dim), what turns those back, (dim, D), the loss."""
        energies, vectors = torch.linalg.eigh(self._seen_by(metric)[1])  # rising
        main = vectors[:, -dim:].flip(1)
        energies = energies.clamp(min=0)
        lost = Lost(float(energies[:-dim].sum()), float(energies.sum()))
        if metric is None:
            return main, main.t(), lost
        return metric.root @ main, main.t() @ metric.inverse, lost


def main_directions(vectors: Tensor, row_weights: Tensor, dim: int) -> Tensor:
    """The `dim` orthonormal directions that keep most of weighted vectors: (rows, D) -> (D, dim).

    They minimise the sum over rows of weight * |vector - its projection|^2: the leading right singular
    vectors of sqrt(weight) * vector, as eigenvectors of a (D, D) matrix, which rows only add up to.
    """
    vectors = vectors / _largest(vectors)  # squares must neither overflow nor vanish
    _, directions = torch.linalg.eigh(vectors.t() @ (vectors * row_weights[:, None]))  # rising
    return directions[:, -dim:].flip(1)


def fit_stored_rows(
    take: Callable[[Tensor], Tensor],
    stored_rows: int,
    matrix: Tensor,
    row_weights: Tensor,
    dim: int | None,
) -> tuple[Tensor, Tensor | None]:
    """Return stored rows, and unless `dim` is None their projection, whose vectors come near a matrix.

    `take` says which vectors stored rows of any width give: (stored_rows, D) -> (rows, D), linear in
    them. With A for it, these are the rows X and the directions V that minimise
    |sqrt(weights) (matrix - A X V^T)|^2: X = B V, where B is the least-squares solution without V, and V
    the main directions of A B (reduced rank regression). If all that is wanted were the mean row, and A
    adds up to the same for every row, this is never further away.
    """
    largest = _largest(matrix)
    matrix = matrix / largest
    sums = take(matrix.new_ones(stored_rows, 1))  # (rows, 1): what A adds up to
    mean = (row_weights @ matrix) / row_weights.sum()
    scale = (row_weights @ sums) / (row_weights @ sums**2)
    start = mean.expand(stored_rows, -1) * scale
    at_most = distance(take(start), matrix, row_weights)
    fitted, projection = start, None
    # Should conjugate gradients not have converged, the start is there to fall back on.
    for solution in (_least_squares(take, matrix, row_weights, start=start), start):
        fitted, projection, vectors = solution, None, take(solution)
        if dim is not None:
            directions = main_directions(vectors, row_weights, dim)
            fitted, projection = solution @ directions, directions.t()
            vectors = take(fitted) @ projection
        if distance(vectors, matrix, row_weights) <= at_most:
            break
    return fitted * largest, projection


def _least_squares(
    take: Callable[[Tensor], Tensor], matrix: Tensor, row_weights: Tensor, *, start: Tensor
) -> Tensor:
    """Minimise the weighted distance of A X to a matrix over X, by conjugate gradients from `start`."""

    def transposed(vectors: Tensor) -> Tensor:  # A^T W vectors
        with torch.enable_grad():
            rows = torch.zeros_like(start, requires_grad=True)
            (found,) = torch.autograd.grad(take(rows), rows, vectors * row_weights[:, None])
        return found

    x = start.clone()
    residual = transposed(matrix - take(x))
    direction, size = residual.clone(), (residual**2).sum()
    enough = TOLERANCE**2 * size
    for _ in range(STEPS):
        if size <= enough:
            break
        ahead = transposed(take(direction))
        step = size / (direction * ahead).sum()
        x += step * direction
        residual -= step * ahead
        before, size = size, (residual**2).sum()
        direction = residual + (size / before) * direction
    return x


def _largest(matrix: Tensor) -> Tensor:
    """The largest absolute value, or 1 if all are zero."""
    largest = matrix.abs().max()
    return largest.where(largest > 0, 1.0)


def distance(vectors: Tensor, matrix: Tensor, row_weights: Tensor) -> float:
    """The sum over rows of weight * squared distance."""
    return float((row_weights @ ((vectors - matrix) ** 2)).sum())


def fit_by_descent(
    vectors_of: Callable[..., Tensor], start: list[Tensor], matrix: Tensor, row_weights: Tensor
) -> list[Tensor]:
    """Return tensors whose vectors come near a matrix, by L-BFGS from a start, and never further away.

    `vectors_of(*tensors)` need not be linear in them; the least distance that it finds is a local one.
    """
    largest, tensors = _largest(matrix), [tensor.clone().requires_grad_() for tensor in start]
    weights = row_weights / row_weights.sum()
    descent = torch.optim.LBFGS(
        tensors,
        max_iter=DESCENT_STEPS,
        max_eval=2 * DESCENT_STEPS,
        tolerance_grad=TOLERANCE**2,
        tolerance_change=TOLERANCE**2,
        line_search_fn="strong_wolfe",
    )

    def lost() -> Tensor:
        descent.zero_grad()
        squares = ((vectors_of(*tensors) - matrix) / largest) ** 2
        now = (weights @ squares).sum()
        now.backward()
        return now.detach()

    with torch.enable_grad():
        before = float(lost())
        descent.step(lost)
        after = float(lost())
    return [tensor.detach() for tensor in tensors] if after <= before else start
