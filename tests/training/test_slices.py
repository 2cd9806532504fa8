from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixdim.tasks import BINARY, RATING
from mixdim.training.slices import SLICES, measure_slices, thirds_of_popularity

# Small counts, so that there are ties, zeros and sums that fall exactly on a third.
count_lists = st.lists(st.integers(0, 6), min_size=1, max_size=30)


def thirds_by_loop(counts):
    """Walk the ids from the most popular on, with the share of the mass already passed."""
    total, passed, thirds = sum(counts), Fraction(0), [None] * len(counts)
    for row in sorted(range(len(counts)), key=lambda row: (-counts[row], row)):
        share = passed / total if total else 1
        thirds[row] = 0 if share < Fraction(1, 3) else 1 if share < Fraction(2, 3) else 2
        passed += counts[row]
    return thirds


@given(count_lists)
def test_thirds_follow_the_mass_of_more_popular_ids(counts):
    assert thirds_of_popularity(counts).tolist() == thirds_by_loop(counts)


@given(st.lists(st.integers(0, 2**55), min_size=1, max_size=30))
def test_thirds_of_huge_counts_are_exact(counts):
    assert thirds_of_popularity(np.array(counts, np.uint64)).tolist() == thirds_by_loop(counts)


@given(count_lists)
def test_fractional_counts_are_cut_like_whole_ones(counts):
    eighths = np.array(counts) / 8  # exact in float64
    np.testing.assert_array_equal(thirds_of_popularity(eighths), thirds_of_popularity(counts))


def test_ids_on_the_border_belong_to_the_later_third():
    assert thirds_of_popularity([1, 1, 1]).tolist() == [0, 1, 2]
    assert thirds_of_popularity([2, 2, 2, 2, 2, 2]).tolist() == [0, 0, 1, 1, 2, 2]


def test_one_query_more_or_less_is_seen_among_a_quintillion():
    third = 2**58 + 1  # float64 does not hold it
    assert thirds_of_popularity([third, third, third]).tolist() == [0, 1, 2]
    assert thirds_of_popularity([third, third, third - 1, 2]).tolist() == [0, 0, 1, 2]


def test_thirds_are_thirds_of_mass_not_of_ids():
    counts = 1000 / np.arange(1, 10_001)  # Zipf
    thirds = thirds_of_popularity(counts)
    mass = np.bincount(thirds, counts) / counts.sum()
    np.testing.assert_allclose(mass, 1 / 3, atol=0.02)
    sizes = np.bincount(thirds)
    assert sizes[0] < 30
    assert sizes[2] > 9000


def test_ids_never_queried_are_rare_even_when_nothing_was_queried():
    assert thirds_of_popularity([0, 5, 0]).tolist() == [2, 0, 2]
    assert thirds_of_popularity([0, 0]).tolist() == [2, 2]
    assert thirds_of_popularity([0.0]).tolist() == [2]


def test_a_lone_id_is_popular():
    assert thirds_of_popularity([1]).tolist() == [0]


def test_thirds_are_small_integers_in_the_order_of_the_slices():
    thirds = thirds_of_popularity([1, 3, 2])
    assert thirds.dtype == np.int8
    assert [SLICES[third] for third in thirds] == ["rare", "popular", "middle"]


def test_counts_that_are_not_counts_are_refused():
    with pytest.raises(ValueError, match="counts must not be empty"):
        thirds_of_popularity([])
    with pytest.raises(ValueError, match="counts must be finite and not negative, got -1 at 1"):
        thirds_of_popularity([1, -1])
    with pytest.raises(ValueError, match="counts must be finite and not negative, got nan at 0"):
        thirds_of_popularity([float("nan")])
    with pytest.raises(ValueError, match=r"counts must sum to less than 2\*\*61, got 2\.30584e\+18"):
        thirds_of_popularity([2**60, 2**60])


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 1), st.integers(0, 2)), max_size=30))
@pytest.mark.parametrize("task", [BINARY, RATING])
def test_a_slice_is_measured_as_if_its_rows_were_alone(task, rows):
    outputs, targets, thirds = (
        (list(column) for column in zip(*rows, strict=True)) if rows else ([],) * 3
    )
    answer = measure_slices(task, outputs, targets, thirds)
    assert list(answer) == list(SLICES)
    for third, name in enumerate(SLICES):
        alone = [(z, y) for z, y, t in rows if t == third]
        assert answer[name] == task.measure([z for z, _ in alone], [y for _, y in alone])


def test_an_empty_slice_is_there_with_no_rows():
    answer = measure_slices(RATING, [1.0], [1.0], thirds_of_popularity([0, 9])[[1]])
    assert answer["popular"]["rows"] == 1
    assert answer["middle"] == answer["rare"] == {"rows": 0, "mse": None, "rmse": None, "mae": None}


def test_an_error_counts_rows_of_the_whole_not_of_a_slice():
    with pytest.raises(ValueError, match="nan at row 2"):
        measure_slices(RATING, [1.0, 1.0, float("nan")], [0, 0, 0], [0, 1, 2])


def test_every_row_needs_a_third():
    with pytest.raises(ValueError, match=r"one entry for each of 2 rows, got shape \(1,\)"):
        measure_slices(RATING, [1.0, 1.0], [1.0, 1.0], [0])
    with pytest.raises(ValueError, match=r"one entry for each of 2 rows, got shape \(2, 1\)"):
        measure_slices(RATING, [1.0, 1.0], [1.0, 1.0], [[0], [1]])
    for wrong in (3, -1, 0.5):
        with pytest.raises(ValueError, match=f"third_of_row must be 0, 1 or 2, got {wrong}.* at row 1"):
            measure_slices(RATING, [1.0, 1.0], [1.0, 1.0], [0, wrong])
