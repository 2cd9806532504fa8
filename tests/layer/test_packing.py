import time

import torch
from hypothesis import given

import mixdim
from mixdim.layer.packing import pack
from strategies import plans


@given(plans())
def test_every_row_of_the_layer_has_one_row_of_a_table(plan):
    packing = pack(plan)
    seen = {width: [0] * rows for width, rows in packing.table_rows.items()}
    for block in packing.blocks:
        for row in range(block.start, block.end):
            seen[block.dim][row + block.shift] += 1
    assert all(count == 1 for counts in seen.values() for count in counts)
    assert [block.start for block in packing.blocks[1:]] == [block.end for block in packing.blocks[:-1]]


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
def test_slots_number_the_projections_of_a_width_with_whole_features_first(plan):
    packing = pack(plan)
    for width, count in packing.num_projections.items():
        assert width < plan.base_dim
        slots = [block.slot for block in packing.blocks if block.dim == width]
        assert sorted(slots) == list(range(count))
        assert [block.slot for block in packing.whole.get(width, ())] == list(
            range(len(packing.whole.get(width, ())))
        )


@given(plans())
def test_a_row_of_a_table_knows_its_feature_and_rank(plan):
    packing = pack(plan)
    found = sorted(
        packing.feature_row(width, row)
        for width, rows in packing.table_rows.items()
        for row in range(rows)
    )
    expected = [(f, rank) for f, feature in enumerate(plan.features) for rank in range(feature.rows)]
    assert found == expected


def test_whole_features_are_grouped_by_width_and_bands_by_feature():
    plan = mixdim.plan(
        {"a": 4, "b": 6, "c": 4},
        counts={"b": [9, 5, 1, 1, 1, 1]},
        bands={"b": 2},
        temperature=0,
        base_dim=2,
    )
    packing = pack(plan)
    assert {w: [b.feature for b in blocks] for w, blocks in packing.whole.items()} == {2: [0, 2]}
    assert {f: [b.size for b in blocks] for f, blocks in packing.bands.items()} == {1: [1, 5]}
    assert packing.table_rows == {2: 14}
    assert packing.num_projections == {}
