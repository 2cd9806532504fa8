from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mixdim import equal_mass_bands
from mixdim.planning.bands import Pieces, candidate_cuts, octave_bands, whole_feature


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


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.integers(1, 400))
def test_more_bands_than_rows_follow_the_definition_too(counts, num_bands):
    assert (
        equal_mass_bands(counts, num_bands).block_sizes.tolist()
        == (bands_by_definition(counts, num_bands)[1])
    )


@pytest.mark.parametrize("num_bands", [10**11, 10**15])
@pytest.mark.parametrize("counts", [[7, 0, 10**10, 1], [0.5, 3.5, 0.0]])
def test_a_billion_bands_take_no_longer_than_the_rows(counts, num_bands):
    bands = equal_mass_bands(counts, num_bands)
    assert bands.block_sizes.tolist() == [1] * len(counts)
    assert bands.num_requested == num_bands


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
    assert bands.num_requested == len(expected)
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
    assert bands.num_requested == num_bands
    assert bands.block_starts.tolist() == [0, *np.cumsum(bands.block_sizes)[:-1]]
    assert bands.block_probs.sum() == pytest.approx(1)
    assert (np.diff(bands.row_probs) <= 1e-12).all(), "later bands are never more popular"


def test_a_row_heavier_than_a_band_has_it_alone_and_the_result_says_so():
    bands = equal_mass_bands([1, 100, 1, 1], num_bands=4)
    assert bands.block_sizes.tolist() == [1, 3]
    assert bands.block_probs.tolist() == pytest.approx([100 / 103, 3 / 103])
    assert str(bands) == "2 blocks (4 requested) of 1, 3 rows"


@pytest.mark.parametrize(
    ("counts", "num_bands", "order", "sizes"),
    [
        ([0, 5, 0, 5, 0], 2, [1, 3, 0, 2, 4], [1, 4]),  # unseen rows belong to the last band
        ([1, 1, 1], 10, [0, 1, 2], [1, 1, 1]),  # fewer rows than bands
        ([7] * 10, 3, list(range(10)), [4, 3, 3]),  # equal counts: nearly equal sizes, in order of id
        ([0, 0, 0], 8, [0, 1, 2], [3]),  # nothing was queried
        ([5], 8, [0], [1]),
    ],
)
def test_bands_at_their_edges(counts, num_bands, order, sizes):
    bands = equal_mass_bands(counts, num_bands)
    assert (bands.order.tolist(), bands.block_sizes.tolist()) == (order, sizes)
    assert sum(bands.row_probs * sizes) == pytest.approx(1)


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


@pytest.mark.parametrize("bands", [1, 2, 3, 8, "octaves"])
def test_every_candidate_cut_is_of_ranges_of_popularity(bands):
    counts = np.array([0, 5, 900, 3, 3, 0, 70, 1, 1, 8])
    pieces = candidate_cuts(counts, bands)
    assert len(set(pieces.cuts)) == len(pieces.cuts)
    assert pieces.cuts[0] == (0,)
    for number, ids in enumerate(pieces.ids()):
        assert ids.tolist() == np.flatnonzero(pieces.of_id == number).tolist()
    for cut in pieces.cuts:
        band = pieces.band_of_id(cut)
        assert pieces.needs_map(cut) == (len(cut) > 1)
        assert len(set(band)) == len(cut) <= (10 if bands == "octaves" else bands)
        assert all(counts[band == a].min() >= counts[band == a + 1].max() for a in range(len(cut) - 1))
    if bands == "octaves":
        assert pieces.band_of_id(pieces.cuts[-1]).tolist() == [6, 3, 0, 4, 4, 6, 1, 5, 5, 2]


def test_cuts_of_ids_in_order_of_popularity_need_no_map():
    pieces = candidate_cuts(np.array([900, 70, 70, 3, 0]), 4)
    assert len(pieces.cuts) > 1
    assert not any(pieces.needs_map(cut) for cut in pieces.cuts)


def test_blocks_are_one_way_to_cut_with_any_number_of_bands():
    counts = np.random.default_rng(0).permutation(np.arange(1, 601))
    blocks = equal_mass_bands(counts, num_bands=400)
    pieces = Pieces.of_blocks(blocks)
    assert blocks.num_blocks > 256
    edges = [*blocks.block_starts, len(counts)]
    for (start, end), ids in zip(pairwise(edges), pieces.ids(), strict=True):
        assert ids.tolist() == sorted(blocks.order[start:end])
    assert pieces.band_of_id(pieces.cuts[0]).tolist() == pieces.of_id.tolist()
    assert Pieces.of_blocks(whole_feature(3)).ids()[0].tolist() == [0, 1, 2]
