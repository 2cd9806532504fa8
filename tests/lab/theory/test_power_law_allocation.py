import cvxpy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixdim.lab.theory.power_law_allocation import closed_form_dims, water_filling_dims


def random_problem(seed, shape=(2, 3)):
    generator = np.random.default_rng(seed)
    rows, columns = generator.integers(50, 500, shape[0]), generator.integers(50, 500, shape[1])
    probs = generator.dirichlet(np.ones(shape[0] * shape[1])).reshape(shape)
    return rows, columns, probs, 0.5 + generator.random(shape)


def cost(rows, columns, dims):
    return (np.add.outer(rows, columns) * dims).sum()


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**9), st.floats(0.2, 3), st.floats(10, 10**5))
def test_the_closed_form_meets_the_budget_and_the_first_order_condition(seed, decay, budget):
    rows, columns, probs, scales = random_problem(seed)
    dims = closed_form_dims(rows, columns, probs, scales, decay, budget=budget)
    assert cost(rows, columns, dims) == pytest.approx(budget)
    marginal = (
        probs / np.outer(rows, columns) * (scales * dims**-decay) ** 2 / np.add.outer(rows, columns)
    )
    assert marginal == pytest.approx(np.full_like(marginal, marginal[0, 0]))


def test_of_equal_blocks_widths_scale_as_popularity_to_one_over_twice_the_decay():
    """The two-block corollary of Sec. 4.2."""
    for decay in (0.5, 1.0, 2.0):
        dims = closed_form_dims([9, 9], [9], [[0.9], [0.1]], [[1.0], [1.0]], decay, budget=100)
        assert dims[0, 0] / dims[1, 0] == pytest.approx(9 ** (1 / (2 * decay)))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**9), st.floats(0.2, 3), st.floats(100, 10**4))
def test_without_limits_water_filling_is_the_closed_form(seed, decay, budget):
    rows, columns, probs, scales = random_problem(seed)
    free = closed_form_dims(rows, columns, probs, scales, decay, budget=budget)
    filled = water_filling_dims(rows, columns, probs, scales, decay, budget=budget, most=1e9)
    assert filled == pytest.approx(free, rel=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_water_filling_equals_an_independent_convex_solver(seed):
    """Tails of a power law, integral from d on of (rho x^-beta)^2, with limits that bind."""
    rows, columns, probs, scales = random_problem(seed)
    decays = 0.8 + np.random.default_rng(seed).random(probs.shape)
    unit, weights = np.add.outer(rows, columns), scales**2 * probs / np.outer(rows, columns)
    budget, least, most = 6.0 * unit.sum(), 2.0, 12.0
    d = cvxpy.Variable(probs.size)
    tails = [
        w / weights.max() / (2 * b - 1) * cvxpy.power(d[k], 1 - 2 * b, approx=False)
        for k, (w, b) in enumerate(zip(weights.ravel(), decays.ravel(), strict=True))
    ]
    limits = [d >= least, d <= most, (unit.ravel() / unit.sum()) @ d <= budget / unit.sum()]
    cvxpy.Problem(cvxpy.Minimize(sum(tails)), limits).solve(solver=cvxpy.CLARABEL)
    dims = water_filling_dims(
        rows, columns, probs, scales, decays, budget=budget, least=least, most=most
    )
    assert cost(rows, columns, dims) == pytest.approx(budget)
    assert dims.ravel() == pytest.approx(d.value, rel=2e-2, abs=2e-2)
    at = np.array([term.value for term in tails]).sum()
    ours = (weights / weights.max() / (2 * decays - 1) * dims ** (1 - 2 * decays)).sum()
    assert ours <= at * (1 + 1e-6)
    assert {least, most} & set(dims.ravel().tolist())


def test_limits_hold_and_a_budget_beyond_them_is_not_spent():
    rows, columns, probs, scales = random_problem(0)
    sides = np.minimum.outer(rows, columns)
    assert water_filling_dims(rows, columns, probs, scales, 1.0, budget=1e12) == pytest.approx(sides)
    least = cost(rows, columns, np.ones(sides.shape))
    dims = water_filling_dims(rows, columns, probs, scales, 1.0, budget=least, least=1.0)
    assert dims == pytest.approx(np.ones(sides.shape))
    with pytest.raises(ValueError, match=r"budget must be at least .*, the cost of the least widths"):
        water_filling_dims(rows, columns, probs, scales, 1.0, budget=least - 1, least=1.0)


def test_a_block_without_probability_gets_the_least_width():
    arguments = ([4, 4], [4], [[1.0], [0.0]], [[1.0], [1.0]], 1.0)
    assert water_filling_dims(*arguments, budget=16).ravel().tolist() == pytest.approx([2.0, 0.0])
    dims = water_filling_dims(*arguments, budget=16, least=0.5)
    assert dims.ravel().tolist() == pytest.approx([1.5, 0.5])
    assert water_filling_dims(*arguments, budget=1e9).ravel().tolist() == pytest.approx([4.0, 0.0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scales": [[0.0]]}, "scales must be above 0, got 0"),
        ({"scales": [[np.nan]]}, "scales must be finite"),
        ({"decays": 0.0}, "decays must be above 0, got 0"),
        ({"decays": [[1.0, 2.0]]}, r"decays must be one number or have shape \(1, 1\)"),
        ({"budget": 0}, "budget must be above 0"),
        ({"block_probs": [[0.9]]}, "block_probs must sum to 1"),
        ({"most": 0.5, "least": 1.0}, "most must be at least 1.0 for every block, got 0.5"),
    ],
)
def test_bad_arguments_are_named(change, message):
    good = {
        "row_sizes": [4],
        "col_sizes": [4],
        "block_probs": [[1.0]],
        "scales": [[1.0]],
        "decays": 1.0,
        "budget": 8,
    }
    assert water_filling_dims(**good).tolist() == [[pytest.approx(1.0)]]
    with pytest.raises(ValueError, match=message):
        water_filling_dims(**{**good, **change})
