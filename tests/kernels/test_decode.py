"""Rows that are codes by the kernel, against plain PyTorch: the same bits."""

import pytest
import torch
from both_paths import kernel_calls, plain_path
from hypothesis import given
from hypothesis import strategies as st

import mixdim
from mixdim.kernels.decode import CodedTable, decode
from mixdim.storages.codes import RowCode, all_levels
from mixdim.storages.levels import BITS
from small_layers import generator_of

pytestmark = pytest.mark.skipif(not mixdim.kernels.available(), reason="no kernels")


@st.composite
def codes_of_rows(draw):
    """The bits of any directions: alike, or each its own, falling."""
    if draw(st.booleans()):
        return RowCode((draw(st.sampled_from(BITS)),) * draw(st.integers(1, 70)))
    bits = draw(st.lists(st.sampled_from(BITS), min_size=1, max_size=30))
    return RowCode(tuple(sorted(bits, reverse=True)))


@st.composite
def tables(draw):
    """A table of one to four blocks of one code, of any bytes, with or without a mean."""
    code, mean = draw(codes_of_rows()), draw(st.booleans())
    sizes = draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    generator, places, first = generator_of(draw(st.integers(0, 99))), [], draw(st.integers(0, 9))
    for size in sizes:
        places.append([first, size])
        first += size * code.row_bytes
    codes = torch.randint(256, (first,), dtype=torch.uint8, generator=generator)
    scale = draw(st.sampled_from([1e-7, 0.1, 3e4]))  # float16 without a leading one, usual, large
    steps = (scale * torch.randn(len(sizes), code.dim, generator=generator)).clamp(-6e4, 6e4)  # finite
    found = CodedTable(codes, steps.half(), torch.tensor(places), all_levels(), code.bits, mean)
    return found, sizes


def plainly(table, rows, blocks):
    code = RowCode(table.bits)
    found = code.levels(code.unpack(table.codes, table.places[blocks, 0] + rows * code.row_bytes))
    found = found * table.steps[blocks].float()
    return torch.cat([found, torch.ones(len(found), table.mean)], dim=1)


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


@given(tables(), st.data())
def test_a_table_that_ends_too_early_or_says_it_is_longer_is_never_read(given_table, data):
    table, sizes = given_table
    last, none = len(sizes) - 1, torch.zeros(1, dtype=torch.int64)
    places = table.places.clone()
    places[last, data.draw(st.integers(0, 1))] = data.draw(
        st.sampled_from([-1, -(2**63), 2**63 - 1, 2**62, len(table.codes) + 1])
    )
    damaged = (
        table._replace(codes=table.codes[:-1]),
        table._replace(codes=table.codes[:0]),
        table._replace(steps=table.steps.view(-1)[:-1]),
        table._replace(levels=table.levels[:-1]),
        table._replace(places=places),
    )
    for wrong in damaged:
        with pytest.raises(IndexError, match="row 0 is not in the table of codes"):
            decode(wrong, none, last)


@pytest.mark.parametrize("bits", BITS)
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
