"""How stored rows come near given vectors: least squares, and the directions that matter most.

Knows nothing about storages. All numbers are float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mixdim._util.lazy import import_later

if TYPE_CHECKING:
    import torch
    from torch import Tensor

import_later(globals(), torch="torch")

STEPS, TOLERANCE = 200, 1e-10  # of conjugate gradients
DESCENT_STEPS = 200


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
