"""Placement and first weights: arithmetic that needs no TorchRec."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import mixdim
from mixdim.distributed.optimizers import check_table_optimizer
from mixdim.distributed.placement import bytes_by_rank, can_be_cut, place_tables, rows_at
from mixdim.distributed.tables import tables_of
from mixdim.layer.layout import Layout
from mixdim.storages.init import Uniform
from mixdim.training.packed_rows import PackedRows

IMPORTS = r"^\s*(from|import) (torchrec|fbgemm_gpu)"


def test_one_file_alone_imports_torchrec():
    source = Path(mixdim.__file__).parent
    importing = [p.name for p in source.rglob("*.py") if re.search(IMPORTS, p.read_text(), re.MULTILINE)]
    assert importing == ["engine.py"]


@pytest.mark.parametrize(
    ("size", "dim"), [(301, 1), (50, 2), (51, 2), (50, 3), (50, 6), (7, 20), (1, 1)]
)
def test_a_rank_draws_only_the_rows_it_holds_and_they_are_those_of_the_plain_layer(
    size, dim, monkeypatch
):
    monkeypatch.setattr("mixdim.training.packed_rows.NUMBERS_AT_ONCE", 64)
    packed, drawn, asked = PackedRows(size, dim), Uniform(key=5, bound=0.5), 0

    def rows(numbers, width):
        nonlocal asked
        asked += len(numbers)
        assert len(numbers) * width <= max(64, width)
        return drawn.rows(numbers, width)

    plain, whole = torch.empty(size, dim), torch.zeros(packed.shape)
    drawn.fill(plain)
    packed.put(0, plain, whole, 0)
    cuts = [0, packed.rows // 3, packed.rows // 2, packed.rows]
    for first, end in pairwise(cuts):
        held = torch.zeros(end - first, packed.width)
        packed.fill(rows, held, first)
        assert torch.equal(held, whole[first:end])
    assert asked == packed.rows


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
