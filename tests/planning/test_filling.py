import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mixdim
from mixdim.planning.filling import filled_dims
from sizing_oracle import cost_of, problems, rounded

COUNTS = {"user": np.geomspace(400, 10, 600), "item": np.geomspace(2000, 10, 3000)}
ROWS = {name: len(counts) for name, counts in COUNTS.items()}


def planned(**options):
    return mixdim.plan(ROWS, counts=COUNTS, bands=8, **options)


@settings(max_examples=200)
@given(problems, st.sampled_from([0.0, 0.3, 1.0]), st.integers(1, 20), st.integers(0, 1500))
def test_what_rounding_leaves_widens_the_block_that_a_growing_scale_would(
    problem, temperature, base_dim, budget
):
    sizes, row_probs, _, min_dim = problem
    weights = [(p / max(row_probs)) ** temperature for p in row_probs]
    dims = [rounded(base_dim * weight, base_dim, "integer", min_dim) for weight in weights]
    if cost_of(sizes, dims, base_dim) > budget:
        return
    found = filled_dims(
        np.array(dims),
        np.array(sizes),
        np.array(row_probs),
        temperature=temperature,
        base_dim=base_dim,
        budget=budget,
    )
    refused = set()
    while growing := {block for block in range(len(dims)) if dims[block] < base_dim} - refused:
        block = max(growing, key=lambda block: (weights[block] / (dims[block] + 0.5), -block))
        tried = ([*dims[:block], dim, *dims[block + 1 :]] for dim in (dims[block] + 1, base_dim))
        wider = next((wider for wider in tried if cost_of(sizes, wider, base_dim) <= budget), None)
        if wider is None:
            refused.add(block)
        else:
            refused = (
                set() if cost_of(sizes, wider, base_dim) < cost_of(sizes, dims, base_dim) else refused
            )
            dims = wider
    assert found.tolist() == dims
    assert cost_of(sizes, dims, base_dim) <= budget


@pytest.mark.filterwarnings("ignore::mixdim.FloorWarning")
@pytest.mark.parametrize("temperature", [0.2, 0.4])
@pytest.mark.parametrize("width", [2, 5])
def test_it_spends_what_other_roundings_leave_and_keeps_base_dim(temperature, width):
    wanted = {"temperature": temperature, "budget": f"width:{width}"}
    integer, filled = planned(**wanted, rounding="integer"), planned(**wanted, rounding="fill")
    budget = width * sum(ROWS.values())
    assert 0.98 * budget < filled.num_parameters <= budget
    assert filled.base_dim == integer.base_dim
    assert all(a.dim >= b.dim for a, b in zip(filled.blocks, integer.blocks, strict=True))
    assert planned(**wanted, base_dim=filled.base_dim, rounding="fill") == filled
    assert f"temperature {temperature}, filling the budget" in str(filled)
    assert mixdim.Plan.from_json(filled.to_json()) == filled


def test_uniform_dimensions_stay_uniform_and_a_budget_of_their_width_is_what_they_cost():
    for rounding in ("fill", "integer", "power_of_two"):
        uniform = planned(temperature=0.0, budget="width:3", rounding=rounding)
        assert {block.dim for block in uniform.blocks} == {3}
        assert uniform.num_parameters == 3 * sum(ROWS.values())


def test_a_base_dim_that_bounds_the_widths_is_kept_and_the_budget_is_filled():
    wanted = {"temperature": 0.3, "base_dim": 8, "budget": 10_000}
    scaled, filled = planned(**wanted, rounding="integer"), planned(**wanted, rounding="fill")
    assert max(block.dim for block in filled.blocks) <= 8
    assert scaled.num_parameters <= filled.num_parameters <= 10_000
    assert filled.provenance == {"rule": "scaled_power_law", "temperature": 0.3, "rounding": "fill"}
