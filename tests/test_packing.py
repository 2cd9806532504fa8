from hypothesis import given

import mixdim
from mixdim.packing import pack
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
