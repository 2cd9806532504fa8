import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mixdim.storages.codes import (
    CODES,
    GROUP,
    LARGEST,
    check_finite,
    code_bytes,
    num_groups,
    quantize_values,
    values_at,
)

finite = st.floats(-4e5, 4e5, width=32) | st.floats(-(2**-20), 2**-20, width=32)


@given(arrays.arrays(np.float32, st.integers(1, 200), elements=finite), st.sampled_from([8, 4]))
def test_a_value_is_at_most_half_a_scale_away_and_no_code_overflows(values, bits):
    codes, scales = quantize_values(torch.from_numpy(values).double(), bits)
    assert (codes.dtype, scales.dtype) == (getattr(torch, CODES[bits]), torch.float16)
    assert codes.shape == (code_bytes(len(values), bits),)
    assert scales.shape == (num_groups(len(values), bits),)
    assert codes.nbytes == -(-len(values) * bits // 8)
    whole = values_at(codes, bits, torch.arange(len(values))).numpy().astype(np.float64)
    assert (np.abs(whole) <= LARGEST[bits]).all()
    scale = scales.numpy().astype(np.float64).repeat(GROUP[bits])[: len(values)]
    assert (np.abs(whole * scale - values) <= scale / 2 * (1 + 1e-12)).all()


@given(st.integers(1, 150), st.integers(0, 1000), st.sampled_from([8, 4]))
def test_what_was_rounded_is_rounded_to_itself(count, seed, bits):
    values = torch.randn(count, generator=torch.Generator().manual_seed(seed))
    codes, scales = quantize_values(values, bits)
    places = torch.arange(count)
    again = quantize_values(values_at(codes, bits, places) * scales[places // GROUP[bits]], bits)
    assert torch.equal(again[0], codes)
    assert torch.equal(again[1], scales)


def test_two_codes_of_4_bits_share_a_byte_and_the_first_is_the_lower():
    codes, scales = quantize_values(torch.tensor([7.0, -7.0, 3.0]), bits=4)
    assert scales.tolist() == [1.0]
    assert codes.tolist() == [(7 + 8) + 16 * (-7 + 8), 3 + 8]


def test_every_group_has_its_own_scale():
    values = torch.cat([torch.full((64,), 0.1), torch.full((1,), 1e3)])
    codes, scales = quantize_values(values, bits=8)
    assert codes.tolist() == [127] * 65
    torch.testing.assert_close(
        scales.double() * 127, torch.tensor([0.1, 1e3]).double(), rtol=1e-2, atol=0
    )


def test_zeros_stay_zeros():
    codes, scales = quantize_values(torch.zeros(5), bits=8)
    assert not codes.any()
    assert not scales.any()


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_refused(wrong):
    with pytest.raises(ValueError, match=f"must be finite, got {wrong}"):
        quantize_values(torch.tensor([1.0, wrong]), bits=8)
    with pytest.raises(ValueError, match="must be finite"):
        check_finite(torch.tensor([[wrong]]))


def test_numbers_beyond_the_largest_scale_are_refused():
    assert quantize_values(torch.tensor([65504.0 * 7]), bits=4)[1].tolist() == [65504.0]
    with pytest.raises(ValueError, match="must be within 458528, got 458600"):
        quantize_values(torch.tensor([458600.0]), bits=4)
