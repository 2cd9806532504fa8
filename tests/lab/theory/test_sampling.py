import numpy as np
import pytest

from mixdim.lab.theory.sampling import (
    entry_rates,
    largest_sample_count,
    low_sample,
    marginal_rates,
    min_marginal_rate,
    sample_entries,
)
from mixdim.lab.theory.structure import split_blocks

ROWS, COLUMNS = [30, 70], [20, 40, 40]
PROBS = np.array([[0.3, 0.2, 0.1], [0.1, 0.25, 0.05]])


def test_seen_shares_match_the_rates_within_binomial_error():
    rates = entry_rates(1500, PROBS, ROWS, COLUMNS)
    assert rates == pytest.approx(1500 * PROBS / np.outer(ROWS, COLUMNS))
    seen = sample_entries(1500, PROBS, ROWS, COLUMNS, generator=np.random.default_rng(0))
    for line, of_line in zip(split_blocks(seen, ROWS, COLUMNS), rates, strict=True):
        for block, rate in zip(line, of_line, strict=True):
            deviation = np.sqrt(rate * (1 - rate) / block.size)
            assert abs(block.mean() - rate) < 4 * deviation


def test_the_expected_number_of_samples_is_num_samples():
    rates = entry_rates(1500, PROBS, ROWS, COLUMNS)
    assert (rates * np.outer(ROWS, COLUMNS)).sum() == pytest.approx(1500)


def test_infeasible_counts_are_refused_with_the_largest_feasible_one():
    largest = largest_sample_count(PROBS, ROWS, COLUMNS)
    assert largest == pytest.approx(600 / 0.3)
    assert entry_rates(largest, PROBS, ROWS, COLUMNS).max() == 1
    with pytest.raises(ValueError, match=r"at most 2000, got 2001: block \(0, 0\) would be seen"):
        sample_entries(2001, PROBS, ROWS, COLUMNS, generator=np.random.default_rng(0))


def test_a_block_without_probability_is_never_seen_and_limits_nothing():
    assert largest_sample_count([[1.0], [0.0]], [2, 1], [5]) == 10
    seen = sample_entries(10, [[1.0], [0.0]], [2, 1], [5], generator=np.random.default_rng(0))
    assert seen[:2].all()
    assert not seen[2:].any()


@pytest.mark.parametrize("count", [-1, np.nan, np.inf])
def test_a_count_that_is_no_count_is_refused(count):
    with pytest.raises(ValueError, match="num_samples must"):
        entry_rates(count, PROBS, ROWS, COLUMNS)


def test_marginal_rates_are_what_one_vector_is_expected_to_get():
    of_rows, of_columns = marginal_rates(PROBS, ROWS, COLUMNS)
    by_entry = np.repeat(np.repeat(entry_rates(1, PROBS, ROWS, COLUMNS), ROWS, 0), COLUMNS, 1)
    assert np.repeat(of_rows, ROWS) == pytest.approx(by_entry.sum(axis=1))
    assert np.repeat(of_columns, COLUMNS) == pytest.approx(by_entry.sum(axis=0))
    everything = np.concatenate([by_entry.sum(axis=1), by_entry.sum(axis=0)])
    assert min_marginal_rate(PROBS, ROWS, COLUMNS) == pytest.approx(everything.min())


def test_the_low_sample_sub_matrix_may_be_columns():
    low = low_sample(PROBS, ROWS, COLUMNS)
    matrix = np.arange(100 * 100).reshape(100, 100)
    assert (matrix[low.rows, low.columns] == matrix[:, 60:]).all()
    assert (low.size, low.rate) == (40, pytest.approx(0.15 / 40))


def test_rows_win_a_tie():
    low = low_sample([[0.5], [0.5]], [2, 2], [4])
    assert (low.rows, low.columns, low.size) == (slice(0, 2), slice(None), 2)


def test_one_block_is_its_own_low_sample_sub_matrix():
    assert low_sample([[1.0]], [3], [2]).rate == pytest.approx(1 / 3)
