import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mixdim
from mixdim.planning.scaling import scaled_dims
from sizing_oracle import cost_of, problems, rounded


def of_scale(scale, problem, temperature, base_dim):
    """The widths of a scale, from the formula."""
    _, row_probs, *rest = problem
    exact = [min(base_dim, scale * (p / max(row_probs)) ** temperature) for p in row_probs]
    return [rounded(dim, base_dim, *rest) for dim in exact]


@settings(max_examples=300)
@given(problems, st.sampled_from([0.0, 0.3, 1.0]), st.integers(1, 20), st.integers(0, 900))
def test_widths_are_those_of_trying_every_scale_and_then_doubling(
    problem, temperature, base_dim, budget
):
    sizes, row_probs, rounding, min_dim = problem
    # Widths only change where a block's exact width passes a half, or a power of two times sqrt(2).
    edges = [k / 2 for k in range(1, 2 * base_dim + 1)] + [2 ** (k + 0.5) for k in range(6)]
    weights = [(p / max(row_probs)) ** temperature for p in row_probs]
    scales = [0.0] + [edge / weight * (1 + 1e-9) for edge in edges for weight in weights]
    tried = [(scale, of_scale(scale, problem, temperature, base_dim)) for scale in sorted(scales)]
    costs = [cost_of(sizes, dims, base_dim) for _, dims in tried]
    options = {"temperature": temperature, "base_dim": base_dim, "budget": budget}
    options |= {"rounding": rounding, "min_dim": min_dim}
    if min(costs) > budget:
        with pytest.raises(ValueError, match=f"smallest feasible budget is {min(costs):,} parameters"):
            scaled_dims(np.array(sizes), np.array(row_probs), **options)
        return
    expected = [dims for (_, dims), cost in zip(tried, costs, strict=True) if cost <= budget][-1]
    by_popularity = sorted(range(len(sizes)), key=lambda block: -row_probs[block])
    grown = True
    while grown:
        grown = False
        before = list(expected)
        for block in by_popularity:
            wider = list(expected)
            wider[block] = min(2 * before[block] or 1, base_dim)
            if wider != expected and cost_of(sizes, wider, base_dim) <= budget:
                expected, grown = wider, True
    found = scaled_dims(np.array(sizes), np.array(row_probs), **options)
    assert found.tolist() == expected
    assert cost_of(sizes, expected, base_dim) <= budget


def test_a_plan_of_all_three_spends_its_budget_and_says_how_it_was_made():
    rows, counts = {"a": 6, "b": 40}, {"a": [90, 40, 9, 9, 2, 0], "b": [1] * 40}
    plan = mixdim.plan(
        rows, counts=counts, bands="octaves", temperature=0.5, base_dim=4, budget=60, min_dim=0
    )
    assert plan.provenance == {"rule": "scaled_power_law", "temperature": 0.5}
    widths = [(block.size, block.dim) for block in plan.blocks]
    assert widths == [(1, 4), (1, 4), (2, 4), (2, 4), (40, 0)]
    assert plan.num_parameters <= 60
    assert "temperature 0.5, scaled to the budget" in str(plan)
    assert "0, one row" in str(plan)
    assert mixdim.Plan.from_json(plan.to_json()) == plan


def test_a_block_that_nobody_asks_for_is_as_narrow_as_can_be():
    dims = scaled_dims(
        np.array([3, 50]), np.array([0.3, 0.0]), temperature=0.5, base_dim=8, budget=60,
        rounding="power_of_two", min_dim=0,
    )  # fmt: skip
    assert dims.tolist() == [8, 0]


@pytest.mark.parametrize(("min_dim", "message"), [(2, "0 or 1, got 2"), (-1, "at least 0, got -1")])
def test_another_least_width_is_refused(min_dim, message):
    with pytest.raises(ValueError, match=f"min_dim must be {message}"):
        mixdim.plan([5], temperature=0.3, base_dim=4, min_dim=min_dim)
