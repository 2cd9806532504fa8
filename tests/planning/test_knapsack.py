import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from mixdim.planning.knapsack import best_choice, lagrangian_choice


def random_options(seed, num_blocks=None, num_options=None, whole=False):
    generator = np.random.default_rng(seed)
    shape = (num_blocks or generator.integers(1, 5), num_options or generator.integers(1, 5))
    costs = generator.integers(0, 20, shape)
    errors = generator.integers(0, 9, shape).astype(float) if whole else generator.random(shape)
    budget = int(costs.min(axis=1).sum() + generator.integers(0, 30))
    return costs, errors, budget


def total(values, options):
    return values[np.arange(len(values)), options].sum()


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**9), st.booleans())
def test_the_best_choice_is_that_of_trying_everything(seed, whole):
    """Costs and errors in no order at all, with ties and zeros if whole."""
    costs, errors, budget = random_options(seed, whole=whole)
    everything = itertools.product(range(costs.shape[1]), repeat=len(costs))
    least = min(total(errors, list(o)) for o in everything if total(costs, list(o)) <= budget)
    choice = best_choice(costs, errors, budget)
    assert total(costs, choice.options) <= budget
    assert total(errors, choice.options) == pytest.approx(least, abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**9), st.booleans())
def test_the_priced_choice_keeps_the_budget_and_bounds_the_best(seed, whole):
    costs, errors, budget = random_options(seed, whole=whole)
    priced, best = lagrangian_choice(costs, errors, budget), best_choice(costs, errors, budget)
    assert total(costs, priced.options) <= budget
    least = total(errors, best.options)
    assert priced.bound <= least + 1e-12 <= total(errors, priced.options) + 2e-12


@pytest.mark.parametrize("seed", range(3))
def test_the_best_choice_is_that_of_a_mixed_integer_program(seed):
    costs, errors, budget = random_options(seed, num_blocks=30, num_options=6)
    answer = milp(
        errors.ravel(),
        constraints=[
            LinearConstraint(np.kron(np.eye(30), np.ones(6)), 1, 1),
            LinearConstraint(costs.reshape(1, -1), -np.inf, budget),
        ],
        bounds=Bounds(0, 1),
        integrality=np.ones(costs.size),
        options={"mip_rel_gap": 0.0},
    )
    choice = best_choice(costs, errors, budget)
    assert total(costs, choice.options) <= budget
    assert total(errors, choice.options) == pytest.approx(answer.fun, rel=1e-6)


def test_a_gap_is_kept():
    for seed in range(20):
        costs, errors, budget = random_options(seed, num_blocks=20, num_options=5)
        exact = total(errors, best_choice(costs, errors, budget).options)
        near = total(errors, best_choice(costs, errors, budget, relative_gap=0.01).options)
        assert exact - 1e-12 <= near <= exact / 0.99


def test_of_equal_errors_the_cheaper_option_is_taken():
    choice = best_choice(np.array([[5, 2, 9]]), np.array([[0.0, 0.0, 0.0]]), 100)
    assert choice.options.tolist() == [1]


@pytest.mark.parametrize("choose", [best_choice, lagrangian_choice])
def test_a_budget_below_the_cheapest_options_is_refused(choose):
    with pytest.raises(ValueError, match="budget must be at least 5, with the cheapest options, got 4"):
        choose(np.array([[2, 3], [9, 3]]), np.ones((2, 2)), 4)


def test_a_budget_of_exactly_the_cheapest_options_is_enough():
    choice = best_choice(np.array([[2, 3], [9, 3]]), np.array([[1.0, 0.0], [0.0, 1.0]]), 5)
    assert choice.options.tolist() == [0, 1]
