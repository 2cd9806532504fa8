import numpy as np
import pytest

from mixdim.lab.theory.structure import (
    block_areas,
    checked_matrix,
    checked_probs,
    checked_ranks,
    checked_sizes,
    split_blocks,
)


def test_splitting_and_joining_gives_the_matrix_back():
    matrix = np.random.default_rng(0).random((6, 7))
    blocks = split_blocks(matrix, [1, 2, 3], [4, 3])
    assert [[block.shape for block in line] for line in blocks] == [
        [(1, 4), (1, 3)],
        [(2, 4), (2, 3)],
        [(3, 4), (3, 3)],
    ]
    assert (np.block(blocks) == matrix).all()
    assert [[block.size for block in line] for line in blocks] == block_areas([1, 2, 3], [4, 3]).tolist()


def test_a_matrix_of_the_wrong_shape_is_not_split():
    with pytest.raises(ValueError, match=r"must have shape \(3, 2\), got \(2, 3\)"):
        split_blocks(np.ones((2, 3)), [1, 2], [2])


@pytest.mark.parametrize(
    ("sizes", "error", "message"),
    [
        ([], ValueError, "row_sizes must be a non-empty list"),
        ([3, 0], ValueError, r"row_sizes\[1\] must be at least 1, got 0"),
        ([2.5], TypeError, r"row_sizes\[0\] must be a whole number"),
        ([[1]], ValueError, r"got shape \(1, 1\)"),
    ],
)
def test_bad_sizes_are_named(sizes, error, message):
    with pytest.raises(error, match=message):
        checked_sizes(sizes, "row_sizes")


@pytest.mark.parametrize(
    ("probs", "error", "message"),
    [
        ([[0.5, 0.4]], ValueError, "must sum to 1, got 0.9"),
        ([[1.5, -0.5]], ValueError, r"must not be negative, got -0.5 at \(0, 1\)"),
        ([[np.nan, 1.0]], ValueError, r"must be finite, got nan at \(0, 0\)"),
        ([[1.0]], ValueError, r"must have shape \(1, 2\), got \(1, 1\)"),
        ([["a", "b"]], TypeError, "must be numbers"),
    ],
)
def test_bad_probabilities_are_named(probs, error, message):
    with pytest.raises(error, match=message):
        checked_probs(probs, [3], [2, 2])


def test_thirds_sum_to_one_well_enough():
    assert checked_probs([[1 / 3, 1 / 3, 1 / 3]], [1], [1, 1, 1]).sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("ranks", "error", "message"),
    [
        ([[3, 1]], ValueError, r"block_ranks\[0, 0\] must be from 0 to 2, .* 4 x 2 block, got 3"),
        ([[1, -1]], ValueError, r"block_ranks\[0, 1\] must be from 0 to 3, .* got -1"),
        ([[1.0, 1.0]], TypeError, "block_ranks must be whole numbers"),
        ([[1]], ValueError, r"must have shape \(1, 2\), got \(1, 1\)"),
    ],
)
def test_bad_ranks_are_named(ranks, error, message):
    with pytest.raises(error, match=message):
        checked_ranks(ranks, [4], [2, 3])


def test_a_matrix_without_entries_is_refused():
    with pytest.raises(ValueError, match="matrix must be a matrix with rows and columns"):
        checked_matrix(np.ones((0, 3)), "matrix")
