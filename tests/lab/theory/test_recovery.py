import math

import numpy as np
import pytest
from scipy.stats import binom

from mixdim.lab.theory.matrices import condition_number, flat_spectra, incoherence, random_block_matrix
from mixdim.lab.theory.recovery import (
    agnostic_recovery_bound,
    agnostic_sample_order,
    coverage_probability,
    hopeless_recovery_bound,
    hopeless_sample_count,
    mixed_sample_order,
    sufficient_block_samples,
    sufficient_success_probability,
    two_block_orders,
)
from mixdim.lab.theory.sampling import low_sample, sample_entries

ROWS, COLUMNS, PROBS = [20, 20], [40], [[0.8], [0.2]]


@pytest.mark.parametrize("delta", [0.1, 0.3, 0.5])
def test_the_non_asymptotic_bound_holds_for_the_exact_distribution(delta):
    """The probability that all vectors of the low-sample sub-matrix have r entries is below it."""
    low, rank = low_sample(PROBS, ROWS, COLUMNS), 6
    count = hopeless_sample_count(rank, low.rate, delta=delta)
    exact = binom.sf(rank - 1, 40, count * 0.2 / (20 * 40)) ** 20
    assert exact <= hopeless_recovery_bound(rank, low.size, delta=delta)
    assert count * low.rate == pytest.approx((1 - delta) * rank)


def test_coverage_equals_a_simulation():
    generator = np.random.default_rng(0)
    count, rank, trials = 500, 2, 2000
    hits = 0
    for _ in range(trials):
        seen = sample_entries(count, PROBS, ROWS, COLUMNS, generator=generator)
        hits += bool((seen[20:].sum(axis=1) >= rank).all())
    expected = coverage_probability(count, rank, PROBS, ROWS, COLUMNS)
    assert abs(hits / trials - expected) < 4 * math.sqrt(expected * (1 - expected) / trials)
    assert 0.1 < expected < 0.9


def test_coverage_of_vectors_that_cross_several_blocks():
    generator = np.random.default_rng(0)
    rows, columns, probs = [10], [6, 10], [[0.5, 0.5]]
    hits = [
        (sample_entries(50, probs, rows, columns, generator=generator).sum(axis=1) >= 3).all()
        for _ in range(2000)
    ]
    exact = coverage_probability(50, 3, probs, rows, columns)
    of_columns = min(binom.sf(2, 10, 25 / 60) ** 6, binom.sf(2, 10, 25 / 100) ** 10)
    assert exact == pytest.approx(min(exact, of_columns))
    assert exact <= np.mean(hits) + 4 * math.sqrt(0.25 / 2000)


def test_coverage_is_sharper_than_chernoff():
    low, rank = low_sample(PROBS, ROWS, COLUMNS), 6
    for count in np.linspace(10, rank / low.rate, 8):
        loose = agnostic_recovery_bound(count, rank, low.rate, low.size)
        assert coverage_probability(count, rank, PROBS, ROWS, COLUMNS) <= loose


def test_the_bound_says_nothing_from_the_expected_need_on_and_never_rises_with_fewer_samples():
    assert agnostic_recovery_bound(600, 6, 0.01, 20) == 1
    bounds = [agnostic_recovery_bound(count, 6, 0.01, 20) for count in (0, 100, 300, 450, 599, 700)]
    assert bounds == sorted(bounds)


def test_uniform_popularity_needs_the_known_order():
    n, rank = 200, 3
    rate = low_sample([[1.0]], [n], [n]).rate
    assert agnostic_sample_order(rank, rate, n) == pytest.approx(rank * n * math.log(n))
    assert mixed_sample_order([[rank]], [[1.0]], n) == pytest.approx(rank * n * math.log(n))


def test_two_blocks_pay_one_over_epsilon_squared_against_one_over_epsilon():
    rare = np.array([0.1, 0.05, 0.02, 0.01])
    orders = [two_block_orders(e, round(1 / e), 1, 1000) for e in rare]
    slopes = [
        np.polyfit(np.log(rare), np.log([getattr(order, kind) for order in orders]), 1)[0]
        for kind in ("agnostic", "mixed")
    ]
    assert slopes == pytest.approx([-2, -1], abs=0.06)


def test_the_sufficient_count_is_the_formula_of_the_corollary():
    rows, columns, ranks = [12, 8], [6], [[2], [1]]
    matrix = random_block_matrix(
        rows, columns, [[[3.0, 1.0]], [[2.0]]], generator=np.random.default_rng(0)
    )
    counts = sufficient_block_samples(matrix, PROBS, rows, columns, ranks, constant=2.0)
    top = matrix[:12]
    mu, kappa = incoherence(top), condition_number(top)
    many = max(mu * math.log(6), math.sqrt(2) * mu**2 * 2**6 * kappa**4)
    assert counts[0, 0] == pytest.approx(2.0 / 0.8 * 6 * 2 * kappa**2 * 2 * many)
    assert counts.shape == (2, 1)


def test_a_block_of_rank_zero_needs_nothing_and_a_block_never_seen_needs_endless_samples():
    matrix = random_block_matrix(
        [3, 3], [3], flat_spectra([[1], [0]]), generator=np.random.default_rng(0)
    )
    counts = sufficient_block_samples(matrix, [[1.0], [0.0]], [3, 3], [3], [[1], [0]])
    assert 0 < counts[0, 0] < np.inf
    assert counts[1, 0] == 0
    assert mixed_sample_order([[1], [1]], [[1.0], [0.0]], 10) == np.inf


def test_the_success_probability_is_a_union_bound():
    assert sufficient_success_probability([10], [10, 20]) == pytest.approx(1 - 4e-4)
    assert sufficient_success_probability([1], [1]) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hopeless_sample_count(3, 0.1, delta=0.6), r"delta must be in \(0, 0.5\], got 0.6"),
        (lambda: hopeless_sample_count(3, 0.1, delta=0.0), r"delta must be in \(0, 0.5\], got 0.0"),
        (lambda: hopeless_sample_count(0, 0.1, delta=0.1), "rank must be at least 1, got 0"),
        (lambda: hopeless_sample_count(3, 0.0, delta=0.1), "min_marginal_rate must be above 0"),
        (lambda: hopeless_recovery_bound(3, 0, delta=0.1), "low_sample_size must be at least 1"),
        (lambda: two_block_orders(0.5, 3, 1, 10), "rare_prob must be below 0.5, got 0.5"),
        (lambda: agnostic_sample_order(1, 0.1, 1), "num_rows must be at least 2, got 1"),
        (lambda: coverage_probability(1e9, 1, PROBS, ROWS, COLUMNS), "num_samples must be at most 1000"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
