import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixdim.lab.theory.matrices import (
    block_ranks,
    condition_number,
    flat_spectra,
    incoherence,
    is_rank_additive,
    random_block_matrix,
    ranges_are_independent,
)
from mixdim.lab.theory.structure import split_blocks


def generator(seed=0):
    return np.random.default_rng(seed)


def test_the_blocks_have_the_spectra_asked_for():
    spectra = [[[3.0, 1.0], [2.0]], [[], [5.0, 4.0, 0.5]]]
    matrix = random_block_matrix([4, 6], [5, 3], spectra, generator=generator())
    for line, of_line in zip(split_blocks(matrix, [4, 6], [5, 3]), spectra, strict=True):
        for block, values in zip(line, of_line, strict=True):
            found = np.linalg.svd(block, compute_uv=False)
            assert found[: len(values)] == pytest.approx(values)
            assert found[len(values) :] == pytest.approx(0, abs=1e-12)
    assert block_ranks(matrix, [4, 6], [5, 3]).tolist() == [[2, 1], [0, 3]]


def test_random_singular_vectors_favour_no_direction():
    draws = [random_block_matrix([1], [1], [[[1.0]]], generator=generator(s))[0, 0] for s in range(200)]
    assert 60 < np.sum(np.array(draws) > 0) < 140


def test_random_matrices_of_low_rank_are_rank_additive():
    ranks = [[2, 1], [1, 3]]
    matrix = random_block_matrix([20, 20], [15, 15], flat_spectra(ranks), generator=generator())
    assert is_rank_additive(matrix, [20, 20], [15, 15])
    assert np.linalg.matrix_rank(matrix) == 7


def test_blocks_too_small_for_their_ranks_are_not_rank_additive():
    matrix = random_block_matrix([2], [3, 3], flat_spectra([[2, 2]]), generator=generator())
    assert not is_rank_additive(matrix, [2], [3, 3])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.integers(0, 10**6),
)
def test_independent_ranges_and_rank_additivity_are_the_same(rows, columns, seed):
    """Sparse small whole numbers, so that both outcomes are frequent."""
    draw = generator(seed)
    matrix = draw.integers(-1, 2, (sum(rows), sum(columns))) * (draw.random() > draw.random(1))
    matrix = matrix * (draw.random(matrix.shape) < 0.4)
    assert ranges_are_independent(matrix, rows, columns) == is_rank_additive(matrix, rows, columns)


def test_incoherence_lies_between_its_bounds_and_is_the_smallest_that_holds():
    matrix = random_block_matrix([12], [5], flat_spectra([[2]]), generator=generator())
    left, _, right = np.linalg.svd(matrix)
    mu = incoherence(matrix)
    assert 1 <= mu <= 12 / 2
    slack_rows = mu * 2 / 12 - (left[:, :2] ** 2).sum(axis=1)
    slack_columns = mu * 2 / 5 - (right[:2] ** 2).sum(axis=0)
    assert min(slack_rows.min(), slack_columns.min()) == pytest.approx(0, abs=1e-9)


def test_incoherence_of_the_transpose_is_the_same():
    matrix = generator().standard_normal((7, 3))
    assert incoherence(matrix) == pytest.approx(incoherence(matrix.T))


def test_condition_number_ignores_what_is_rounding():
    assert condition_number(np.diag([6.0, 2.0, 1e-15])) == pytest.approx(3)
    assert condition_number([[7.0]]) == 1


@pytest.mark.parametrize("measure", [incoherence, condition_number])
def test_a_matrix_of_zeros_has_no_such_number(measure):
    with pytest.raises(ValueError, match="must not be all 0"):
        measure(np.zeros((2, 2)))


@pytest.mark.parametrize("measure", [incoherence, condition_number])
def test_nan_is_refused(measure):
    with pytest.raises(ValueError, match=r"matrix must be finite, got nan at \(0, 1\)"):
        measure([[1.0, np.nan]])


def test_ranks_above_the_block_size_are_refused():
    with pytest.raises(ValueError, match="from 0 to 2, the smaller side of a 2 x 5 block, got 3"):
        random_block_matrix([2], [5], flat_spectra([[3]]), generator=generator())


def test_ascending_spectra_are_refused():
    with pytest.raises(ValueError, match=r"spectra\[0\]\[0\] must be in descending order"):
        random_block_matrix([2], [5], [[[1.0, 2.0]]], generator=generator())
