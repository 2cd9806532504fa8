import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mixdim
from mixdim import FeatureEmbeddings, Hashed, Plan, Rows
from mixdim.planning.feature import Feature
from mixdim.planning.from_spectra import (
    nearest_temperature,
    spectral_plan,
    table_error,
    weighted_energies,
)
from strategies import ROUNDINGS


def random_tables(seed, sizes=(3, 5), width=4):
    generator = np.random.default_rng(seed)
    decays = np.arange(1, width + 1) ** -generator.uniform(0, 2, (len(sizes), 1))
    return {
        f"f{i}": generator.standard_normal((size, width)) * decay
        for i, (size, decay) in enumerate(zip(sizes, decays, strict=True))
    }


def random_counts(seed, tables):
    generator = np.random.default_rng(seed)
    return {name: generator.integers(0, 20, len(table)) for name, table in tables.items()}


def plan_error(plan, tables, counts=None, ids_per_sample=1.0):
    """The expected squared error of the best table that each block of a plan can hold, from SVDs."""
    total = 0.0
    for feature in plan.features:
        name, table = feature.name, np.asarray(tables[feature.name], dtype=np.float64)
        probs = np.ones(len(table)) if counts is None else np.asarray(counts[name], dtype=np.float64)
        probs = np.ones(len(table)) if not probs.sum() else probs
        order = plan.orders.get(name, np.arange(len(table)))
        weighted = (np.sqrt(ids_per_sample * probs / probs.sum())[:, None] * table)[order]
        for block in feature.blocks:
            values = np.linalg.svd(weighted[block.start : block.start + block.size], compute_uv=False)
            total += (values[block.dim :] ** 2).sum()
    return total


def every_plan(plan, choices):
    """All plans with the same blocks and other widths."""
    for dims in itertools.product(choices, repeat=len(plan.blocks)):
        widths = iter(dims)
        features = tuple(
            Feature(
                feature.name,
                feature.rows,
                tuple(replace(block, storage=Rows(next(widths))) for block in feature.blocks),
            )
            for feature in plan.features
        )
        yield Plan(max(dims), {"rule": "by_hand"}, features, plan.named_orders)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(ROUNDINGS), st.integers(1, 2), st.floats(1, 4.5))
def test_the_plan_is_the_best_of_all_plans_within_the_budget(seed, rounding, bands, per_row):
    tables = random_tables(seed)
    counts, budget = random_counts(seed, tables), int(8 * per_row)
    plan = spectral_plan(tables, counts=counts, budget=budget, bands=bands, rounding=rounding)
    choices = [1, 2, 4] if rounding == "power_of_two" else [1, 2, 3, 4]
    errors = [
        plan_error(other, tables, counts)
        for other in every_plan(plan, choices)
        if other.num_parameters <= budget
    ]
    assert plan.num_parameters <= budget
    assert plan.base_dim == max(block.dim for block in plan.blocks)
    assert plan_error(plan, tables, counts) <= min(errors) * (1 + 2e-4) + 1e-12


def test_popular_rows_of_a_feature_get_the_width():
    generator = np.random.default_rng(0)
    table, counts = generator.standard_normal((100, 8)), np.append(np.full(10, 900), np.full(90, 1))
    plan = spectral_plan({"item": table}, counts={"item": counts}, budget=300, bands=2)
    popular, rare = plan.blocks
    assert popular.dim > rare.dim
    assert 0 < nearest_temperature(plan) <= 1
    assert (plan.made_by, plan.temperature) == ({"rule": "spectral"}, None)


def test_features_share_one_budget_by_what_their_tables_use():
    generator = np.random.default_rng(0)
    full, thin = generator.standard_normal((50, 8)), np.outer(np.ones(50), np.ones(8))
    plan = spectral_plan({"full": full, "thin": thin}, budget=460)
    assert [block.dim for block in plan.blocks] == [8, 1]


def test_a_feature_asked_for_more_often_counts_for_more():
    tables = random_tables(1, sizes=(40, 40), width=8)
    tables["f1"] = tables["f0"]
    often = spectral_plan(tables, budget=400, ids_per_sample={"f1": 5.0})
    assert often.blocks[1].dim > often.blocks[0].dim
    assert often.blocks[1].row_prob == pytest.approx(5 / 40)


def test_a_layer_built_from_the_plan_costs_what_it_says():
    tables = random_tables(2, sizes=(30, 8), width=8)
    plan = spectral_plan(tables, budget="1.2kB", counts=random_counts(2, tables), bands={"f0": 3})
    layer = FeatureEmbeddings(plan, ids=plan.orders)
    assert layer.num_parameters == plan.num_parameters <= 300
    assert Plan.from_json(plan.to_json()) == plan


def test_bands_are_those_of_an_ordinary_plan():
    tables = random_tables(3, sizes=(30,), width=4)
    counts = random_counts(3, tables)
    spectral = spectral_plan(tables, counts=counts, bands=4, budget=80)
    ordinary = mixdim.plan({"f0": 30}, counts=counts, bands=4, temperature=0, base_dim=2)
    assert [(b.start, b.size, b.row_prob) for b in spectral.blocks] == [
        (b.start, b.size, b.row_prob) for b in ordinary.blocks
    ]
    assert (spectral.orders["f0"] == ordinary.orders["f0"]).all()


def test_tensors_and_arrays_give_the_same_plan():
    tables = random_tables(4, sizes=(30, 20), width=8)
    as_tensors = {name: torch.tensor(table, requires_grad=True) for name, table in tables.items()}
    assert spectral_plan(as_tensors, budget=200) == spectral_plan(tables, budget=200)


def test_a_sample_of_all_rows_is_the_table_in_another_order():
    tables = random_tables(5, sizes=(30,), width=8)
    counts, ids = random_counts(5, tables), np.random.default_rng(5).permutation(30)
    sampled = spectral_plan(
        {"f0": tables["f0"][ids]}, counts=counts, bands=3, budget=150, sampled_ids={"f0": ids}
    )
    assert sampled == spectral_plan(tables, counts=counts, bands=3, budget=150)


def test_a_sample_stands_for_all_rows_of_its_block():
    generator = np.random.default_rng(0)
    table = generator.standard_normal((4000, 8)) * np.arange(1, 9) ** -1.5
    other = generator.standard_normal((400, 8)) * np.arange(1, 9) ** -0.5
    counts = {"big": np.arange(4000)[::-1], "small": np.ones(400)}
    ids = generator.choice(4000, 800, replace=False)
    whole = spectral_plan({"big": table, "small": other}, counts=counts, bands={"big": 2}, budget=9000)
    part = spectral_plan(
        {"big": table[ids], "small": other},
        counts=counts,
        bands={"big": 2},
        budget=9000,
        sampled_ids={"big": ids},
    )
    assert [block.size for block in part.blocks] == [block.size for block in whole.blocks]
    assert plan_error(part, {"big": table, "small": other}, counts) == pytest.approx(
        plan_error(whole, {"big": table, "small": other}, counts), rel=0.02
    )


def test_a_small_sample_does_not_make_a_feature_less_popular():
    pattern = np.random.default_rng(0).standard_normal((8, 8))
    tables = {"whole": np.tile(pattern, (50, 1)), "part": np.tile(pattern, (50, 1))}
    counts = {"whole": np.ones(400), "part": np.ones(400)}
    expected = spectral_plan(tables, counts=counts, budget=3300, rounding="integer")
    sampled = spectral_plan(
        {**tables, "part": pattern},
        counts=counts,
        budget=3300,
        rounding="integer",
        sampled_ids={"part": np.arange(8)},
    )
    assert sorted(block.dim for block in sampled.blocks) == sorted(b.dim for b in expected.blocks)
    assert plan_error(sampled, tables) == pytest.approx(plan_error(expected, tables))


def test_more_than_enough_budget_is_not_spent():
    plan = spectral_plan({"a": np.outer(np.arange(1.0, 6.0), np.ones(4))}, budget=10**6)
    assert [block.dim for block in plan.blocks] == [1]
    assert plan.base_dim == 1


def test_one_row_and_rows_nobody_asks_for():
    tables = {"one": np.ones((1, 2)), "unseen": np.eye(4)}
    counts = {"one": [5], "unseen": [0, 0, 0, 0]}
    plan = spectral_plan(tables, counts=counts, budget=100, rounding="integer")
    # One row of width 4 costs 4; of width 1 with its projection it would cost 1 + 4.
    assert [block.dim for block in plan.blocks] == [4, 4]


def test_the_nearest_temperature_is_a_slope_by_least_squares():
    equally_popular = spectral_plan(random_tables(6, sizes=(20, 20), width=8), budget=120)
    assert nearest_temperature(equally_popular) == 0
    tables = random_tables(6, sizes=(10, 40, 160), width=8)
    plan = spectral_plan(tables, budget=600)
    log_p, log_d = (np.log([getattr(b, key) for b in plan.blocks]) for key in ("row_prob", "dim"))
    slope = np.clip(np.polyfit(log_p, log_d, 1)[0], 0, 1)
    assert nearest_temperature(plan) == pytest.approx(slope, abs=5e-4)


def test_what_a_hashed_block_can_hold_is_not_known():
    tables = random_tables(6, sizes=(10,), width=8)
    plan = spectral_plan(tables, budget=60).with_storage("f0", Hashed(1, buckets=2))
    with pytest.raises(ValueError, match="feature 'f0' has a block that is hashed"):
        table_error(tables, plan)


@pytest.mark.parametrize(
    ("tables", "options", "message"),
    [
        ({}, {}, "tables must map at least one feature name"),
        ({"a": np.ones(3)}, {}, r"table of feature 'a' must be numbers of shape \(rows, width\)"),
        ({"a": np.ones((0, 3))}, {}, r"got float64 \(0, 3\)"),
        ({"a": [[1.0], [np.nan]]}, {}, "table of feature 'a' must be finite, row 1 is not"),
        ({"a": np.ones((9, 2))}, {"budget": 8}, "the smallest feasible budget is 9 parameters"),
        ({"a": np.ones((3, 2))}, {"bands": 2}, "bands=2 of feature 'a' need its counts"),
        ({"a": np.ones((3, 2))}, {"counts": {"a": [1, 2]}}, "one entry for each of its 3 rows, got 2"),
        ({"a": np.ones((3, 2))}, {"counts": {"b": [1]}}, "unknown feature 'b'"),
        ({"a": np.ones((3, 2))}, {"counts": {"a": [1, np.nan, 1]}}, "must be finite and not negative"),
        (
            {"a": np.ones((3, 2))},
            {"ids_per_sample": 0.0},
            "ids_per_sample of feature 'a' must be above 0",
        ),
        ({"a": np.ones((3, 2))}, {"rounding": "up"}, "rounding must be"),
        ({"a": np.ones((3, 2))}, {"sampled_ids": {"a": [0, 1, 2]}}, "need the counts of all its rows"),
        ({"a": np.ones((3, 2))}, {"sampled_ids": {"b": [0]}}, "unknown feature 'b'"),
    ],
)
def test_bad_arguments_are_named(tables, options, message):
    with pytest.raises(ValueError, match=message):
        spectral_plan(tables, **{"budget": 100, **options})


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([0, 1], "must be 3 whole numbers, one for each row of its table"),
        ([0.0, 1.0, 2.0], "must be 3 whole numbers"),
        ([0, 1, 9], "must be different ids below 9"),
        ([0, 1, 1], "must be different ids below 9"),
        ([-1, 1, 2], "must be different ids below 9"),
        ([6, 7, 8], "have no row of its block 0"),
    ],
)
def test_bad_samples_are_named(ids, message):
    with pytest.raises(ValueError, match=message):
        spectral_plan(
            {"a": np.ones((3, 2))},
            counts={"a": [9, 1, 1, 1, 1, 1, 1, 1, 1]},
            bands=2,
            budget=100,
            sampled_ids={"a": ids},
        )


def test_the_table_error_is_what_the_best_matrices_of_the_plans_ranks_lose():
    rng = np.random.default_rng(3)
    tables = {"a": rng.standard_normal((40, 8)), "b": rng.standard_normal((30, 8))}
    counts = {"a": np.sort(rng.integers(1, 50, 40))[::-1], "b": rng.integers(0, 9, 30)}
    plan = mixdim.plan(
        {"a": 40, "b": 30}, counts=counts, bands={"a": 3, "b": 2}, temperature=0.5, base_dim=6
    )
    lost = whole = 0.0
    for feature in plan.features:
        weighted = np.sqrt(counts[feature.name] / counts[feature.name].sum())[:, None]
        weighted = (weighted * tables[feature.name])[plan.orders[feature.name]]
        for block in feature.blocks:
            rows = weighted[block.start : block.start + block.size]
            u, sigma, v = np.linalg.svd(rows, full_matrices=False)
            kept = (u[:, : block.dim] * sigma[: block.dim]) @ v[: block.dim]
            lost, whole = lost + ((rows - kept) ** 2).sum(), whole + (rows**2).sum()
    assert table_error(tables, plan, counts=counts) == pytest.approx(lost / whole, rel=1e-9)


def test_weighted_energies_are_squared_singular_values(monkeypatch):
    monkeypatch.setattr("mixdim.planning.from_spectra.ROWS_AT_A_TIME", 7)  # several chunks
    generator = np.random.default_rng(0)
    table, weights = generator.standard_normal((30, 5)).astype(np.float32), generator.random(30)
    expected = np.linalg.svd(np.sqrt(weights)[:, None] * table, compute_uv=False) ** 2
    assert weighted_energies(table, weights) == pytest.approx(expected)


def test_a_table_with_fewer_rows_than_columns_has_energies_of_zero():
    assert weighted_energies(np.ones((1, 3)), np.ones(1)) == pytest.approx([3, 0, 0])
