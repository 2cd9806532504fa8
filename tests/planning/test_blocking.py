from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mixdim import equal_mass_bands
from mixdim.planning.blocking import octave_bands, whole_feature


def bands_by_definition(counts, num_bands):
    """Alg. 3 in exact fractions: start a new band after a row that reaches the next share."""
    order = sorted(range(len(counts)), key=lambda row: (-counts[row], row))
    total = sum(counts)
    sizes, size, mass, share = [], 0, 0, 1
    for row in order:
        size += 1
        mass += counts[row]
        if total and share < num_bands and mass >= Fraction(share * total, num_bands):
            sizes.append(size)
            size = 0
            while share < num_bands and mass >= Fraction(share * total, num_bands):
                share += 1
    if size:
        sizes.append(size)
    return order, sizes


@given(st.lists(st.integers(0, 30), min_size=1, max_size=60), st.integers(1, 12))
def test_bands_follow_the_definition(counts, num_bands):
    bands = equal_mass_bands(counts, num_bands)
    order, sizes = bands_by_definition(counts, num_bands)
    assert bands.order.tolist() == order
    assert bands.block_sizes.tolist() == sizes


@given(st.lists(st.integers(0, 70), min_size=1, max_size=60))
def test_octaves_have_a_band_for_each_power_of_two(counts):
    bands = octave_bands(counts)
    order = sorted(range(len(counts)), key=lambda row: (-counts[row], row))
    assert bands.order.tolist() == order
    seen = [count for count in counts if count] or [1]
    # Rows that nobody asked for are with the rarest that somebody did.
    powers = [max(count, min(seen)).bit_length() for count in counts]
    expected = [powers.count(power) for power in sorted(set(powers), reverse=True)]
    assert bands.block_sizes.tolist() == expected
    assert bands.num_asked == len(expected)
    if any(counts):
        masses = [
            sum(c for c, p in zip(counts, powers, strict=True) if p == power)
            for power in sorted(set(powers), reverse=True)
        ]
        np.testing.assert_allclose(bands.block_probs, np.array(masses) / sum(counts))


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=60), st.integers(1, 12))
def test_no_row_is_lost_and_no_band_is_empty(counts, num_bands):
    bands = equal_mass_bands(counts, num_bands)
    assert sorted(bands.order.tolist()) == list(range(len(counts)))
    assert (bands.block_sizes >= 1).all()
    assert bands.block_sizes.sum() == len(counts)
    assert bands.num_blocks <= min(num_bands, len(counts))
    assert bands.num_asked == num_bands
    assert bands.block_starts.tolist() == [0, *np.cumsum(bands.block_sizes)[:-1]]
    assert bands.block_probs.sum() == pytest.approx(1)
    assert (np.diff(bands.row_probs) <= 1e-12).all(), "later bands are never more popular"


def test_a_row_heavier_than_a_band_has_it_alone_and_the_result_says_so():
    bands = equal_mass_bands([1, 100, 1, 1], num_bands=4)
    assert bands.block_sizes.tolist() == [1, 3]
    assert bands.block_probs.tolist() == pytest.approx([100 / 103, 3 / 103])
    assert str(bands) == "2 blocks (4 asked) of 1, 3 rows"


def test_unseen_rows_belong_to_the_last_band():
    bands = equal_mass_bands([0, 5, 0, 5, 0], num_bands=2)
    assert bands.order.tolist() == [1, 3, 0, 2, 4]
    assert bands.block_sizes.tolist() == [1, 4]


def test_fewer_rows_than_bands_gives_a_band_each():
    assert equal_mass_bands([1, 1, 1], num_bands=10).block_sizes.tolist() == [1, 1, 1]


def test_equal_counts_give_bands_of_nearly_equal_size_in_order_of_id():
    bands = equal_mass_bands(np.full(10, 7), num_bands=3)
    assert bands.block_sizes.tolist() == [4, 3, 3]
    assert bands.order.tolist() == list(range(10))


def test_without_any_queries_there_is_one_band():
    bands = equal_mass_bands([0, 0, 0], num_bands=8)
    assert bands.block_sizes.tolist() == [3]
    assert bands.row_probs.tolist() == pytest.approx([1 / 3])


def test_one_row_is_one_band():
    assert equal_mass_bands([5], num_bands=8).block_sizes.tolist() == [1]


@pytest.mark.parametrize(
    "counts",
    [np.array([3, 1, 2], np.uint8), np.array([3.0, 1.0, 2.0], np.float32), torch.tensor([3, 1, 2])],
)
def test_counts_of_any_number_type_are_sorted_descending(counts):
    bands = equal_mass_bands(counts, num_bands=2)
    assert bands.order.tolist() == [0, 2, 1]
    assert bands.block_sizes.tolist() == [1, 2]


def test_a_whole_feature_is_one_block_without_an_order():
    blocks = whole_feature(10)
    assert blocks.block_sizes.tolist() == [10]
    assert blocks.row_probs.tolist() == [0.1]
    assert blocks.order is None


@pytest.mark.parametrize(
    ("counts", "num_bands", "message"),
    [
        ([1, 2], 0, "num_bands must be at least 1, got 0"),
        ([1, -2], 2, "not negative, got -2 at 1"),
        ([1e308, 1e308], 2, "sum to less than"),
        ([2**62, 2**62], 2, "sum to less than"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_bad_counts_and_bands_are_refused(counts, num_bands, message):
    with pytest.raises(ValueError, match=message):
        equal_mass_bands(counts, num_bands)
