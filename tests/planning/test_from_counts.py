import time
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mixdim
from mixdim.lab.synthetic.planted import CRITEO_KAGGLE_ROWS
from strategies import ROUNDINGS, feature_arguments, quiet_plan

CRITEO_UNIFORM_2 = 2 * sum(CRITEO_KAGGLE_ROWS.values())


def dims(plan):
    return [block.dim for block in plan.blocks]


def test_criteo_at_base_dim_16_is_nearly_uniform_width_1_and_warns():
    with pytest.warns(mixdim.FloorWarning, match="100% of the rows sit at width 1"):
        plan = mixdim.plan(CRITEO_KAGGLE_ROWS, temperature=0.3, base_dim=16)
    assert plan.equivalent_uniform_dim == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(("rounding", "base_dim"), [("power_of_two", 128), ("integer", 136)])
def test_criteo_at_the_budget_of_uniform_width_2(rounding, base_dim):
    options = {"temperature": 0.3, "rounding": rounding}
    plan = mixdim.plan(CRITEO_KAGGLE_ROWS, budget=CRITEO_UNIFORM_2, **options)
    assert plan.base_dim == base_dim
    assert plan.num_parameters <= CRITEO_UNIFORM_2
    larger = mixdim.plan(CRITEO_KAGGLE_ROWS, base_dim=base_dim + 1, **options)
    assert larger.num_parameters > CRITEO_UNIFORM_2


def seconds(work):
    start = time.process_time()
    work()
    return time.process_time() - start


def test_a_plan_of_34_million_rows_is_solved_faster_than_its_largest_table_is_drawn():
    rows = list(CRITEO_KAGGLE_ROWS.values())
    rounds = range(3)
    draw = [seconds(lambda: np.random.default_rng(0).random(max(rows))) for _ in rounds]
    solve = [
        seconds(lambda: mixdim.plan(rows, temperature=0.3, budget=CRITEO_UNIFORM_2)) for _ in rounds
    ]
    assert min(solve) < min(draw)


def test_names_of_a_sequence_are_its_positions():
    plan = mixdim.plan(np.array([5, 7]), temperature=0, base_dim=2)
    assert list(plan) == ["0", "1"]
    assert [feature.rows for feature in plan.features] == [5, 7]


def test_one_block_per_feature_has_popularity_1_over_rows():
    plan = mixdim.plan({"a": 4, "b": 64}, temperature=0.5, base_dim=8)
    assert [block.row_prob for block in plan.blocks] == [1 / 4, 1 / 64]
    assert dims(plan) == [8, 2]


def test_more_ids_per_sample_make_a_feature_more_popular():
    plan = mixdim.plan({"a": 4, "b": 64}, temperature=0.5, base_dim=8, ids_per_sample={"b": 4})
    assert [block.row_prob for block in plan.blocks] == [1 / 4, 4 / 64]
    assert dims(plan) == [8, 4]


def test_bands_of_all_features_compete_with_the_most_popular_block():
    counts = {"user": [8, 8, 1, 1, 1, 1, 1, 1, 1, 1], "item": [50, 25, 25]}
    plan = mixdim.plan(
        {"user": 10, "item": 3}, counts=counts, bands=2, temperature=1, base_dim=32, rounding="integer"
    )
    probs = [block.row_prob for block in plan.blocks]
    assert probs == pytest.approx([16 / 24 / 2, 8 / 24 / 8, 0.5, 0.25])
    assert dims(plan) == [round(32 * p / 0.5) for p in probs]


def test_a_band_that_was_never_queried_gets_the_floor_but_stays_uniform_at_temperature_0():
    options = {"counts": [[5, 0, 0]], "bands": 3, "base_dim": 8}
    with pytest.warns(mixdim.FloorWarning):
        assert dims(mixdim.plan([3], temperature=0.1, **options)) == [8, 1]
    assert dims(mixdim.plan([3], temperature=0, **options)) == [8, 8]


def test_orders_list_ids_from_popular_to_rare_for_features_with_bands():
    counts = {"user": [1, 9, 3, 3], "item": [2, 1]}
    options = {"temperature": 0.5, "base_dim": 4}
    plan = mixdim.plan({"user": 4, "item": 2}, counts=counts, bands={"user": 2}, **options)
    assert {name: order.tolist() for name, order in plan.orders.items()} == {"user": [1, 2, 3, 0]}
    assert plan["user"].orders["user"].tolist() == [1, 2, 3, 0]
    assert plan["item"].orders == {}


@given(feature_arguments(), st.floats(0, 1), st.integers(0, 2000), st.sampled_from(ROUNDINGS))
def test_a_solved_base_dim_keeps_the_budget_and_the_next_would_not(
    features, temperature, spare, rounding
):
    budget = sum(features["rows"].values()) + spare
    options = {**features, "temperature": temperature, "rounding": rounding}
    plan = quiet_plan(**options, budget=budget)
    assert plan.num_parameters <= budget
    for larger in (1, 2, 3, plan.base_dim):
        assert quiet_plan(**options, base_dim=plan.base_dim + larger).num_parameters > budget


@given(feature_arguments(), st.integers(1, 40), st.integers(1, 2000), st.sampled_from(ROUNDINGS))
def test_a_solved_temperature_keeps_the_budget_and_a_smaller_would_not(
    features, base_dim, budget, rounding
):
    options = {**features, "base_dim": base_dim, "rounding": rounding}
    try:
        plan = quiet_plan(**options, budget=budget)
    except ValueError as error:
        smallest = int(str(error).split("budget is ")[1].split(" ")[0].replace(",", ""))
        assert smallest > budget
        assert quiet_plan(**options, budget=smallest).num_parameters == smallest
        return
    assert plan.num_parameters <= budget
    if plan.temperature > 0:
        smaller = quiet_plan(**options, temperature=round(plan.temperature - 0.001, 3))
        assert smaller.num_parameters > budget


def test_a_budget_may_be_written_in_bytes():
    by_bytes = mixdim.plan([100, 10], temperature=0.3, budget="4kB")
    assert by_bytes == mixdim.plan([100, 10], temperature=0.3, budget=1000)


def test_a_solved_plan_equals_the_same_plan_asked_for():
    solved = mixdim.plan([100, 10], temperature=0.3, budget=1000)
    assert solved == mixdim.plan([100, 10], temperature=0.3, base_dim=solved.base_dim)


def test_uniform_plans_need_no_projection_and_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for base_dim in (1, 40, 64):
            plan = mixdim.plan([1000, 3], temperature=0, base_dim=base_dim)
            assert dims(plan) == [base_dim] * 2
            assert plan.projection_parameters == 0


def test_counts_may_be_tensors_and_sequences_follow_the_features():
    plan = mixdim.plan(
        [3, 2], counts=[torch.tensor([1, 5, 1]), [1, 1]], bands=[2, 1], temperature=0.5, base_dim=4
    )
    assert [len(feature.blocks) for feature in plan.features] == [2, 1]


BAD = {
    "no features": ({"rows": {}}, ValueError, "at least one feature"),
    "no cardinalities": ({"rows": []}, ValueError, "at least one feature"),
    "negative rows": ({"rows": {"a": -3}}, ValueError, "rows of feature 'a' must be at least 1, got -3"),
    "no rows": ({"rows": [5, 0]}, ValueError, "rows of feature '1' must be at least 1, got 0"),
    "fractional rows": ({"rows": [2.5]}, TypeError, "rows of feature '0' must be a whole number"),
    "rows as text": ({"rows": "12"}, TypeError, "rows must be a mapping or a sequence"),
    "rows as a number": ({"rows": 12}, TypeError, "rows must be a mapping or a sequence"),
    "temperature below": ({"temperature": -0.1}, ValueError, r"in \[0, 1\], got -0.1"),
    "temperature above": ({"temperature": 1.5}, ValueError, r"in \[0, 1\], got 1.5"),
    "temperature nan": ({"temperature": float("nan")}, ValueError, r"in \[0, 1\], got nan"),
    "temperature text": ({"temperature": "hot"}, TypeError, "temperature must be a number"),
    "base_dim 0": ({"base_dim": 0}, ValueError, "base_dim must be at least 1, got 0"),
    "base_dim float": ({"base_dim": 8.0}, TypeError, "base_dim must be a whole number"),
    "too small for all three": ({"budget": 10}, ValueError, "smallest feasible budget is 46"),
    "one of three": ({"temperature": None}, ValueError, "give two of"),
    "small budget": ({"base_dim": None, "budget": 29}, ValueError, "smallest feasible budget is 30"),
    "bad budget": ({"base_dim": None, "budget": "much"}, ValueError, "budget must be a number of"),
    "rounding": ({"rounding": "up"}, ValueError, "'power_of_two', 'integer' or 'fill', got 'up'"),
    "fill": ({"rounding": "fill"}, ValueError, "rounding 'fill' needs a budget"),
    "short counts": ({"counts": {"a": [1, 2]}}, ValueError, "each of its 10 rows, got 2"),
    "counts of nothing": ({"counts": {"c": [1]}}, ValueError, "unknown feature 'c'; the features are"),
    "one list of counts": ({"counts": [1, 2, 3]}, ValueError, "one entry for each of 2 features, got 3"),
    "negative counts": ({"counts": {"a": [-1] * 10}}, ValueError, "counts of feature 'a'"),
    "bands without counts": ({"bands": 4}, ValueError, "feature 'a' need its counts"),
    "other bands": ({"bands": "deciles"}, ValueError, "must be a number or .octaves., got .deciles."),
    "no bands": ({"bands": 0}, ValueError, "bands of feature 'a' must be at least 1"),
    "bands of nothing": ({"bands": {"c": 2}}, ValueError, "unknown feature 'c'"),
    "no ids": ({"ids_per_sample": {"a": 0}}, ValueError, "of feature 'a' must be above 0"),
    "nan ids": ({"ids_per_sample": {"a": float("nan")}}, ValueError, "must be finite"),
    "ids of nothing": ({"ids_per_sample": {"c": 1}}, KeyError, "unknown feature 'c'"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "error", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_named(change, error, message):
    good = {"rows": {"a": 10, "b": 20}, "temperature": 0.3, "base_dim": 8}
    with pytest.raises(error, match=message):
        mixdim.plan(**{**good, **change})


@given(st.integers(1, 5), st.integers(0, 2**32 - 1), st.sampled_from(["base_dim", "temperature"]))
def test_a_budget_in_bytes_pays_for_the_ranks_of_ids_too(bands, seed, solved):
    """What a layer really holds is within the budget, which ranks are paid from first."""
    counts = np.random.default_rng(seed).permutation(300)
    given = {"temperature": 0.2} if solved == "base_dim" else {"base_dim": 8}
    plan = quiet_plan({"x": 300}, counts={"x": counts}, bands=bands, budget="12kB", **given)
    layer = mixdim.MixedDimEmbedding(plan)
    held = sum(tensor.nbytes for tensor in (*layer.parameters(), *layer.buffers()))
    assert plan.nbytes() == held <= 12_000
    # As many parameters as without ranks, in what these leave.
    ranks = 4 * 300 if bands > 1 else 0
    same = quiet_plan(
        {"x": 300}, counts={"x": counts}, bands=bands, budget=(12_000 - ranks) // 4, **given
    )
    assert plan == same


def test_the_smallest_budget_in_bytes_that_an_error_names_is_feasible():
    asked = {"counts": {"x": np.arange(1, 1001)}, "bands": 4, "temperature": 0.3}
    with pytest.raises(ValueError, match=r"is 1,000 parameters \(8\.0 kB in float32, 4\.0 kB of it for"):
        quiet_plan({"x": 1000}, budget="5kB", **asked)
    assert quiet_plan({"x": 1000}, budget="8kB", **asked).nbytes() == 8_000
    with pytest.raises(ValueError, match="budget of 3kB is too small: the ranks of ids alone take 4"):
        quiet_plan({"x": 1000}, budget="3kB", **asked)
    table = {"x": np.random.default_rng(0).standard_normal((1000, 4))}
    spectral = {"counts": asked["counts"], "bands": 4}
    with pytest.raises(ValueError, match=r"\(8\.0 kB in float32, 4\.0 kB of it for the ranks"):
        mixdim.spectral_plan(table, budget="5kB", **spectral)
