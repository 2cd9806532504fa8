import time

import pytest
import torch
from hypothesis import given

import mixdim
from mixdim.layer.layout import Layout
from strategies import plans


def table_rows(layout, group):
    return sum(block.storage.stored_rows(block.size) for block in layout.groups[group])


@given(plans())
def test_every_row_of_the_layer_has_one_row_of_a_table(plan):
    layout = Layout.of(plan)
    seen = {group: [0] * table_rows(layout, group) for group in layout.groups}
    for block in layout.blocks:
        for row in range(block.storage.stored_rows(block.size)):
            seen[block.storage.group][block.first_row + row] += 1
    assert all(count == 1 for counts in seen.values() for count in counts)
    assert [block.start for block in layout.blocks[1:]] == [block.end for block in layout.blocks[:-1]]


def test_a_layer_of_four_times_the_features_takes_about_four_times_as_long():
    """And so does its plan, its table and its dense matrix: what was quadratic took sixteen times."""

    def seconds(features):
        start = time.process_time()
        plan = mixdim.plan(
            [3] * features, counts=[[3, 1, 2]] * features, bands=2, temperature=0.3, base_dim=4
        )
        layer = mixdim.FeatureEmbeddings(plan)
        layer(torch.zeros(1, features, dtype=torch.int64))
        layer.dense_weight()
        assert len({plan[name].num_rows for name in plan}) == 1
        str(plan)
        return time.process_time() - start

    seconds(20)
    assert min(seconds(1200) for _ in range(2)) < 8 * min(seconds(300) for _ in range(3))


@given(plans())
def test_slots_number_the_blocks_of_a_group_with_whole_features_first(plan):
    layout = Layout.of(plan)
    for group, blocks in layout.groups.items():
        assert [block.slot for block in blocks] == list(range(len(blocks)))
        whole = layout.whole.get(group, [])
        assert blocks[: len(whole)] == whole
        assert {block.storage.group for block in blocks} == {group}


@given(plans())
def test_a_row_of_a_table_knows_its_feature_and_rank(plan):
    layout, names = Layout.of(plan), tuple(plan)
    found = sorted(
        layout.describe_row(group, row, names)
        for group in layout.groups
        for row in range(table_rows(layout, group))
    )
    own = [
        f"row {rank} of feature {feature.name!r}"
        for feature in plan.features
        for block in feature.blocks
        for rank in range(block.start, block.start + block.size)
        if block.dim
    ]
    shared = [
        f"shared row 0 of feature {feature.name!r}"
        for feature in plan.features
        for block in feature.blocks
        if block.dim == 0
    ]
    assert found == sorted(own + shared)


def test_shared_rows_are_called_so():
    plan = mixdim.plan({"a": 2, "b": 9}, temperature=0.5, base_dim=4)
    plan = plan.with_storage("b", mixdim.Hashed(4, buckets=3))
    layout = Layout.of(plan)
    assert list(layout.groups) == ["4", "hashed2_4"]
    assert layout.describe_row("4", 1, ("a", "b")) == "row 1 of feature 'a'"
    assert layout.describe_row("hashed2_4", 2, ("a", "b")) == "shared row 2 of feature 'b'"
    with pytest.raises(IndexError, match="table hashed2_4 has no row 3"):
        layout.describe_row("hashed2_4", 3, ("a", "b"))
