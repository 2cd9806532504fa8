import numpy as np
import pytest

from mixdim.lab.theory.factorization import complete_als, complete_sgd, factor_blocks, factor_exactly
from mixdim.lab.theory.matrices import flat_spectra, random_block_matrix
from mixdim.lab.theory.sampling import sample_entries
from mixdim.lab.theory.structure import split_blocks

COMPLETIONS = [complete_sgd, complete_als]


def distance(factors, matrix):
    return np.linalg.norm(factors.left @ factors.right.T - matrix) / np.linalg.norm(matrix)


@pytest.mark.parametrize("complete", COMPLETIONS)
@pytest.mark.parametrize(("rank", "share"), [(1, 0.2), (3, 0.4)])
def test_enough_entries_give_the_whole_matrix(complete, rank, share):
    generator = np.random.default_rng(0)
    spectrum = np.linspace(3, 1, rank)
    matrix = random_block_matrix([60], [50], [[spectrum]], generator=generator)
    seen = generator.random(matrix.shape) < share
    hidden = np.where(seen, matrix, np.nan)  # a method that peeks fails
    assert distance(complete(hidden, seen, rank), matrix) < 1e-7


@pytest.mark.parametrize("complete", COMPLETIONS)
def test_a_matrix_seen_completely_is_factored(complete):
    matrix = random_block_matrix([9], [4], [[[2.0, 1.0]]], generator=np.random.default_rng(1))
    assert distance(complete(matrix, np.ones((9, 4), bool), 2), matrix) < 1e-8


@pytest.mark.parametrize("complete", COMPLETIONS)
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1)])
def test_one_row_or_one_column_is_enough(complete, shape):
    matrix = np.arange(1.0, 1 + np.prod(shape)).reshape(shape)
    assert distance(complete(matrix, np.ones(shape, bool), 1), matrix) < 1e-8


@pytest.mark.parametrize("complete", COMPLETIONS)
def test_nothing_seen_gives_zeros_and_rank_zero_gives_nothing(complete):
    nothing = complete(np.ones((3, 2)), np.zeros((3, 2), bool), 1)
    assert (nothing.left @ nothing.right.T == 0).all()
    assert complete(np.ones((3, 2)), np.ones((3, 2), bool), 0).left.shape == (3, 0)


@pytest.mark.parametrize("complete", COMPLETIONS)
def test_bad_arguments_are_named(complete):
    with pytest.raises(ValueError, match=r"seen must be a boolean matrix of shape \(2, 2\)"):
        complete(np.ones((2, 2)), np.ones((2, 2)), 1)
    with pytest.raises(ValueError, match="rank must be at most 2, got 3"):
        complete(np.ones((2, 2)), np.ones((2, 2), bool), 3)
    with pytest.raises(ValueError, match="matrix must be finite, got nan"):
        complete([[np.nan]], np.ones((1, 1), bool), 1)


def test_exact_factors_are_the_best_approximation():
    matrix = np.random.default_rng(0).standard_normal((6, 4))
    tail = np.linalg.svd(matrix, compute_uv=False)[2:]
    factors = factor_exactly(matrix, 2)
    error = np.linalg.norm(factors.left @ factors.right.T - matrix)
    assert error == pytest.approx(np.linalg.norm(tail))


def test_a_rare_block_of_low_rank_is_recovered_block_by_block_but_not_as_a_whole():
    """The two-block example of Sec. 4.1, at one sample count between the two needs."""
    generator = np.random.default_rng(0)
    rows, columns, ranks, probs = [60, 60], [60], [[6], [1]], [[0.8], [0.2]]
    matrix = random_block_matrix(rows, columns, flat_spectra(ranks), generator=generator)
    seen = sample_entries(2500, probs, rows, columns, generator=generator)
    blocks = factor_blocks(matrix, seen, rows, columns, ranks, complete=complete_als)
    for line, truth in zip(blocks, split_blocks(matrix, rows, columns), strict=True):
        assert distance(line[0], truth[0]) < 1e-6
    assert distance(complete_als(matrix, seen, 7), matrix) > 0.1


def test_every_block_is_completed_at_its_own_rank():
    matrix = random_block_matrix(
        [4, 3], [5, 2], flat_spectra([[2, 1], [0, 2]]), generator=np.random.default_rng(0)
    )
    blocks = factor_blocks(matrix, np.ones((7, 7), bool), [4, 3], [5, 2], [[2, 1], [0, 2]])
    assert [[block.left.shape for block in line] for line in blocks] == [
        [(4, 2), (4, 1)],
        [(3, 0), (3, 2)],
    ]
    assert [[block.right.shape for block in line] for line in blocks] == [
        [(5, 2), (2, 1)],
        [(5, 0), (2, 2)],
    ]
