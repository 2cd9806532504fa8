"""Completing a matrix from the entries seen, whole or block by block. Knows nothing about popularity.

Matrices are dense: these functions are for studying the theory, not for training on data.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from mixdim._util.arguments import whole_number
from mixdim.lab.theory.structure import checked_matrix, checked_ranks, split_blocks

TINY = 1e-300  # in place of a length of 0, whose gradient is 0 as well


class Factors(NamedTuple):
    """`left @ right.T` is the matrix: (rows, rank) and (columns, rank)."""

    left: np.ndarray
    right: np.ndarray


class Complete(Protocol):
    """A way to complete a matrix: `complete_sgd`, `complete_als` or the like."""

    def __call__(self, matrix: np.ndarray, seen: np.ndarray, rank: int) -> Factors:
        """Complete at `rank` from the entries where `seen` is True."""


def complete_sgd(
    matrix: Any,
    seen: Any,
    rank: int,
    *,
    epochs: int = 500,
    batches: int = 4,
    step: float = 0.5,
    tolerance: float = 1e-9,
    generator: np.random.Generator | None = None,
) -> Factors:
    """Complete a matrix by stochastic gradient descent from a spectral start (Sun & Luo, 2016).

    Minimises the sum over seen entries (k, l) of (W_k . V_l - M_kl)^2. The start is the best
    approximation of the seen entries at `rank`, scaled by 1 / (share seen). Each epoch deals the
    seen entries into `batches` and steps along the gradient of each: W_k by `step` over the squared
    lengths of the V_l it met there, and V_l likewise. It ends early where the relative error on the
    seen entries is at most `tolerance`. (Sun & Luo take one small step size for all rows, where those
    with few entries learn slowly, and penalise long rows for their proof.)

    Only entries where `seen` is True are read. Popularity-agnostic completion, the rival in Thm.
    4.1(1), is this on the whole matrix at one rank; mixed factorisation is `factor_blocks`.

    >>> truth = np.outer([1.0, 2.0, 3.0], [1.0, -1.0])
    >>> seen = np.array([[True, True], [True, True], [True, False]])
    >>> found = complete_sgd(truth, seen, rank=1)
    >>> (found.left @ found.right.T).round(6).tolist()[2]
    [3.0, -3.0]
    """
    seen, observed, rank = _checked_sample(matrix, seen, rank)
    generator = generator or np.random.default_rng(0)
    left, right = _spectral_start(observed, seen, rank)
    rows, columns = np.nonzero(seen)
    norm = np.linalg.norm(observed)
    if rank == 0 or norm == 0:
        return Factors(left, right)
    for _ in range(epochs):
        for batch in np.array_split(generator.permutation(len(rows)), min(batches, len(rows))):
            at = rows[batch], columns[batch]
            residual = np.zeros_like(observed)
            residual[at] = (left[at[0]] * right[at[1]]).sum(axis=1) - observed[at]
            met_by_left = np.bincount(at[0], (right**2).sum(axis=1)[at[1]], len(left))
            met_by_right = np.bincount(at[1], (left**2).sum(axis=1)[at[0]], len(right))
            left, right = (
                left - step * (residual @ right) / np.maximum(met_by_left, TINY)[:, None],
                right - step * (residual.T @ left) / np.maximum(met_by_right, TINY)[:, None],
            )
        if _misfit(left, right, observed, seen) <= tolerance * norm:
            break
    return Factors(left, right)


def complete_als(
    matrix: Any, seen: Any, rank: int, *, rounds: int = 200, tolerance: float = 1e-9
) -> Factors:
    """Complete a matrix by alternating least squares from the same spectral start as `complete_sgd`.

    Solves for every row of W with V fixed, then for V with W fixed. A row with fewer seen entries than
    `rank` gets the shortest solution. Ends early where the relative error on the seen entries is at
    most `tolerance`.

    >>> truth = np.outer([1.0, 2.0, 3.0], [1.0, -1.0])
    >>> seen = np.array([[True, True], [True, True], [True, False]])
    >>> found = complete_als(truth, seen, rank=1)
    >>> (found.left @ found.right.T).round(6).tolist()[2]
    [3.0, -3.0]
    """
    seen, observed, rank = _checked_sample(matrix, seen, rank)
    left, right = _spectral_start(observed, seen, rank)
    norm = np.linalg.norm(observed)
    if rank == 0 or norm == 0:
        return Factors(left, right)
    for _ in range(rounds):
        left = _least_squares(right, observed, seen)
        right = _least_squares(left, observed.T, seen.T)
        if _misfit(left, right, observed, seen) <= tolerance * norm:
            break
    return Factors(left, right)


def factor_exactly(matrix: Any, rank: int) -> Factors:
    """Return the best factors at `rank` of a matrix that is seen completely, from its SVD."""
    matrix = checked_matrix(matrix, "matrix")
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    root = np.sqrt(values[:rank])
    return Factors(left[:, :rank] * root, right[:rank].T * root)


def factor_blocks(
    matrix: Any,
    seen: Any,
    row_sizes: Any,
    col_sizes: Any,
    block_ranks: Any,
    *,
    complete: Complete = complete_sgd,
) -> list[list[Factors]]:
    """Complete every block on its own at its own rank: the first half of Alg. 4 (paper, App. C).

    `assemble` in `mixdim.lab.theory.assembly` is the second half.
    """
    matrix, seen = np.asarray(matrix), np.asarray(seen)
    ranks = checked_ranks(block_ranks, row_sizes, col_sizes)
    blocks = split_blocks(matrix, row_sizes, col_sizes)
    masks = split_blocks(seen, row_sizes, col_sizes)
    return [
        [complete(blocks[i][j], masks[i][j], int(rank)) for j, rank in enumerate(line)]
        for i, line in enumerate(ranks)
    ]


def _checked_sample(matrix: Any, seen: Any, rank: int) -> tuple[np.ndarray, np.ndarray, int]:
    """The mask, the seen entries with 0 elsewhere, and the rank."""
    matrix, seen = np.asarray(matrix), np.asarray(seen)
    if seen.dtype != np.bool_ or seen.shape != matrix.shape:
        raise ValueError(
            f"seen must be a boolean matrix of shape {matrix.shape}, got {seen.dtype} {seen.shape}"
        )
    observed = checked_matrix(np.where(seen, matrix, 0.0), "matrix")  # what is not seen may be NaN
    rank = whole_number(rank, "rank", at_least=0)
    if rank > min(matrix.shape):
        raise ValueError(f"rank must be at most {min(matrix.shape)}, got {rank}")
    return seen, observed, rank


def _spectral_start(observed: np.ndarray, seen: np.ndarray, rank: int) -> Factors:
    """The best factors of the seen entries, 0 elsewhere, over the share that is seen."""
    return factor_exactly(observed / max(seen.mean(), 1 / seen.size), rank)


def _misfit(left: np.ndarray, right: np.ndarray, observed: np.ndarray, seen: np.ndarray) -> float:
    return float(np.linalg.norm(np.where(seen, left @ right.T - observed, 0.0)))


def _least_squares(known: np.ndarray, observed: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Each row w that minimises the sum over its seen entries l of (w . known_l - observed_l)^2."""
    rank = known.shape[1]
    squares = (known[:, :, None] * known[:, None, :]).reshape(len(known), rank * rank)
    normal = (seen @ squares).reshape(-1, rank, rank)
    # A trace of ridge: rows with fewer entries than the rank get the shortest solution, not an error.
    normal += 1e-11 * np.trace(squares.mean(axis=0).reshape(rank, rank)) * np.eye(rank)
    return np.linalg.solve(normal, (observed @ known)[:, :, None])[:, :, 0]
