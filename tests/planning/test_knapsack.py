import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from mixdim.planning.knapsack import (
    Cut,
    best_choice,
    best_cuts,
    lagrangian_choice,
    lower_bound,
    smallest,
)


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


@st.composite
def fields_of_cuts(draw):
    """Fields with cuts of few blocks: options in any order of cost and error."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))

    def cut():
        shape = (generator.integers(1, 3), generator.integers(2, 5))
        costs = np.cumsum(generator.integers(1, 30, shape), axis=1)
        errors = np.cumsum(generator.exponential(1, shape), axis=1)[:, ::-1].copy()
        errors[:, -1] = 0
        options = generator.permutation(shape[1])
        return Cut(costs[:, options], errors[:, options], int(generator.integers(0, 10)))

    return [[cut() for _ in range(generator.integers(1, 4))] for _ in range(draw(st.integers(1, 3)))]


def every_choice(fields):
    """The cost and the error of every choice of cuts and options."""
    of_fields = [
        [
            (cut.held + total(cut.costs, list(options)), total(cut.errors, list(options)))
            for cut in cuts
            for options in itertools.product(range(cut.costs.shape[1]), repeat=len(cut.costs))
        ]
        for cuts in fields
    ]
    return [tuple(map(sum, zip(*choice, strict=True))) for choice in itertools.product(*of_fields)]


@settings(max_examples=60)
@given(fields_of_cuts(), st.floats(0, 1))
def test_cuts_keep_the_budget_and_are_the_best_of_all(fields, share):
    everything = every_choice(fields)
    least, most = smallest(fields), max(cost for cost, _ in everything)
    assert least == min(cost for cost, _ in everything)
    budget = int(least + share * (most - least))
    found = best_cuts(fields, budget, relative_gap=1e-3)
    chosen = [of_field[cut] for of_field, cut in zip(fields, found.cuts, strict=True)]
    parts = list(zip(chosen, found.options, strict=True))
    assert sum(cut.held + total(cut.costs, options) for cut, options in parts) <= budget
    assert found.error == pytest.approx(sum(total(cut.errors, options) for cut, options in parts))
    best = min(error for cost, error in everything if cost <= budget)
    assert lower_bound(fields, budget) == found.bound <= best + 1e-9
    assert best - 1e-9 <= found.error <= best * (1 + 2e-3) + 1e-9


def test_all_the_budget_there_is_leaves_no_error():
    cut = Cut(np.array([[1, 5, 9]]), np.array([[4.0, 1.0, 0.0]]))
    found = best_cuts([[cut], [cut]], budget=18)
    assert found.error == 0
    assert [options.tolist() for options in found.options] == [[2], [2]]


def test_cuts_of_two_fields_are_changed_together_where_one_alone_does_not_help():
    def field(*cuts):
        return [Cut(np.array([costs]), np.array([errors])) for costs, errors in cuts]

    one = field(([6, 9], [10.0, 2.0]), ([2, 5], [13.0, 6.0]))
    other = field(([6, 13], [5.0, 1.0]), ([5, 9], [7.0, 4.0]))
    found = best_cuts([one, other], budget=14)  # 9 + 5, which is better than 5 + 9 and 5 + 6
    assert (found.cuts, found.error) == ([0, 1], 9.0)
