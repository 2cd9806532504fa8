"""Which entries of a block matrix are seen. Knows nothing about what stands in them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mixdim._util.arguments import real_number
from mixdim.lab.theory.structure import block_areas, checked_probs, checked_sizes


class LowSample(NamedTuple):
    """The block row or block column whose vectors are seen least: `matrix[low.rows, low.columns]`.

    `rate` is the expected share of all samples that falls on one vector there (epsilon), `size` is the
    number of those vectors (the paper's n with a tilde).
    """

    rate: float
    size: int
    rows: slice
    columns: slice


def largest_sample_count(block_probs: Any, row_sizes: Any, col_sizes: Any) -> float:
    """Return the largest expected number of samples at which no entry's probability exceeds 1.

    >>> largest_sample_count([[0.75], [0.25]], [3, 2], [4])
    16.0
    """
    probs, areas = checked_probs(block_probs, row_sizes, col_sizes), block_areas(row_sizes, col_sizes)
    return float((areas[probs > 0] / probs[probs > 0]).min())


def entry_rates(num_samples: float, block_probs: Any, row_sizes: Any, col_sizes: Any) -> np.ndarray:
    """Return the probability N Pi_ij / (n_i m_j) that an entry of each block is seen (paper, Sec. 4.1).

    `num_samples` is the expected number of entries seen (N). Shape (row blocks, column blocks).

    >>> entry_rates(20, [[0.75], [0.25]], [3, 2], [4])
    Traceback (most recent call last):
    ValueError: num_samples must be at most 16, got 20: block (0, 0) would be seen with probability 1.25
    """
    probs, areas = checked_probs(block_probs, row_sizes, col_sizes), block_areas(row_sizes, col_sizes)
    num_samples = real_number(num_samples, "num_samples")
    if num_samples < 0:
        raise ValueError(f"num_samples must not be negative, got {num_samples}")
    rates = num_samples * probs / areas
    largest = largest_sample_count(probs, row_sizes, col_sizes)
    if num_samples > largest:
        i, j = np.unravel_index(rates.argmax(), rates.shape)
        raise ValueError(
            f"num_samples must be at most {largest:.12g}, got {num_samples:.12g}: "
            f"block ({i}, {j}) would be seen with probability {rates.max():.6g}"
        )
    return np.minimum(rates, 1.0)


def sample_entries(
    num_samples: float,
    block_probs: Any,
    row_sizes: Any,
    col_sizes: Any,
    *,
    generator: np.random.Generator,
) -> np.ndarray:
    """Draw which entries are seen, each on its own: block-wise Bernoulli sampling (paper, Sec. 4.1).

    Returns a boolean matrix (rows, columns), True where the entry is seen (the paper's Omega).

    >>> generator = np.random.default_rng(0)
    >>> sample_entries(16, [[0.75], [0.25]], [3, 2], [4], generator=generator)[:3].all()
    np.True_
    """
    rates = entry_rates(num_samples, block_probs, row_sizes, col_sizes)
    by_entry = np.repeat(np.repeat(rates, row_sizes, axis=0), col_sizes, axis=1)
    return generator.random(by_entry.shape) < by_entry


def marginal_rates(block_probs: Any, row_sizes: Any, col_sizes: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each row block and each column block, the share of samples that one vector gets.

    A row of block i gets (1 / n_i) sum_j Pi_ij, a column of block j gets (1 / m_j) sum_i Pi_ij.
    """
    probs = checked_probs(block_probs, row_sizes, col_sizes)
    rows, columns = checked_sizes(row_sizes, "row_sizes"), checked_sizes(col_sizes, "col_sizes")
    return probs.sum(axis=1) / rows, probs.sum(axis=0) / columns


def min_marginal_rate(block_probs: Any, row_sizes: Any, col_sizes: Any) -> float:
    """Return epsilon, the smallest of the marginal rates (paper, Thm. 4.1).

    >>> min_marginal_rate([[0.75], [0.25]], [3, 5], [4])
    0.05
    """
    return low_sample(block_probs, row_sizes, col_sizes).rate


def low_sample(block_probs: Any, row_sizes: Any, col_sizes: Any) -> LowSample:
    """Return where the low-sample sub-matrix is (paper, App. C); rows win a tie.

    >>> low = low_sample([[0.75], [0.25]], [3, 5], [4])
    >>> np.arange(32).reshape(8, 4)[low.rows, low.columns].shape, low.size
    ((5, 4), 5)
    """
    of_rows, of_cols = marginal_rates(block_probs, row_sizes, col_sizes)
    everything = slice(None)
    if of_rows.min() <= of_cols.min():
        i = int(of_rows.argmin())
        return LowSample(float(of_rows[i]), int(row_sizes[i]), _nth(row_sizes, i), everything)
    j = int(of_cols.argmin())
    return LowSample(float(of_cols[j]), int(col_sizes[j]), everything, _nth(col_sizes, j))


def _nth(sizes: Any, block: int) -> slice:
    """The rows (or columns) of one block."""
    start = int(np.sum(sizes[:block]))
    return slice(start, start + int(sizes[block]))
