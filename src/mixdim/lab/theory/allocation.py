"""How wide each block of a known matrix should be, within a budget. Knows nothing about training.

The problem (paper, Thm. 4.2): widths d_ij that minimise the popularity-weighted error

    sum_ij Pi_ij / (n_i m_j) * (sum of sigma_ij(k)^2 over k > d_ij)  with  sum_ij (n_i + m_j) d_ij <= B.

It is optimal among *block-wise* factorisations. Where the blocks of a row nearly share a space, a factor
for all of them can cost less: `tests/lab/theory/test_errata.py` has an example.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mixdim._util.arguments import real_number, whole_number
from mixdim.lab.theory.spectra import checked_spectrum
from mixdim.lab.theory.structure import (
    block_areas,
    checked_matrix,
    checked_probs,
    checked_ranks,
    checked_sizes,
    split_blocks,
)
from mixdim.planning.knapsack import best_choice


@dataclass(frozen=True, eq=False)
class SpectralBlocks:
    """What the allocation knows of each block: (row blocks, column blocks) in front of all shapes.

    - `unit_cost`: parameters that one more dimension costs, n_i + m_j.
    - `gains`: error that the k-th dimension removes, Pi_ij / (n_i m_j) sigma_ij(k)^2, padded with zeros.
    """

    unit_cost: np.ndarray  # (i, j)
    gains: np.ndarray  # (i, j, k), descending in k
    ranks: np.ndarray  # (i, j): widths beyond the length of a spectrum are useless

    @property
    def full_cost(self) -> int:
        """Parameters with which nothing is left out."""
        return int((self.unit_cost * self.ranks).sum())

    def cost(self, dims: Any) -> float:
        """Parameters of an allocation: sum_ij (n_i + m_j) d_ij."""
        return float((self.unit_cost * dims).sum())

    def error(self, dims: Any) -> float:
        """Popularity-weighted MSE of an allocation; a fraction of a dimension removes that fraction.

        That is the integral of g^2 from d to the rank, with g the step function of `spectral_decay`.
        """
        kept = np.clip(np.asarray(dims)[..., None] - np.arange(self.gains.shape[-1]), 0.0, 1.0)
        return float((self.gains * (1 - kept)).sum())


def spectral_blocks(
    row_sizes: Any, col_sizes: Any, block_probs: Any, spectra: Sequence[Sequence[Any]] | np.ndarray
) -> SpectralBlocks:
    """Describe the blocks by their sizes, probabilities and singular values `spectra[i][j]`.

    >>> blocks = spectral_blocks([3, 3], [2], [[0.8], [0.2]], [[[4.0, 1.0]], [[4.0]]])
    >>> blocks.error([[2], [1]]), blocks.full_cost
    (0.0, 15)
    """
    rows, columns = checked_sizes(row_sizes, "row_sizes"), checked_sizes(col_sizes, "col_sizes")
    probs = checked_probs(block_probs, rows, columns)
    ranks = checked_ranks([[len(values) for values in line] for line in spectra], rows, columns)
    padded = np.zeros((*ranks.shape, max(int(ranks.max()), 1)))
    for i, line in enumerate(spectra):
        for j, values in enumerate(line):
            padded[i, j, : ranks[i, j]] = values
    wrong = ~((padded >= 0) & np.isfinite(padded)).all(axis=-1) | (np.diff(padded) > 0).any(axis=-1)
    for i, j in np.argwhere(wrong)[:1]:
        checked_spectrum(spectra[i][j], f"spectra[{i}][{j}]")  # says what is wrong
    weights = probs / block_areas(rows, columns)
    return SpectralBlocks(np.add.outer(rows, columns), weights[..., None] * padded**2, ranks)


def weighted_mse(matrix: Any, estimate: Any, block_probs: Any, row_sizes: Any, col_sizes: Any) -> float:
    """Return sum_ij Pi_ij / (n_i m_j) |M^(ij) - estimate^(ij)|_F^2: popularity-weighted MSE (Sec. 4.2).

    >>> weighted_mse([[1.0], [0.0]], [[0.0], [0.0]], [[0.9], [0.1]], [1, 1], [1])
    0.9
    """
    matrix = checked_matrix(matrix, "matrix")
    squared = (matrix - checked_matrix(estimate, "estimate", matrix.shape)) ** 2
    probs = checked_probs(block_probs, row_sizes, col_sizes)
    means = [[block.mean() for block in line] for line in split_blocks(squared, row_sizes, col_sizes)]
    return float((probs * means).sum())


def relaxed_dims(blocks: SpectralBlocks, budget: float) -> np.ndarray:
    """Return the best widths when fractions are allowed: Thm. 4.2 for measured spectra.

    d_ij = g_ij^-1(sqrt(lambda (n_i + m_j) n_i m_j / Pi_ij)): all singular directions whose gain per
    parameter is at least the multiplier lambda. A measured g is a step function, so cost
    jumps as lambda falls and in general no lambda meets the budget; the direction at the jump is then
    kept in part, which is the optimum. The jump is found by sorting.

    >>> blocks = spectral_blocks([3, 3], [2], [[0.8], [0.2]], [[[4.0, 1.0]], [[4.0]]])
    >>> relaxed_dims(blocks, budget=8).round(3).tolist()
    [[1.0], [0.6]]
    """
    order, costs = _by_gain_per_parameter(blocks)
    before = np.cumsum(costs) - costs
    kept = np.clip((_checked_budget(budget) - before) / costs, 0.0, 1.0)
    return _collect(blocks, order, kept)


def integer_dims(blocks: SpectralBlocks, budget: float) -> np.ndarray:
    """Return whole widths, by taking singular directions in order of gain per parameter while they fit.

    A direction that does not fit is passed over and cheaper ones after it are still tried. The error is
    above the optimum by less than the gain of one direction (the one that `relaxed_dims` cuts); for the
    optimum itself, see `best_dims`.

    >>> blocks = spectral_blocks([3, 3], [2], [[0.8], [0.2]], [[[4.0, 1.0]], [[4.0]]])
    >>> integer_dims(blocks, budget=10).tolist()
    [[1], [1]]
    """
    order, costs = _by_gain_per_parameter(blocks)
    left = _checked_budget(budget)
    kept = np.zeros(len(costs))
    start, cheapest = 0, int(blocks.unit_cost.min())
    while left >= cheapest and start < len(costs):
        run = int(np.searchsorted(np.cumsum(costs[start:]), left, side="right"))  # these all fit
        kept[start : start + run] = 1.0
        left -= costs[start : start + run].sum()
        start += run
        fits = np.flatnonzero(costs[start:] <= left)
        start = start + int(fits[0]) if len(fits) else len(costs)
    return _collect(blocks, order, kept).astype(np.int64)


def best_dims(blocks: SpectralBlocks, budget: float, *, choices: Sequence[int]) -> np.ndarray:
    """Return the best widths out of `choices` for every block: the optimum, not a rounding.

    `choices` may be powers of two (with 0, if a block may be left out) or all whole numbers. A width
    beyond a block's rank costs its parameters and gains nothing.

    >>> blocks = spectral_blocks([3, 3], [2], [[0.8], [0.2]], [[[4.0, 1.0]], [[4.0]]])
    >>> best_dims(blocks, budget=12, choices=[0, 1, 2, 4]).tolist()
    [[1], [1]]
    """
    widths = np.unique([whole_number(width, "choices", at_least=0) for width in choices])
    kept = np.minimum(widths, blocks.gains.shape[-1])
    gained = np.insert(np.cumsum(blocks.gains, axis=-1), 0, 0.0, axis=-1)  # (i, j, width)
    errors = (gained[..., -1:] - gained[..., kept]).reshape(-1, len(widths))
    costs = blocks.unit_cost.reshape(-1, 1) * widths  # (block, choice)
    choice = best_choice(costs, errors, _checked_budget(budget))
    return widths[choice.options].reshape(blocks.ranks.shape)


def uniform_gap(blocks: SpectralBlocks, budget: float, dims: Any) -> float:
    """Return how much larger the error is with one width for every block, at the same budget.

    The width is B / (sum over blocks of n_i + m_j). (The paper's corollary, App. C, leaves out
    1 / (n_i m_j), starts its sums one singular value early, and compares with width B / (n + m), which
    block by block costs more than B if there is more than one block.)
    """
    uniform = np.full(blocks.ranks.shape, _checked_budget(budget) / blocks.unit_cost.sum())
    return blocks.error(uniform) - blocks.error(dims)


def rounding_gap(blocks: SpectralBlocks, dims: Any) -> float:
    """Return how much rounding `dims` down to whole numbers adds to the error (paper, App. C).

    At most sum_ij Pi_ij / (n_i m_j) g_ij(d_ij)^2, the gain of the direction each block loses in part.
    """
    return blocks.error(np.floor(dims)) - blocks.error(dims)


def _by_gain_per_parameter(blocks: SpectralBlocks) -> tuple[np.ndarray, np.ndarray]:
    """All directions with a gain, best gain per parameter first: flat positions, and costs."""
    per_parameter = (blocks.gains / blocks.unit_cost[..., None]).ravel()
    useful = np.flatnonzero(per_parameter)
    # Stable, so that of a block's equal singular values the first is taken first.
    order = useful[np.argsort(-per_parameter[useful], kind="stable")]
    return order, blocks.unit_cost.ravel()[order // blocks.gains.shape[-1]]


def _collect(blocks: SpectralBlocks, order: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Widths from the share of each direction that is kept."""
    shares = np.zeros(blocks.gains.size)
    shares[order] = kept
    return shares.reshape(blocks.gains.shape).sum(axis=-1)


def _checked_budget(budget: float) -> float:
    number = real_number(budget, "budget")
    if number < 0:
        raise ValueError(f"budget must not be negative, got {number}")
    return number
