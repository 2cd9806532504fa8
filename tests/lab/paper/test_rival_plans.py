"""Plans that the power law is compared with."""

from itertools import pairwise

import numpy as np
import pytest

from mixdim.lab.paper.rival_plans import lifted_uniform_plan, pooled_plan

COUNTS = {"a": np.array([50, 20, 20, 1, 0]), "b": np.array([60, 20, 11]), "c": np.array([91])}


def test_a_plan_lifted_to_its_own_width_is_uniform_and_has_no_projections():
    plan = lifted_uniform_plan({"a": 5, "b": 3}, dim=4, base_dim=4)
    assert plan.projection_parameters == 0
    assert plan.num_parameters == 4 * 8


def test_tables_wider_than_base_dim_are_refused():
    with pytest.raises(ValueError, match="dim must be at most base_dim 4, got 8"):
        lifted_uniform_plan({"a": 5}, dim=8, base_dim=4)


@pytest.mark.parametrize("bands", [1, 2, 3, 5])
def test_rows_of_one_pooled_band_are_equally_wide_whatever_their_feature(bands):
    plan = pooled_plan(COUNTS, bands=bands, temperature=0.5, base_dim=16)
    width_of = {}  # brute force: every row of the pool, with its count and width
    rows = [
        (int(COUNTS[feature.name][row]), block.dim)
        for feature in plan.features
        for block in feature.blocks
        for row in range(block.start, block.start + block.size)
    ]
    assert len(rows) == 9
    for count, width in rows:
        width_of.setdefault(count, set()).add(width)
    ordered = [width_of[count] for count in sorted(width_of, reverse=True)]
    for wide, narrow in pairwise(ordered):
        assert min(wide) >= max(narrow)  # whoever is more popular is never narrower
    assert max(width for _, width in rows) == 16


def test_widths_follow_the_power_law_of_the_pools_bands():
    # Pool: 91, 60, 50 | 20, 20, 20, 11, 1, 0 at half of 273 = 136.5: the cut is after 60.
    plan = pooled_plan(COUNTS, bands=2, temperature=1.0, base_dim=16)
    popular, rare = (91 + 60) / 2, (273 - 151) / 7
    narrow = 2 ** round(np.log2(16 * rare / popular))
    assert [[(b.size, b.dim) for b in f.blocks] for f in plan.features] == [
        [(5, narrow)],
        [(1, 16), (2, narrow)],
        [(1, 16)],
    ]


def test_at_temperature_0_the_pool_is_uniform():
    plan = pooled_plan(COUNTS, bands=3, temperature=0.0, base_dim=8)
    assert {block.dim for block in plan.blocks} == {8}
    assert plan.projection_parameters == 0


def test_rising_counts_are_refused():
    with pytest.raises(ValueError, match="counts of feature 'a' must fall"):
        pooled_plan({"a": np.array([1, 2])}, bands=2, temperature=0.5, base_dim=8)


def test_a_feature_without_queries_is_in_the_narrowest_band():
    plan = pooled_plan(
        {"a": np.array([9, 1]), "b": np.array([0, 0])}, bands=2, temperature=1.0, base_dim=8
    )
    assert plan.features[1].blocks[0].dim == plan.features[0].blocks[-1].dim
