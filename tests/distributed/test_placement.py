"""Placement and first weights: arithmetic that needs no TorchRec."""

import re
from pathlib import Path

import pytest
import torch

import mixdim
from mixdim.distributed.drawing import Drawing
from mixdim.distributed.optimizers import check_table_optimizer
from mixdim.distributed.placement import bytes_by_rank, can_be_cut, place_tables, rows_at
from mixdim.distributed.tables import tables_of
from mixdim.layer.layout import Layout

IMPORTS = r"^\s*(from|import) (torchrec|fbgemm_gpu)"


def test_one_file_alone_imports_torchrec():
    source = Path(mixdim.__file__).parent
    importing = [p.name for p in source.rglob("*.py") if re.search(IMPORTS, p.read_text(), re.MULTILINE)]
    assert importing == ["engine.py"]


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
        assert max(rank.tables for rank in found) <= sum(sharded) / world * 1.125


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
