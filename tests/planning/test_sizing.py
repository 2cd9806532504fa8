import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mixdim
from mixdim import power_law_dims
from mixdim.planning.sizing import largest_base_dim, round_dims, smallest_temperature
from sizing_oracle import cost_of, problems, rounded
from strategies import ROUNDINGS, quiet_plan

probs = st.lists(st.floats(0, 1), min_size=1, max_size=6).filter(lambda p: max(p) > 1e-300)


@given(probs, st.floats(0, 1), st.integers(1, 512))
def test_widths_are_the_power_law(row_probs, temperature, base_dim):
    dims = power_law_dims(row_probs, temperature=temperature, base_dim=base_dim)
    expected = [base_dim * math.pow(p / max(row_probs), temperature) for p in row_probs]
    assert dims.tolist() == pytest.approx(expected)


def test_temperature_0_is_uniform_even_for_rows_that_are_never_queried():
    assert power_law_dims([0.5, 0.1, 0.0], temperature=0, base_dim=7).tolist() == [7, 7, 7]


def test_temperature_1_is_proportional_to_popularity():
    assert power_law_dims([0.5, 0.25], temperature=1, base_dim=8).tolist() == [8, 4]


@given(
    st.integers(1, 400),
    st.integers(2, 9),
    st.floats(0, 1),
    st.integers(1, 300),
    st.sampled_from(ROUNDINGS),
)
def test_equal_popularity_has_equal_width_however_it_was_computed(
    rows, times, temperature, base_dim, rounding
):
    """A feature of `times` as many rows and ids a sample is as popular, but for rounding errors."""
    plan = quiet_plan(
        {"few": 2, "one": rows, "many": times * rows},
        ids_per_sample={"few": 0.7, "many": float(times)},
        temperature=temperature,
        base_dim=base_dim,
        rounding=rounding,
    )
    assert plan["one"].blocks[0].dim == plan["many"].blocks[0].dim


def test_the_equal_popularity_of_the_issue_has_equal_width():
    plan = mixdim.plan({"a": 5, "b": 35}, ids_per_sample={"b": 7.0}, temperature=0.5, base_dim=40)
    assert [block.dim for block in plan.blocks] == [40, 40]


def test_a_difference_beyond_rounding_stays():
    dims = power_law_dims([1.0, 1.0 - 1e-9], temperature=1, base_dim=1000)
    assert dims[1] < dims[0] == 1000


def test_integers_round_to_the_nearest_and_stay_within_bounds():
    dims = np.array([20.0, 19.6, 19.4, 0.6, 0.0])
    assert round_dims(dims, base_dim=20, rounding="integer").tolist() == [20, 20, 19, 1, 1]


def test_powers_of_two_are_the_nearest_in_log2():
    dims = np.array([64.0, 46.0, 45.0, 11.4, 11.2, 1.4, 0.3])
    assert round_dims(dims, base_dim=64, rounding="power_of_two").tolist() == [64, 64, 32, 16, 8, 1, 1]


def test_base_dim_survives_rounding_when_it_is_no_power_of_two():
    dims = np.array([40.0, 39.0, 23.0])
    assert round_dims(dims, base_dim=40, rounding="power_of_two").tolist() == [40, 32, 32]


def cost(sizes, row_probs, temperature, base_dim, rounding, min_dim):
    """The parameters of a plan, written independently of the search."""
    exact = [base_dim * (p / max(row_probs)) ** temperature for p in row_probs]
    return cost_of(sizes, [rounded(d, base_dim, rounding, min_dim) for d in exact], base_dim)


@settings(max_examples=300)
@given(problems, st.sampled_from([0.0, 0.05, 0.1, 0.3, 1.0]), st.integers(0, 3000))
def test_the_largest_base_dim_is_that_of_trying_them_all(problem, temperature, spare):
    sizes, row_probs, *rest = problem
    budget, options = sum(sizes) + spare, dict(zip(("rounding", "min_dim"), rest, strict=True))
    found = largest_base_dim(
        np.array(sizes), np.array(row_probs), temperature=temperature, budget=budget, **options
    )
    # Tables alone cost at least one base_dim a row of the most popular block.
    fitting = [
        base_dim
        for base_dim in range(1, budget + 1)
        if cost(sizes, row_probs, temperature, base_dim, *rest) <= budget
    ]
    assert found == max(fitting)


@given(problems, st.integers(1, 70), st.integers(0, 3000))
def test_the_smallest_temperature_is_that_of_trying_them_all(problem, base_dim, budget):
    sizes, row_probs, *rest = problem
    costs = [cost(sizes, row_probs, step / 1000, base_dim, *rest) for step in range(1001)]
    fitting = [step / 1000 for step, c in enumerate(costs) if c <= budget]
    options = {"base_dim": base_dim, "budget": budget}
    options |= dict(zip(("rounding", "min_dim"), rest, strict=True))
    if fitting:
        assert smallest_temperature(np.array(sizes), np.array(row_probs), **options) == fitting[0]
    else:
        with pytest.raises(ValueError, match=f"smallest feasible budget is {min(costs):,} parameters"):
            smallest_temperature(np.array(sizes), np.array(row_probs), **options)


def test_a_budget_below_one_parameter_a_row_says_the_smallest_feasible():
    with pytest.raises(ValueError, match=r"smallest feasible budget is 1,100 parameters \(4.4 kB"):
        largest_base_dim(
            np.array([1000, 100]),
            np.array([0.001, 0.01]),
            temperature=0.3,
            budget=1099,
            rounding="integer",
        )


def test_a_huge_budget_for_tiny_tables_is_solved_at_once():
    sizes, row_probs = np.array([2, 3, 4]), np.array([1.0, 0.9, 0.8])
    options = {"temperature": 0.5, "budget": 10**12, "rounding": "power_of_two"}
    found = largest_base_dim(sizes, row_probs, **options)
    assert cost(sizes, row_probs, 0.5, found, "power_of_two", 1) <= 10**12
    assert cost(sizes, row_probs, 0.5, found + 1, "power_of_two", 1) > 10**12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"row_probs": [0.0, 0.0]}, "must not all be 0"),
        ({"row_probs": [-1.0]}, "not negative"),
        ({"temperature": -0.1}, r"temperature must be in \[0, 1\], got -0.1"),
        ({"temperature": 1.5}, r"temperature must be in \[0, 1\], got 1.5"),
        ({"temperature": float("nan")}, r"temperature must be in \[0, 1\], got nan"),
        ({"base_dim": 0}, "base_dim must be at least 1, got 0"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    good = {"row_probs": [0.5, 0.1], "temperature": 0.3, "base_dim": 8}
    with pytest.raises(ValueError, match=message):
        power_law_dims(**{**good, **arguments})


def test_an_unknown_rounding_is_refused():
    with pytest.raises(ValueError, match="rounding must be 'power_of_two' or 'integer', got 'down'"):
        round_dims(np.array([1.0]), base_dim=1, rounding="down")
