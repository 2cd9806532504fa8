"""Rows that are codes by the kernel, against plain PyTorch: the same bits."""

import pytest
import torch
from both_paths import kernel_calls, plain_path
from hypothesis import given
from hypothesis import strategies as st

import mixdim
from mixdim.kernels.decode import CodedTable, decode
from mixdim.storages.codes import GROUP, code_bytes, num_groups, quantize_values, values_at
from small_layers import generator_of

pytestmark = pytest.mark.skipif(not mixdim.kernels.available(), reason="no kernels")


@st.composite
def tables(draw):
    """A table of one to four blocks of one width, and what it was rounded from."""
    bits, dim = draw(st.sampled_from([8, 4])), draw(st.integers(1, 70))
    sizes = draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    generator = generator_of(draw(st.integers(0, 99)))
    scale = draw(st.sampled_from([1e-7, 0.1, 3e4]))  # float16 without a leading one, usual, large
    parts = [
        quantize_values(scale * torch.randn(size * dim, generator=generator), bits) for size in sizes
    ]
    starts, code, scale_at = [], 0, 0
    for size in sizes:
        starts.append([code * 8 // bits, scale_at])
        code, scale_at = code + code_bytes(size * dim, bits), scale_at + num_groups(size * dim, bits)
    codes, scales = (torch.cat([part[n] for part in parts]) for n in range(2))
    return CodedTable(codes, scales, torch.tensor(starts), bits, dim), sizes


def plainly(table, rows, blocks):
    places = rows[:, None] * table.dim + torch.arange(table.dim)
    first = table.starts[blocks]
    codes = values_at(table.codes, table.bits, first[:, :1] + places)
    return codes * table.scales[first[:, 1:] + places // GROUP[table.bits]]


@given(tables(), st.integers(0, 60), st.integers(0, 99))
def test_rows_of_any_blocks_have_the_bits_of_the_plain_path_with_any_number_of_threads(
    given_table, count, seed
):
    table, sizes = given_table
    generator = generator_of(seed)
    blocks = torch.randint(len(sizes), (count,), generator=generator)
    rows = (torch.rand(count, generator=generator) * torch.tensor(sizes)[blocks]).long()
    expected, threads = plainly(table, rows, blocks), torch.get_num_threads()
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            assert torch.equal(decode(table, rows, blocks), expected)
    finally:
        torch.set_num_threads(threads)
    # Of one block, and of as many rows of each block.
    assert torch.equal(
        decode(table, torch.arange(sizes[-1]), len(sizes) - 1),
        plainly(table, torch.arange(sizes[-1]), torch.full((sizes[-1],), len(sizes) - 1)),
    )
    least = torch.arange(min(sizes)).expand(len(sizes), -1)
    found = decode(table, least, slice(len(sizes)))
    every = torch.arange(len(sizes)).repeat_interleave(min(sizes))
    assert torch.equal(found.flatten(0, 1), plainly(table, least.flatten(), every))


@given(tables(), st.sampled_from([-1, -(2**63), 2**63 - 1, 2**62, 41 * 4]), st.integers(0, 3))
def test_a_row_or_block_that_is_not_there_is_refused_and_never_read(given_table, row, place):
    table, sizes = given_table
    rows = torch.zeros(4, dtype=torch.int64)
    rows[place] = row
    with pytest.raises(IndexError, match=f"row {row} is not in the table of codes"):
        decode(table, rows, 0)
    for block in (-1, len(sizes), 2**62):
        blocks = torch.zeros(4, dtype=torch.int64)
        blocks[place] = block
        with pytest.raises(IndexError, match="row 0 is not in"):
            decode(table, torch.zeros(4, dtype=torch.int64), blocks)
    short = table._replace(scales=table.scales[:0])
    with pytest.raises(IndexError, match="row 0 is not in"):
        decode(short, torch.zeros(1, dtype=torch.int64), 0)


@pytest.mark.parametrize("bits", [8, 4])
def test_a_layer_takes_it_and_answers_as_without_kernels(bits):
    plan = mixdim.plan({"user": 90, "item": 40}, temperature=0.4, base_dim=8)
    plan = plan.with_storage("user", mixdim.Hashed(8, 20))  # so that no kernel sees the whole layer
    layer = mixdim.FeatureEmbeddings(plan, padding_id=-1, generator=generator_of(0)).quantized(bits)
    ids = torch.stack([torch.randint(-1, n, (50,), generator=generator_of(n)) for n in (90, 40)], 1)
    values, offsets = ids.t().flatten(), torch.arange(0, 101, 2)

    def answers():
        return layer(ids), layer.bags(values, offsets), layer.dense_weight("item")

    with kernel_calls() as calls:
        found = answers()
    assert "decode" in calls
    with plain_path(), kernel_calls() as calls:
        for one, other in zip(found, answers(), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    assert calls == []
