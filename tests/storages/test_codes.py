import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mixdim.storages.codes import RowCode, check_finite
from mixdim.storages.levels import BITS, levels_of
from mixdim.storages.steps import Spread
from small_layers import generator_of

codes_of_rows = st.lists(st.sampled_from(BITS), min_size=1, max_size=40).map(
    lambda bits: RowCode(tuple(sorted(bits, reverse=True)))
)


def random_codes(code, rows, seed):
    generator = generator_of(seed)
    return torch.stack([torch.randint(2**own, (rows,), generator=generator) for own in code.bits], 1)


@given(codes_of_rows, st.integers(0, 20), st.integers(0, 99))
def test_codes_are_one_stream_of_bits_a_row_and_a_row_begins_with_a_byte(code, rows, seed):
    codes = random_codes(code, rows, seed)
    packed = code.pack(codes)
    assert packed.dtype == torch.uint8
    assert packed.shape == (rows, -(-sum(code.bits) // 8))
    for row, held in zip(codes.tolist(), packed.numpy(), strict=True):
        bits = [c >> n & 1 for c, own in zip(row, code.bits, strict=True) for n in range(own)]
        stream = np.unpackbits(held, bitorder="little").tolist()
        assert stream == bits + [0] * (len(stream) - len(bits))


@given(codes_of_rows, st.integers(1, 20), st.integers(0, 99))
def test_codes_that_were_packed_are_read_as_they_were(code, rows, seed):
    codes = random_codes(code, rows, seed)
    found = code.unpack(code.pack(codes).flatten(), torch.arange(rows) * code.row_bytes)
    assert torch.equal(found.to(torch.int64), codes)
    levels = code.levels(found)
    assert levels.dtype == torch.float32
    for column, own in enumerate(code.bits):
        expected = levels_of(own)[codes[:, column].numpy()]
        np.testing.assert_array_equal(levels[:, column].numpy(), expected)


finite = st.floats(-4e5, 4e5, width=32) | st.floats(-(2**-20), 2**-20, width=32)


@given(arrays.arrays(np.float64, (9, 7), elements=finite), st.integers(0, 99))
def test_every_number_gets_the_nearest_level(values, seed):
    steps = torch.rand(7, generator=generator_of(seed), dtype=torch.float64)
    code = RowCode(BITS[::-1])
    codes = code.nearest(torch.from_numpy(values), steps)
    found = code.levels(codes).double().numpy() * steps.numpy()
    for column, own in enumerate(code.bits):
        every = levels_of(own).astype(np.float64) * float(steps[column])
        least = np.abs(values[:, column, None] - every).min(axis=1)
        np.testing.assert_allclose(np.abs(values[:, column] - found[:, column]), least, rtol=1e-6)


def spread_of(values, weights=None):
    values = torch.as_tensor(values, dtype=torch.float64)
    weights = torch.ones(len(values), dtype=torch.float64) if weights is None else weights
    scales = ((weights @ values**2) / weights.sum()).sqrt()
    spread, parts = Spread(values.shape[1]), torch.where(scales > 0, values / scales, 0.0).float()
    for half in (slice(0, 100), slice(100, None)):
        spread.add(parts[half], weights[half])
    return spread, scales


def error(values, weights, step, bits):
    every = step * levels_of(bits).astype(np.float64)
    nearest = every[np.searchsorted((every[1:] + every[:-1]) / 2, values)]
    return (weights * (values - nearest) ** 2).sum()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("tail", [2.5, 5, 1000])
def test_a_step_is_nearly_the_best_of_all_whatever_the_tail(bits, tail):
    rng = np.random.default_rng(bits)
    values, weights = rng.standard_t(tail, 20_000), rng.exponential(size=20_000)
    spread, scales = spread_of(1e-3 * values[:, None], torch.from_numpy(weights))
    found = float(spread.steps((bits,)) * scales) * 1e3
    scale = np.sqrt((weights * values**2).sum() / weights.sum())
    best = min(error(values, weights, scale * 2**power, bits) for power in np.arange(-1, 3, 0.03))
    assert error(values, weights, found, bits) <= 1.05 * best


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_refused(wrong):
    with pytest.raises(ValueError, match=f"must be finite, got {wrong}"):
        check_finite(torch.tensor([[1.0, wrong]]))
