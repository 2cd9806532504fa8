import itertools
import time

import cvxpy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixdim.lab.theory.allocation import (
    best_dims,
    integer_dims,
    relaxed_dims,
    rounding_gap,
    spectral_blocks,
    uniform_gap,
    weighted_mse,
)
from mixdim.lab.theory.factorization import factor_exactly
from mixdim.lab.theory.matrices import random_block_matrix
from mixdim.lab.theory.structure import split_blocks

seeds = st.integers(0, 10**9)


def random_problem(seed, shape=(2, 2), most_rank=3):
    generator = np.random.default_rng(seed)
    rows, columns = (
        generator.integers(most_rank, 9, shape[0]),
        generator.integers(most_rank, 9, shape[1]),
    )
    probs = generator.dirichlet(np.ones(shape[0] * shape[1])).reshape(shape)
    spectra = [
        [np.sort(generator.random(generator.integers(0, most_rank + 1)))[::-1] for _ in columns]
        for _ in rows
    ]
    budget = int(generator.integers(0, 90))
    return rows, columns, probs, spectra, budget


def all_dims(blocks):
    """Every allocation of whole widths up to the ranks."""
    for dims in itertools.product(*(range(rank + 1) for rank in blocks.ranks.ravel())):
        yield np.array(dims).reshape(blocks.ranks.shape)


@settings(max_examples=50, deadline=None)
@given(seeds)
def test_the_best_dims_are_those_of_trying_everything(seed):
    *problem, budget = random_problem(seed)
    blocks = spectral_blocks(*problem)
    least = min(blocks.error(dims) for dims in all_dims(blocks) if blocks.cost(dims) <= budget)
    best = best_dims(blocks, budget, choices=range(4))
    assert blocks.cost(best) <= budget
    assert blocks.error(best) == pytest.approx(least, abs=1e-12)


@settings(max_examples=50, deadline=None)
@given(seeds)
def test_greedy_dims_are_feasible_and_within_one_direction_of_the_best(seed):
    *problem, budget = random_problem(seed)
    blocks = spectral_blocks(*problem)
    dims, relaxed = integer_dims(blocks, budget), relaxed_dims(blocks, budget)
    best = best_dims(blocks, budget, choices=range(4))
    assert blocks.cost(dims) <= budget
    assert blocks.error(relaxed) <= blocks.error(best) + 1e-12 <= blocks.error(dims) + 2e-12
    cut = [blocks.gains[i, j, int(relaxed[i, j])] for i, j in np.argwhere(relaxed % 1 > 1e-12)]
    assert blocks.error(dims) <= blocks.error(relaxed) + sum(cut) + 1e-12
    assert len(cut) <= 1


@settings(max_examples=30, deadline=None)
@given(seeds)
def test_greedy_dims_are_the_best_if_all_directions_cost_the_same(seed):
    _, _, probs, spectra, budget = random_problem(seed)
    blocks = spectral_blocks([4, 4], [5, 5], probs, spectra)
    best = best_dims(blocks, budget, choices=range(4))
    assert blocks.error(integer_dims(blocks, budget)) == pytest.approx(blocks.error(best), abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_relaxed_dims_equal_an_independent_convex_solver(seed):
    *problem, budget = random_problem(seed, shape=(2, 3))
    blocks = spectral_blocks(*problem)
    kept = cvxpy.Variable(blocks.gains.size)
    costs = np.repeat(blocks.unit_cost.ravel(), blocks.gains.shape[-1])
    scale = blocks.gains.max()
    objective = cvxpy.Minimize((1 - kept) @ (blocks.gains.ravel() / scale))
    limits = [kept >= 0, kept <= 1, costs @ kept <= budget]
    found = cvxpy.Problem(objective, limits).solve(solver=cvxpy.CLARABEL) * scale
    dims = relaxed_dims(blocks, budget)
    assert blocks.error(dims) == pytest.approx(found, rel=1e-5, abs=1e-7 * scale)
    assert blocks.cost(dims) <= budget + 1e-9


def test_relaxed_dims_spend_the_budget_up_to_the_full_cost():
    *problem, _ = random_problem(1)
    blocks = spectral_blocks(*problem)
    for budget in np.linspace(0, blocks.full_cost, 7):
        assert blocks.cost(relaxed_dims(blocks, budget)) == pytest.approx(budget)
    assert blocks.cost(relaxed_dims(blocks, 10 * blocks.full_cost)) == pytest.approx(blocks.full_cost)
    assert (relaxed_dims(blocks, 10**6) == blocks.ranks).all()


def test_relaxed_dims_follow_the_theorem():
    """d = g^-1(sqrt(lambda (n + m) n m / Pi)): one multiplier separates what is kept and what not."""
    rows, columns, probs, spectra, _ = random_problem(5)
    blocks = spectral_blocks(rows, columns, probs, spectra)
    dims = relaxed_dims(blocks, blocks.full_cost / 2)
    per_parameter = blocks.gains / blocks.unit_cost[..., None]
    number = np.arange(blocks.gains.shape[-1])
    kept = per_parameter[number + 1 <= dims[..., None]]
    dropped = per_parameter[(number >= dims[..., None])]
    assert kept.min() >= dropped.max()


def test_the_error_of_an_allocation_is_that_of_the_truncated_blocks():
    rows, columns, probs = [6, 4], [5, 3], np.array([[0.4, 0.3], [0.2, 0.1]])
    spectra = [[[3.0, 2.0, 1.0], [2.0, 1.0]], [[1.5, 0.5], [4.0]]]
    matrix = random_block_matrix(rows, columns, spectra, generator=np.random.default_rng(0))
    dims = np.array([[2, 1], [0, 1]])
    truncated = [
        [f.left @ f.right.T for f in (factor_exactly(b, d) for b, d in zip(line, of_line, strict=True))]
        for line, of_line in zip(split_blocks(matrix, rows, columns), dims, strict=True)
    ]
    blocks = spectral_blocks(rows, columns, probs, spectra)
    expected = weighted_mse(matrix, np.block(truncated), probs, rows, columns)
    assert blocks.error(dims) == pytest.approx(expected)


def test_weighted_mse_is_the_mean_over_sampled_test_entries():
    rows, columns, probs = [2, 3], [4], np.array([[0.7], [0.3]])
    generator = np.random.default_rng(0)
    matrix, estimate = generator.random((5, 4)), generator.random((5, 4))
    by_entry = np.repeat(probs / np.array([[8], [12]]), rows, axis=0)
    expected = (by_entry * (matrix - estimate) ** 2).sum()
    assert weighted_mse(matrix, estimate, probs, rows, columns) == pytest.approx(expected)


def test_power_of_two_dims_beat_rounding_the_relaxed_ones_down():
    rows, columns, probs, _, _ = random_problem(3, shape=(3, 3), most_rank=8)
    spectra = np.sort(np.random.default_rng(3).random((3, 3, 8)))[..., ::-1]
    blocks = spectral_blocks(rows, columns, probs, spectra)
    budget = blocks.full_cost / 3
    relaxed = relaxed_dims(blocks, budget)
    down = np.where(relaxed >= 1, 2 ** np.floor(np.log2(np.maximum(relaxed, 1))), 0)
    best = best_dims(blocks, budget, choices=[0, 1, 2, 4, 8])
    assert set(np.unique(best)) <= {0, 1, 2, 4, 8}
    assert blocks.cost(best) <= budget
    assert blocks.error(best) < blocks.error(down)


def test_gaps_are_differences_of_errors():
    *problem, _ = random_problem(7)
    blocks = spectral_blocks(*problem)
    budget = blocks.full_cost / 2
    dims = relaxed_dims(blocks, budget)
    uniform = np.full((2, 2), budget / blocks.unit_cost.sum())
    assert blocks.cost(uniform) == pytest.approx(budget)
    assert uniform_gap(blocks, budget, dims) == pytest.approx(blocks.error(uniform) - blocks.error(dims))
    assert uniform_gap(blocks, budget, dims) > 0
    assert rounding_gap(blocks, dims) == pytest.approx(blocks.error(np.floor(dims)) - blocks.error(dims))
    assert rounding_gap(blocks, np.floor(dims)) == 0


def test_equal_singular_values_and_blocks_without_probability_are_no_trouble():
    blocks = spectral_blocks([2, 2], [2], [[1.0], [0.0]], [[[1.0, 1.0]], [[1.0, 1.0]]])
    assert integer_dims(blocks, 100).tolist() == [[2], [0]]
    assert integer_dims(blocks, 7).tolist() == [[1], [0]]
    assert integer_dims(blocks, 0).tolist() == [[0], [0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_probs": [[0.5], [0.6]]}, "block_probs must sum to 1, got 1.1"),
        ({"row_sizes": [2, 0]}, r"row_sizes\[1\] must be at least 1"),
        ({"spectra": [[[1.0, np.nan]], [[1.0]]]}, r"spectra\[0\]\[0\] must be finite"),
        ({"spectra": [[[1.0, 2.0]], [[1.0]]]}, r"spectra\[0\]\[0\] must be in descending order"),
        ({"spectra": [[[3.0, 2.0, 1.0]], [[1.0]]]}, r"block_ranks\[0, 0\] must be from 0 to 2"),
        ({"spectra": [[[1.0]]]}, r"must have shape \(2, 1\), got \(1, 1\)"),
    ],
)
def test_bad_blocks_are_refused(change, message):
    good = {
        "row_sizes": [2, 2],
        "col_sizes": [2],
        "block_probs": [[0.5], [0.5]],
        "spectra": [[[1.0]], [[1.0]]],
    }
    spectral_blocks(**good)
    with pytest.raises(ValueError, match=message):
        spectral_blocks(**{**good, **change})


@pytest.mark.parametrize("solve", [relaxed_dims, integer_dims])
@pytest.mark.parametrize("budget", [-1, np.nan])
def test_a_budget_that_is_none_is_refused(solve, budget):
    blocks = spectral_blocks([2], [2], [[1.0]], [[[1.0]]])
    with pytest.raises(ValueError, match="budget must"):
        solve(blocks, budget)


def test_ten_thousand_blocks_are_solved_no_slower_than_their_gains_are_sorted_five_times():
    generator = np.random.default_rng(0)
    sizes = generator.integers(100, 10**5, 100)
    spectra = np.sort(generator.random((100, 100, 16)))[..., ::-1]
    blocks = spectral_blocks(sizes, sizes, np.full((100, 100), 1e-4), spectra)

    def seconds(work):
        start = time.process_time()
        work()
        return time.process_time() - start

    budget = blocks.full_cost / 3
    gains = blocks.gains.ravel()
    sort = min(seconds(lambda: np.argsort(gains, kind="stable")) for _ in range(3))
    for solve in (relaxed_dims, integer_dims):
        assert min(seconds(lambda s=solve: s(blocks, budget)) for _ in range(3)) < 5 * sort
