"""Tensors of pairwise interactions between features, and their completion. Knows nothing about layers.

Feature i has a factor (n_i, rank); an entry of the tensor picks one row x_i of every factor:
T_x = sum over ordered pairs (i, j), i = j included, of <M^(i)_(x_i), M^(j)_(x_j)> (paper, App. C). That
is |sum_i M^(i)_(x_i)|^2, so no entry is negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from mixdim._util.arguments import unit_interval, whole_number
from mixdim.lab.theory.structure import checked_matrix, checked_sizes

TINY = 1e-300  # so that a tensor of zeros is no division by 0


def interactions_at(factors: Sequence[Any], indices: Any) -> np.ndarray:
    """Return the entries of the tensor at `indices`, (entries, features) -> (entries,).

    >>> factors = [np.array([[1.0], [2.0]]), np.array([[3.0]])]
    >>> interactions_at(factors, [[0, 0], [1, 0]]).tolist()
    [16.0, 25.0]
    """
    factors = _checked_factors(factors)
    return (_vector_sums(factors, _checked_indices(indices, [len(f) for f in factors])) ** 2).sum(axis=1)


def interaction_tensor(factors: Sequence[Any]) -> np.ndarray:
    """Return the whole tensor, of shape (n_1, ..., n_kappa)."""
    factors = _checked_factors(factors)
    sizes = [len(factor) for factor in factors]
    return interactions_at(factors, np.indices(sizes).reshape(len(sizes), -1).T).reshape(sizes)


def interaction_matrix(factors: Sequence[Any]) -> np.ndarray:
    """Return the symmetric block matrix whose block (i, j) is M^(i) M^(j)^T (paper, App. C).

    An entry of the tensor is the sum of one entry from each block. The matrix has the rank of the
    factors, not the sum of its blocks' ranks: with two features or more it is *not* rank additive,
    though the paper applies the block model to it.
    """
    stacked = np.concatenate(_checked_factors(factors))
    return stacked @ stacked.T


def sample_indices(sizes: Any, rate: float, *, generator: np.random.Generator) -> np.ndarray:
    """Draw which entries are seen, each with probability `rate`: (entries, features).

    >>> sample_indices([2, 3, 2], 1.0, generator=np.random.default_rng(0)).shape
    (12, 3)
    """
    sizes, rate = checked_sizes(sizes, "sizes"), unit_interval(rate, "rate")
    return np.argwhere(generator.random(tuple(sizes)) < rate)


def complete_tensor(
    indices: Any,
    values: Any,
    sizes: Any,
    rank: int,
    *,
    starts: int = 5,
    epochs: int = 300,
    batch_size: int = 64,
    step: float = 1.5,
    tolerance: float = 1e-8,
    generator: np.random.Generator,
) -> list[np.ndarray]:
    """Complete a tensor by stochastic gradient descent on its seen entries; returns the factors.

    Minimises the sum over seen entries of (|s_x|^2 - T_x)^2, s_x = sum_i M^(i)_(x_i), from a random
    start of the right scale. In every batch a row moves along s_x, by the mean over the entries it met
    of `step` times its share in setting the entry right. The problem is not convex, and some starts
    end badly: the best of up to `starts` is returned, or the first whose relative error on the
    seen entries is at most `tolerance`.

    - `indices`: (entries, features), a row an entry; `values`: theirs; `sizes`: rows of each feature.
    """
    sizes, rank = checked_sizes(sizes, "sizes"), whole_number(rank, "rank")
    indices = _checked_indices(indices, sizes)
    values = checked_matrix(np.asarray(values)[:, None], "values", (len(indices), 1))[:, 0]
    scale = values.mean()
    if scale < 0:
        raise ValueError(f"values of such a tensor are not negative, got a mean of {scale}")
    deviation = np.sqrt(scale / (rank * len(sizes)))
    best: list[np.ndarray] = []
    least = np.inf
    for _ in range(whole_number(starts, "starts")):
        factors = [deviation * generator.standard_normal((size, rank)) for size in sizes]
        for _ in range(epochs):
            order = generator.permutation(len(indices))
            for batch in np.array_split(order, -(-len(order) // batch_size)):
                _step(factors, indices[batch], values[batch], step, 0.1 * scale + TINY)
            errors = (_vector_sums(factors, indices) ** 2).sum(axis=1) - values
            misfit = float(np.linalg.norm(errors))
            if misfit <= tolerance * np.linalg.norm(values):
                return factors
        if misfit < least:
            best, least = factors, misfit
    return best


def _step(
    factors: list[np.ndarray], indices: np.ndarray, values: np.ndarray, step: float, floor: float
) -> None:
    """Move the rows of a batch of entries, in place."""
    sums = _vector_sums(factors, indices)  # (entries, rank)
    squares = (sums**2).sum(axis=1)
    # Moving all rows of an entry by -share * s_x changes |s_x|^2 by about values - squares.
    share = (squares - values) / (2 * len(factors) * np.maximum(squares, floor))
    for feature, factor in enumerate(factors):
        rows = indices[:, feature]
        moves = np.zeros_like(factor)
        np.add.at(moves, rows, share[:, None] * sums)
        factor -= step * moves / np.maximum(np.bincount(rows, minlength=len(factor)), 1)[:, None]


def _vector_sums(factors: Sequence[np.ndarray], indices: np.ndarray) -> np.ndarray:
    """sum_i M^(i)_(x_i) for every entry: (entries, rank)."""
    return reduce(np.add, (f[indices[:, i]] for i, f in enumerate(factors)))


def _checked_factors(factors: Sequence[Any]) -> list[np.ndarray]:
    if not len(factors):
        raise ValueError("factors must have one matrix for each feature, got none")
    checked = [checked_matrix(factor, f"factors[{i}]") for i, factor in enumerate(factors)]
    widths = [factor.shape[1] for factor in checked]
    if len(set(widths)) > 1:
        raise ValueError(f"factors must all have the same rank, got {widths}")
    return checked


def _checked_indices(indices: Any, sizes: Any) -> np.ndarray:
    array = np.asarray(indices)
    if array.dtype.kind not in "iu" or array.ndim != 2 or array.shape[1] != len(sizes) or not len(array):
        raise ValueError(
            f"indices must be whole numbers of shape (entries, {len(sizes)}), "
            f"got {array.dtype} {array.shape}"
        )
    wrong = (array < 0) | (array >= np.asarray(sizes))
    if wrong.any():
        row, feature = np.argwhere(wrong)[0].tolist()
        raise ValueError(
            f"indices[{row}] must be from 0 to {sizes[feature] - 1} in feature {feature}, "
            f"got {array[row, feature]}"
        )
    return array
