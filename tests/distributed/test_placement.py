"""Folding and placement: arithmetic that needs no TorchRec."""

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mixdim
from mixdim.distributed.drawing import Drawing
from mixdim.distributed.optimizers import check_table_optimizer
from mixdim.distributed.placement import bytes_by_rank, can_be_cut, place_tables, rows_at
from mixdim.distributed.tables import tables_of
from mixdim.layer.layout import Layout
from mixdim.training.packed_rows import PackedRows

IMPORTS = r"^\s*(from|import) (torchrec|fbgemm_gpu)"


def test_one_file_alone_imports_torchrec():
    source = Path(mixdim.__file__).parent
    importing = [p.name for p in source.rglob("*.py") if re.search(IMPORTS, p.read_text(), re.MULTILINE)]
    assert importing == ["engine.py"]


@given(st.integers(1, 300), st.integers(1, 9), st.integers(1, 3), st.integers(1, 5))
def test_a_block_that_is_put_in_pieces_into_shares_is_taken_whole(size, dim, pieces, world):
    layout = PackedRows(size, dim)
    block = torch.arange(1.0, size * dim + 1).view(size, dim)
    table = torch.zeros(layout.shape)
    share = -(-layout.rows // world)
    at_once = -(-size // pieces // 4) * 4
    for rank in range(world):
        local = table[rank * share : (rank + 1) * share]
        for first in range(0, size, at_once):
            layout.put(first, block[first : first + at_once], local, rank * share)
    found = torch.zeros_like(block)
    for rank in range(world):
        layout.take(table[rank * share : (rank + 1) * share], rank * share, found)
    assert torch.equal(found, block)
    assert layout.width % 4 == 0
    assert int((table != 0).sum()) == block.numel()
    assert sorted(layout.places(0, size).tolist()) == list(range(layout.rows))


def test_folding_wastes_less_than_a_stored_row_of_a_table():
    for size in (1, 7, 1000):
        for dim in (1, 2, 4, 8):
            layout = PackedRows(size, dim)
            assert 0 <= layout.rows * layout.width - size * dim < 4


@pytest.mark.parametrize("world", [2, 3, 8])
@pytest.mark.parametrize("rows", [1000, 2**16, 10_131_227])
def test_popular_rows_are_spread_over_all_shares(rows, world):
    layout, share = PackedRows(rows, 4), -(-rows // world)
    asked = 1 / torch.arange(1.0, rows + 1, dtype=torch.float64)  # Zipf
    holder = layout.places(0, rows) // share
    mass = torch.zeros(world, dtype=torch.float64).index_add(0, holder, asked) / asked.sum()
    assert mass.max() < 1 / world + float(asked[0] / asked.sum())  # whoever holds the first row has that
    in_order = torch.arange(rows) // share
    assert asked[in_order == 0].sum() / asked.sum() > mass.max() + 0.15


def test_tables_are_drawn_some_rows_at_a_time_and_are_those_of_the_plain_layer(monkeypatch):
    monkeypatch.setattr("mixdim.distributed.drawing.NUMBERS_AT_ONCE", 64)
    plan = mixdim.plan({"x": 301, "y": 50, "z": 3}, temperature=0, base_dim=20)
    plan = plan.with_storage("x", mixdim.Rows(1)).with_storage("y", mixdim.Rows(6))
    layer = mixdim.FeatureEmbeddings(plan, generator=torch.Generator().manual_seed(4))
    drawing = Drawing(layer.layout.blocks, 20, "xavier", torch.Generator().manual_seed(4))
    for block, projection in drawing.projections():
        assert torch.equal(projection, layer.tables().of_block(block).parts(block)["projection"])
    drawn = {}
    for block, first, rows in drawing.tables():
        assert rows.numel() <= max(64, 4 * rows.shape[1])
        assert first == sum(map(len, drawn.setdefault(block, [])))
        drawn[block].append(rows)
    for block, parts in drawn.items():
        assert torch.equal(torch.cat(parts), layer.tables().of_block(block).parts(block)["table"])
    assert [len(parts) for parts in drawn.values()] == [5, 7, 1]


def criteo_like():
    sizes = {"a": 10_000_000, "b": 6_000_000, "c": 300_000, "d": 1000, "e": 3}
    plan = mixdim.plan(sizes, temperature=0, base_dim=16)
    return plan.with_storage("a", mixdim.Rows(1)).with_storage("b", mixdim.Rows(2))


@pytest.mark.parametrize("sharding", ["auto", "table_wise", "row_wise"])
@pytest.mark.parametrize("world", [1, 2, 5])
def test_every_row_of_every_table_is_held_once_or_by_all(sharding, world):
    plan = criteo_like()
    tables = tables_of(Layout.of(plan), list(plan))
    places = place_tables(tables, world, sharding=sharding)
    for table in tables:
        shares = [rows_at(table, places[table.name], rank, world) for rank in range(world)]
        held = sum(last - first for first, last in shares)
        copies = world if places[table.name].kind == "data_parallel" else 1
        assert held == copies * table.layout.rows
        assert (places[table.name].kind == "data_parallel") == (table.nbytes < 2**20)
    found = bytes_by_rank(plan, world, sharding=sharding)
    sharded = [table.nbytes for table in tables if places[table.name].kind != "data_parallel"]
    assert sum(rank.tables for rank in found) == sum(rank.state for rank in found) == sum(sharded)
    if sharding != "table_wise":
        assert max(rank.tables for rank in found) <= sum(sharded) / world * 1.5


def test_a_table_with_too_few_rows_for_a_rank_is_not_cut():
    assert [can_be_cut(rows, 2) for rows in (1, 2, 3)] == [False, True, True]
    assert [can_be_cut(rows, 4) for rows in (3, 4, 5, 6, 7, 9, 10)] == [
        *(False, True, False, False, True, False, True),
    ]
    for rows in range(1, 50):
        for world in range(2, 9):
            share = -(-rows // world)
            sizes = [max(0, min((rank + 1) * share, rows) - rank * share) for rank in range(world)]
            assert can_be_cut(rows, world) == (0 not in sizes)


def test_what_torchrec_cannot_do_is_refused_in_a_line():
    plan = mixdim.plan({"x": 5000, "y": 3}, temperature=0, base_dim=4)
    plan = plan.with_storage("x", mixdim.Rows(1))
    tables = tables_of(Layout.of(plan), list(plan))
    with pytest.raises(ValueError, match=r"optimizer must be one of sgd, .* on a CPU, got 'amsgrad'"):
        check_table_optimizer("amsgrad", tables, list(plan))
    with pytest.raises(ValueError, match=r"feature 'x' has 4 rows of width 1 in each: use 'adagrad'"):
        check_table_optimizer("rowwise_adagrad", tables, list(plan))
    with pytest.raises(ValueError, match=r"sharding must be one of auto, .*, got 'columns'"):
        place_tables(tables, 2, sharding="columns")
    hashed = plan.with_storage("x", mixdim.Hashed(4, buckets=7))
    with pytest.raises(ValueError, match=r"feature 'x' is stored as Hashed.*narrow blocks only"):
        tables_of(Layout.of(hashed), list(hashed))
