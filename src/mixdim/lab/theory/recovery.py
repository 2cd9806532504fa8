"""How many samples recovery needs, with and without popularity. Knows nothing about algorithms.

All bounds are for block-wise Bernoulli sampling of a block matrix M of rank r. *Popularity-agnostic*:
the method matches the seen entries at one rank for the whole matrix (paper, App. C).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import binom

from mixdim._util.arguments import positive_number, real_number, whole_number
from mixdim.lab.theory.matrices import condition_number, incoherence
from mixdim.lab.theory.sampling import entry_rates
from mixdim.lab.theory.structure import checked_matrix, checked_probs, checked_ranks, split_blocks

LARGEST_DELTA = 0.5  # up to here Chernoff's bound has the form used below


class TwoBlockOrders(NamedTuple):
    """Orders of growth of the sample counts, without their constants."""

    agnostic: float
    mixed: float


def hopeless_sample_count(rank: int, min_marginal_rate: float, *, delta: float) -> float:
    """Return N = (1 - delta) r / epsilon: too few for agnostic recovery (App. C, non-asymptotic).

    With at most that many samples, `hopeless_recovery_bound` limits the probability of recovery.

    >>> hopeless_sample_count(10, 0.01, delta=0.25)
    750.0
    """
    rank, delta = whole_number(rank, "rank"), _checked_delta(delta)
    return (1 - delta) * rank / positive_number(min_marginal_rate, "min_marginal_rate")


def hopeless_recovery_bound(rank: int, low_sample_size: int, *, delta: float) -> float:
    """Return exp(-r n delta^2 / (3 (1 - delta))), n vectors in the low-sample sub-matrix (App. C).

    No popularity-agnostic method recovers M with a larger probability from `hopeless_sample_count`
    samples: each of those vectors needs r entries, and is expected to have (1 - delta) r. Assumes
    0 < delta <= 1/2. (The paper's proof says 1/2 < delta < 1 and N <= delta r / epsilon; its statement,
    and Chernoff's bound, are the ones used here.)

    >>> round(hopeless_recovery_bound(10, 20, delta=0.25), 4)
    0.0039
    """
    rank, delta = whole_number(rank, "rank"), _checked_delta(delta)
    size = whole_number(low_sample_size, "low_sample_size")
    return math.exp(-rank * size * delta**2 / (3 * (1 - delta)))


def agnostic_recovery_bound(
    num_samples: float, rank: int, min_marginal_rate: float, low_sample_size: int
) -> float:
    """Return the best `hopeless_recovery_bound` for this many samples; 1 if it says nothing.

    >>> agnostic_recovery_bound(1000, 10, 0.01, 20)
    1.0
    """
    expected = real_number(num_samples, "num_samples") * positive_number(
        min_marginal_rate, "min_marginal_rate"
    )
    delta = min(1 - expected / whole_number(rank, "rank"), LARGEST_DELTA)
    return 1.0 if delta <= 0 else hopeless_recovery_bound(rank, low_sample_size, delta=delta)


def coverage_probability(
    num_samples: float, rank: int, block_probs: Any, row_sizes: Any, col_sizes: Any
) -> float:
    """Return a bound on agnostic recovery that is exact where Chernoff's is loose.

    For each block row (and block column) the probability that all its vectors have at least `rank` seen
    entries; the smallest of these. It is the same argument as the paper's, with the exact distribution
    in place of its tail bound, and for every block row and column instead of one.

    >>> round(coverage_probability(16, 1, [[0.5], [0.5]], [4, 4], [4]), 4)
    0.7725
    """
    rank = whole_number(rank, "rank")
    rates = entry_rates(num_samples, block_probs, row_sizes, col_sizes)
    rows = [_enough(rank, line, col_sizes) ** size for line, size in zip(rates, row_sizes, strict=True)]
    cols = [
        _enough(rank, line, row_sizes) ** size for line, size in zip(rates.T, col_sizes, strict=True)
    ]
    return float(min(rows + cols))


def agnostic_sample_order(rank: int, min_marginal_rate: float, num_rows: int) -> float:
    """Return (r / epsilon) log n, the order of samples that agnostic recovery needs (Thm. 4.1(1)).

    Asymptotic, for blocks that grow with n at fixed probabilities. The paper prints (r / epsilon)
    n log n with this epsilon, a mean over rows, which is of order 1 / n: a uniformly popular
    n x n matrix would then need r n^2 log n samples, more than it has entries. The n log n belongs to
    the *mass* of a block, as in the paper's example of two blocks.

    >>> agnostic_sample_order(2, 1 / 100, 100) == 2 * 100 * math.log(100)
    True
    """
    rate = positive_number(min_marginal_rate, "min_marginal_rate")
    return whole_number(rank, "rank") / rate * math.log(whole_number(num_rows, "num_rows", at_least=2))


def mixed_sample_order(block_ranks: Any, block_probs: Any, num_rows: int) -> float:
    """Return max_ij (r_ij / Pi_ij) n log n: of this order, mixed factorisation succeeds (Thm. 4.1(2)).

    >>> mixed_sample_order([[4], [1]], [[0.5], [0.5]], 100) == 8 * 100 * math.log(100)
    True
    """
    ranks, probs = np.asarray(block_ranks), np.asarray(block_probs, dtype=np.float64)
    n = whole_number(num_rows, "num_rows", at_least=2)
    return float(np.max(_per_prob(ranks, probs)) * n * math.log(n))


def sufficient_block_samples(
    matrix: Any,
    block_probs: Any,
    row_sizes: Any,
    col_sizes: Any,
    block_ranks: Any,
    *,
    constant: float = 1.0,
) -> np.ndarray:
    """Return N*_ij, the samples (of the whole matrix) that complete block (i, j) (paper, App. C).

    C0 / Pi * n r kappa^2 alpha max(mu log n, sqrt(alpha) mu^2 r^6 kappa^4) with n the smaller side of
    the block, alpha the larger over the smaller, kappa its condition number and mu its incoherence. The
    corollary follows Sun & Luo (2016), whose universal constant C0 is unknown: `constant` is 1 unless
    given, so that only ratios mean anything. The largest is the sufficient count for mixed
    factorisation of a rank additive matrix; `sufficient_success_probability` goes with it.
    """
    probs = checked_probs(block_probs, row_sizes, col_sizes)
    ranks = checked_ranks(block_ranks, row_sizes, col_sizes)
    blocks = split_blocks(checked_matrix(matrix, "matrix"), row_sizes, col_sizes)

    def uniform_count(block: np.ndarray, rank: int) -> float:
        if rank == 0:
            return 0.0
        n, longer = min(block.shape), max(block.shape)
        alpha, mu, kappa = longer / n, incoherence(block), condition_number(block)
        many = max(mu * math.log(n), math.sqrt(alpha) * mu**2 * rank**6 * kappa**4)
        return constant * n * rank * kappa**2 * alpha * many

    counts = [
        [uniform_count(block, int(rank)) for block, rank in zip(line, of_line, strict=True)]
        for line, of_line in zip(blocks, ranks, strict=True)
    ]
    return _per_prob(np.array(counts), probs)


def sufficient_success_probability(row_sizes: Any, col_sizes: Any) -> float:
    """Return 1 - sum_ij 2 / min(n_i, m_j)^4, by the union bound over the blocks, or 0 (paper, App. C).

    >>> sufficient_success_probability([10, 10], [20])
    0.9996
    """
    smaller = np.minimum.outer(np.asarray(row_sizes), np.asarray(col_sizes)).astype(np.float64)
    return max(0.0, 1.0 - float((2 / smaller**4).sum()))


def two_block_orders(
    rare_prob: float, popular_rank: int, rare_rank: int, num_rows: int
) -> TwoBlockOrders:
    """Return both orders for two blocks of n rows each, one of them rare (paper, Sec. 4.1).

    Agnostic (r_1 + r_2) / epsilon n log n; mixed max(r_1 / (1 - epsilon), r_2 / epsilon) n log n. With
    r_1 = 1 / epsilon and r_2 constant that is a penalty of 1 / epsilon^2 against 1 / epsilon.

    >>> orders = two_block_orders(0.01, popular_rank=100, rare_rank=1, num_rows=1000)
    >>> round(orders.agnostic / orders.mixed, 6)
    99.99
    """
    rare = positive_number(rare_prob, "rare_prob")
    if rare >= 0.5:
        raise ValueError(f"rare_prob must be below 0.5, got {rare}")
    ranks = [[whole_number(popular_rank, "popular_rank")], [whole_number(rare_rank, "rare_rank")]]
    # One of n rows that share the mass epsilon gets epsilon / n of the samples.
    agnostic = agnostic_sample_order(ranks[0][0] + ranks[1][0], rare / num_rows, num_rows)
    return TwoBlockOrders(agnostic, mixed_sample_order(ranks, [[1 - rare], [rare]], num_rows))


def _enough(rank: int, rates: np.ndarray, sizes: Any) -> float:
    """The probability that a vector, `sizes[j]` of whose entries are seen at `rates[j]`, has `rank`."""
    fewer = np.zeros(rank)  # fewer[k]: the probability of exactly k < rank entries so far
    fewer[0] = 1.0
    for rate, size in zip(rates, sizes, strict=True):
        fewer = np.convolve(fewer, binom.pmf(np.arange(rank), size, rate))[:rank]
    return max(0.0, 1.0 - float(fewer.sum()))


def _per_prob(counts: np.ndarray, probs: np.ndarray) -> np.ndarray:
    """Divide counts by probs; a block that needs no samples may well get none."""
    endless = np.where(counts > 0, np.inf, 0.0)
    return np.divide(counts, probs, out=endless, where=probs > 0)


def _checked_delta(delta: float) -> float:
    number = real_number(delta, "delta")
    if not 0 < number <= LARGEST_DELTA:
        raise ValueError(f"delta must be in (0, {LARGEST_DELTA}], got {number}")
    return number
