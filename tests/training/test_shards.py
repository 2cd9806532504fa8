"""Tensors cut into rows of many processes, packed or not, and back: against the whole tensor."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from mixdim.training.checkpoint import open_checkpoint, write_checkpoint
from mixdim.training.packed_rows import PackedRows
from mixdim.training.shards import DTYPES, Shard, in_memory, write_tensors
from thread_group import as_ranks


@given(st.integers(1, 300), st.integers(1, 9), st.integers(1, 3), st.integers(1, 5))
def test_a_block_that_is_put_in_pieces_into_shares_is_taken_whole(size, dim, pieces, world):
    packed = PackedRows(size, dim)
    block = torch.arange(1.0, size * dim + 1).view(size, dim)
    table, found = torch.zeros(packed.shape), torch.zeros(size, dim)
    share, at_once = -(-packed.rows // world), -(-size // pieces // 4) * 4
    for rank in range(world):
        local = table[rank * share : (rank + 1) * share]
        for first in range(0, size, at_once):
            packed.put(first, block[first : first + at_once], local, rank * share)
        packed.take(local, rank * share, found)
    assert torch.equal(found, block)
    assert packed.width % 4 == 0
    assert int((table != 0).sum()) == block.numel()
    assert sorted(packed.places(0, size).tolist()) == list(range(packed.rows))


def test_packing_wastes_less_than_a_stored_row_of_a_table():
    for size in (1, 7, 1000):
        for dim in (1, 2, 4, 8):
            packed = PackedRows(size, dim)
            assert 0 <= packed.rows * packed.width - size * dim < 4


@pytest.mark.parametrize("world", [2, 3, 8])
@pytest.mark.parametrize("rows", [1000, 2**16, 1_013_122])
def test_popular_rows_are_spread_over_all_shares(rows, world):
    packed, share = PackedRows(rows, 4), -(-rows // world)
    lookups = 1 / torch.arange(1.0, rows + 1, dtype=torch.float64)  # Zipf
    holder = packed.places(0, rows) // share
    mass = torch.zeros(world, dtype=torch.float64).index_add(0, holder, lookups) / lookups.sum()
    most = 1 / world + float(lookups[0] / lookups.sum())  # whoever holds the first row has that
    assert mass.max() < most
    in_order = torch.arange(rows) // share
    assert lookups[in_order == 0].sum() / lookups.sum() > mass.max() + 0.15


def test_numbers_of_rows_lie_in_the_order_of_the_rows():
    wide, one = PackedRows(70, 6), PackedRows(70, 1, quantum=1)
    assert (one.shape, one.stride) == ((70, 1), wide.stride)


BLOCKS = st.lists(st.integers(1, 40), min_size=1, max_size=4)


def cut(rows, world, how, rank):
    """The stored rows that a rank holds: of every table the same share, or whole tables by turns."""
    if how == "whole":
        return 0, 0
    share = -(-rows // world)
    return min(rank * share, rows), min((rank + 1) * share, rows)


def shards_of_rank(tensor, blocks, world, rank, how):
    """What a rank holds of a tensor whose blocks are packed tables."""
    if how == "plain":
        return tensor
    shards, first = [], 0
    for number, size in enumerate(blocks):
        packed = PackedRows(size, tensor.shape[1])
        table = torch.zeros(packed.shape)
        packed.put(0, tensor[first : first + size], table, 0)
        begin, end = cut(packed.rows, world, how, rank)
        if how == "whole" and number % world == rank:
            begin, end = 0, packed.rows
        if how == "everywhere":
            begin, end = 0, packed.rows
        shards.append(Shard(table[begin:end], tuple(tensor.shape), first, packed, begin))
        first += size
    return shards


WAYS = ["plain", "rows", "whole", "everywhere"]


@given(
    BLOCKS,
    st.integers(1, 6),
    st.tuples(st.integers(1, 3), st.sampled_from(WAYS)),
    st.tuples(st.integers(1, 3), st.sampled_from(WAYS)),
)
def test_what_any_number_of_ranks_wrote_is_read_by_any_other(
    tmp_path_factory, blocks, dim, before, after
):
    rows, path = sum(blocks), tmp_path_factory.mktemp("shards") / "checkpoint"
    tensor = torch.arange(1.0, rows * dim + 1).view(rows, dim)

    def write(group):
        held = shards_of_rank(tensor, blocks, *before[:1], group.rank, before[1])
        write_checkpoint(path, {"t": held, "n": torch.tensor(7)}, {}, step=3, group=group)

    assert as_ranks(before[0], write) == [None] * before[0]
    found = open_checkpoint(path)
    assert sorted(file.name for file in path.iterdir()) == [
        *(f"rank-{rank:05d}.safetensors" for rank in range(before[0])),
        "state.json",
    ]
    assert found.step == 3
    assert torch.equal(found.tensors["t"].read(), tensor)
    assert found.tensors["n"].read() == 7
    for rank in range(after[0]):
        held = shards_of_rank(tensor, blocks, after[0], rank, after[1])
        for expected in [Shard(held, tuple(tensor.shape))] if after[1] == "plain" else held:
            target = expected._replace(tensor=torch.zeros_like(expected.tensor))
            assert found.tensors["t"].has_block(target)
            found.tensors["t"].fill(target)
            assert torch.equal(target.tensor, expected.tensor)


def test_a_packed_block_is_read_some_rows_at_a_time(monkeypatch, tmp_path):
    monkeypatch.setattr("mixdim.training.shards.ROWS_AT_ONCE", 4)
    tensor = torch.arange(1.0, 103).view(51, 2)
    for how in ("plain", "rows"):
        write_checkpoint(tmp_path / how, {"t": shards_of_rank(tensor, [20, 31], 1, 0, how)}, {})
        found = open_checkpoint(tmp_path / how).tensors["t"]
        assert torch.equal(found.read(), tensor)
        for expected in shards_of_rank(tensor, [20, 31], 1, 0, "rows"):
            target = expected._replace(tensor=torch.zeros_like(expected.tensor))
            found.fill(target)
            assert torch.equal(target.tensor, expected.tensor)


def test_a_part_of_a_tensor_is_read_whatever_holds_it(tmp_path):
    tensor = torch.arange(1.0, 103).view(51, 2)
    for how in ("plain", "rows"):
        write_checkpoint(tmp_path / how, {"t": shards_of_rank(tensor, [20, 31], 1, 0, how)}, {})
        for first, last in ((0, 7), (15, 33), (20, 51), (50, 51)):
            target = Shard(torch.zeros(last - first, 2), (51, 2), first)
            open_checkpoint(tmp_path / how).tensors["t"].fill(target)
            assert torch.equal(target.tensor, tensor[first:last])


def test_blocks_that_are_cut_elsewhere_are_no_blocks_of_a_tensor(tmp_path):
    tensor = torch.ones(51, 2)
    write_checkpoint(tmp_path / "one", {"t": shards_of_rank(tensor, [20, 31], 1, 0, "rows")}, {})
    others = shards_of_rank(tensor, [21, 30], 1, 0, "rows")
    found = open_checkpoint(tmp_path / "one").tensors["t"]
    assert [found.has_block(shard) for shard in others] == [False, False]


def test_a_copy_in_memory_stays_what_it_was():
    tensor = torch.arange(6.0).view(3, 2)
    kept, number = in_memory(tensor), in_memory(torch.tensor(4))
    target = Shard(tensor, (3, 2))
    tensor.zero_()
    kept.fill(target)
    assert tensor.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert number.read() == 4


def test_a_file_is_what_the_library_reads_and_every_type_comes_back(tmp_path):
    tensors = {
        str(dtype): torch.arange(6).to(dtype).reshape(2, 3)
        for dtype in DTYPES
        if dtype not in (torch.float8_e4m3fn, torch.float8_e5m2)  # torch.equal knows none
    }
    tensors |= {"number": torch.tensor(3.0), "none": torch.empty(0, 3), "turned": torch.ones(2, 3).t()}
    write_tensors(tmp_path / "file", tensors)
    found = load_file(tmp_path / "file")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name], tensor)
