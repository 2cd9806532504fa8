import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mixdim
from mixdim import FeatureEmbeddings, Hashed, Plan
from mixdim.planning.from_tables import nearest_temperature, spectral_plan, table_error
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


def errors_by_width(plan, tables, counts=None):
    """Of each block of a plan, the expected squared errors of all widths from 0 on, from SVDs."""
    errors = []
    for feature in plan.features:
        table = np.asarray(tables[feature.name], dtype=np.float64)
        probs = np.ones(len(table)) if counts is None else np.asarray(counts[feature.name], np.float64)
        probs = np.ones(len(table)) if not probs.sum() else probs
        order = plan.orders.get(feature.name, np.arange(len(table)))
        weighted = (np.sqrt(probs / probs.sum())[:, None] * table)[order]
        for block in feature.blocks:
            rows = weighted[block.start : block.start + block.size]
            squares = np.linalg.svd(rows, compute_uv=False) ** 2
            errors.append([squares[width:].sum() for width in range(table.shape[1] + 1)])
    return np.array(errors)


def plan_error(plan, tables, counts=None):
    errors = errors_by_width(plan, tables, counts)
    return sum(of_block[block.dim] for of_block, block in zip(errors, plan.blocks, strict=True))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(ROUNDINGS), st.integers(1, 2), st.floats(1, 4.5))
def test_the_plan_is_the_best_of_all_plans_within_the_budget(seed, rounding, bands, per_row):
    tables = random_tables(seed)
    counts, budget = random_counts(seed, tables), int(8 * per_row)
    plan = spectral_plan(tables, counts=counts, budget=budget, bands=bands, rounding=rounding)
    errors, sizes = errors_by_width(plan, tables, counts), [block.size for block in plan.blocks]
    best = np.inf
    for dims in itertools.product(
        [1, 2, 4] if rounding == "power_of_two" else [1, 2, 3, 4], repeat=len(sizes)
    ):
        both = zip(sizes, dims, strict=True)
        cost = sum(size * dim + dim * max(dims) * (dim < max(dims)) for size, dim in both)
        if cost <= budget:
            best = min(best, errors[np.arange(len(dims)), dims].sum())
    assert plan.num_parameters <= budget
    assert plan.base_dim == max(block.dim for block in plan.blocks)
    assert plan_error(plan, tables, counts) <= best * (1 + 2e-4) + 1e-12


def test_popular_rows_of_a_feature_get_the_width():
    generator = np.random.default_rng(0)
    table, counts = generator.standard_normal((100, 8)), np.append(np.full(10, 900), np.full(90, 1))
    plan = spectral_plan({"item": table}, counts={"item": counts}, budget=300, bands=2)
    popular, rare = plan.blocks
    assert popular.dim > rare.dim
    assert 0 < nearest_temperature(plan) <= 1
    assert (plan.provenance, plan.temperature) == ({"rule": "spectral"}, None)


def test_features_share_one_budget_by_what_their_tables_use_and_how_often():
    full, thin = np.random.default_rng(0).standard_normal((50, 8)), np.ones((50, 8))
    plan = spectral_plan({"full": full, "thin": thin}, budget=460)
    assert [block.dim for block in plan.blocks] == [8, 1]
    often = spectral_plan({"one": full, "two": full}, budget=500, ids_per_sample={"two": 5.0})
    assert often.blocks[1].dim > often.blocks[0].dim
    assert often.blocks[1].row_prob == pytest.approx(5 / 50)
    # More than enough is not spent.
    assert [block.dim for block in spectral_plan({"thin": thin}, budget=10**6).blocks] == [1]


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


def test_tensors_arrays_and_samples_of_all_rows_give_the_same_plan():
    tables = random_tables(4, sizes=(30, 20), width=8)
    counts, ids = random_counts(4, tables), np.random.default_rng(5).permutation(30)
    options = {"counts": counts, "bands": {"f0": 3}, "budget": 200}
    expected = spectral_plan(tables, **options)
    as_tensors = {name: torch.tensor(table, requires_grad=True) for name, table in tables.items()}
    assert spectral_plan(as_tensors, **options) == expected
    shuffled = {**tables, "f0": tables["f0"][ids]}
    assert spectral_plan(shuffled, sampled_ids={"f0": ids}, **options) == expected


def test_a_sample_stands_for_all_rows_of_its_block():
    generator = np.random.default_rng(0)
    big = generator.standard_normal((4000, 8)) * np.arange(1, 9) ** -1.5
    small = generator.standard_normal((400, 8)) * np.arange(1, 9) ** -0.5
    counts, ids = (
        {"big": np.arange(4000)[::-1], "small": np.ones(400)},
        generator.choice(4000, 800, False),
    )
    tables, options = (
        {"big": big, "small": small},
        {"counts": counts, "bands": {"big": 2}, "budget": 9000},
    )
    whole = spectral_plan(tables, **options)
    part = spectral_plan({**tables, "big": big[ids]}, sampled_ids={"big": ids}, **options)
    assert [block.size for block in part.blocks] == [block.size for block in whole.blocks]
    lost = [plan_error(plan, tables, counts) for plan in (part, whole)]
    assert lost[0] == pytest.approx(lost[1], rel=0.02)


def test_a_small_sample_does_not_make_a_feature_less_popular():
    pattern = np.random.default_rng(0).standard_normal((8, 8))
    tables = {"whole": np.tile(pattern, (50, 1)), "part": np.tile(pattern, (50, 1))}
    options = {
        "counts": {"whole": np.ones(400), "part": np.ones(400)},
        "budget": 3300,
        "rounding": "integer",
    }
    expected = spectral_plan(tables, **options)
    sampled = spectral_plan({**tables, "part": pattern}, sampled_ids={"part": np.arange(8)}, **options)
    assert sorted(block.dim for block in sampled.blocks) == sorted(b.dim for b in expected.blocks)
    assert plan_error(sampled, tables) == pytest.approx(plan_error(expected, tables))


def test_one_row_and_rows_never_looked_up():
    tables = {"one": np.ones((1, 2)), "unseen": np.eye(4)}
    counts = {"one": [5], "unseen": [0, 0, 0, 0]}
    plan = spectral_plan(tables, counts=counts, budget=100, rounding="integer")
    # One row of width 4 costs 4; of width 1 with its projection it would cost 1 + 4.
    assert [block.dim for block in plan.blocks] == [4, 4]


def test_the_nearest_temperature_is_a_slope_by_least_squares():
    equally_popular = spectral_plan(random_tables(6, sizes=(20, 20), width=8), budget=120)
    assert nearest_temperature(equally_popular) == 0
    plan = spectral_plan(random_tables(6, sizes=(10, 40, 160), width=8), budget=600)
    log_p, log_d = (np.log([getattr(b, key) for b in plan.blocks]) for key in ("row_prob", "dim"))
    slope = np.clip(np.polyfit(log_p, log_d, 1)[0], 0, 1)
    assert nearest_temperature(plan) == pytest.approx(slope, abs=5e-4)


def test_the_table_error_is_what_the_best_matrices_of_the_plans_ranks_lose():
    tables = random_tables(3, sizes=(40, 30), width=8)
    counts = random_counts(3, tables)
    plan = mixdim.plan(
        {"f0": 40, "f1": 30}, counts=counts, bands={"f0": 3, "f1": 2}, temperature=0.5, base_dim=6
    )
    whole = errors_by_width(plan, tables, counts)[:, 0].sum()
    share = plan_error(plan, tables, counts) / whole
    assert table_error(tables, plan, counts=counts) == pytest.approx(share, rel=1e-9)
    hashed = plan.with_storage("f0", Hashed(1, buckets=2))
    with pytest.raises(ValueError, match="feature 'f0' has a block that is hashed"):
        table_error(tables, hashed)


THREE = {"a": np.ones((3, 2))}
SAMPLED = {"counts": {"a": [9, 1, 1, 1, 1, 1, 1, 1, 1]}, "bands": 2}


@pytest.mark.parametrize(
    ("tables", "options", "message"),
    [
        ({}, {}, "tables must map at least one feature name"),
        ({"a": np.ones(3)}, {}, r"table 'a' must be numbers of shape \(rows, width\)"),
        ({"a": np.ones((0, 3))}, {}, r"got float64 \(0, 3\)"),
        ({"a": [[1.0], [np.nan]]}, {}, "weights of table 'a' must be finite, row 1 is not"),
        ({"a": np.ones((9, 2))}, {"budget": 8}, "the smallest feasible budget is 9 parameters"),
        (THREE, {"bands": 2}, "bands=2 of feature 'a' need its counts"),
        (THREE, {"counts": {"a": [1, 2]}}, "counts of table 'a' must be one for each of 3 rows, got 2"),
        (THREE, {"counts": {"b": [1]}}, "unknown feature 'b'"),
        (THREE, {"counts": {"a": [1, np.nan, 1]}}, "must be finite and not negative"),
        (THREE, {"ids_per_sample": 0.0}, "ids_per_sample of feature 'a' must be above 0"),
        (THREE, {"rounding": "up"}, "rounding must be"),
        (THREE, {"sampled_ids": {"a": [0, 1, 2]}}, "need the counts of all its rows"),
        (THREE, {"sampled_ids": {"b": [0]}}, "unknown feature 'b'"),
        (THREE, {"sampled_ids": {"a": [0, 1]}, **SAMPLED}, "must be 3 whole numbers, one for each"),
        (THREE, {"sampled_ids": {"a": [0.0, 1.0, 2.0]}, **SAMPLED}, "must be 3 whole numbers"),
        (THREE, {"sampled_ids": {"a": [0, 1, 9]}, **SAMPLED}, "must be different ids below 9"),
        (THREE, {"sampled_ids": {"a": [0, 1, 1]}, **SAMPLED}, "must be different ids below 9"),
        (THREE, {"sampled_ids": {"a": [-1, 1, 2]}, **SAMPLED}, "must be different ids below 9"),
        (THREE, {"sampled_ids": {"a": [6, 7, 8]}, **SAMPLED}, "have no row of a band of 1 rows"),
    ],
)
def test_bad_arguments_are_named(tables, options, message):
    with pytest.raises(ValueError, match=message):
        spectral_plan(tables, **{"budget": 100, **options})
