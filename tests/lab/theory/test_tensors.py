import itertools

import numpy as np
import pytest

from mixdim.lab.theory.tensors import (
    complete_tensor,
    interaction_matrix,
    interaction_tensor,
    interactions_at,
    sample_indices,
)

SIZES = (4, 3, 5)


def factors(sizes=SIZES, rank=2, seed=0):
    generator = np.random.default_rng(seed)
    return [generator.standard_normal((size, rank)) for size in sizes]


def test_an_entry_is_the_sum_over_all_ordered_pairs_of_features():
    parts = factors()
    tensor = interaction_tensor(parts)
    for x in itertools.product(*map(range, SIZES)):
        pairs = itertools.product(range(3), repeat=2)
        expected = sum(parts[i][x[i]] @ parts[j][x[j]] for i, j in pairs)
        assert tensor[x] == pytest.approx(expected)


def test_an_entry_is_the_sum_of_one_entry_from_each_block_of_the_matrix():
    parts = factors()
    matrix, starts = interaction_matrix(parts), np.array([0, 4, 7])
    assert (matrix == matrix.T).all()
    for x in ([0, 0, 0], [3, 1, 4]):
        rows = starts + x
        assert matrix[np.ix_(rows, rows)].sum() == pytest.approx(interactions_at(parts, [x])[0])


def test_seen_entries_match_the_rate_within_binomial_error():
    indices = sample_indices((30, 20, 10), 0.3, generator=np.random.default_rng(0))
    assert abs(len(indices) / 6000 - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 6000)
    assert len(np.unique(indices, axis=0)) == len(indices)


def test_a_tensor_is_completed_from_a_part_of_its_entries():
    sizes, truth = (12, 12, 12), factors((12, 12, 12), rank=1)
    indices = sample_indices(sizes, 0.3, generator=np.random.default_rng(1))
    found = complete_tensor(
        indices, interactions_at(truth, indices), sizes, 1, generator=np.random.default_rng(2)
    )
    whole = interaction_tensor(truth)
    assert np.linalg.norm(interaction_tensor(found) - whole) < 1e-6 * np.linalg.norm(whole)


def test_a_tensor_of_zeros_is_completed():
    indices = sample_indices((2, 2), 1.0, generator=np.random.default_rng(0))
    found = complete_tensor(indices, np.zeros(4), (2, 2), 1, generator=np.random.default_rng(0))
    assert interaction_tensor(found) == pytest.approx(0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: interactions_at([], [[0]]), "one matrix for each feature, got none"),
        (lambda: interactions_at([np.ones((2, 1)), np.ones((2, 2))], [[0, 0]]), "the same rank"),
        (lambda: interactions_at([[[np.nan]]], [[0]]), r"factors\[0\] must be finite"),
        (
            lambda: interactions_at([np.ones((2, 1))], [[2]]),
            r"indices\[0\] must be from 0 to 1 .* got 2",
        ),
        (
            lambda: interactions_at([np.ones((2, 1))], [[-1]]),
            r"must be from 0 to 1 in feature 0, got -1",
        ),
        (lambda: interactions_at([np.ones((2, 1))], [[0.0]]), "must be whole numbers"),
        (lambda: sample_indices([2], 1.5, generator=None), r"rate must be in \[0, 1\], got 1.5"),
        (
            lambda: complete_tensor([[0]], [-1.0], [1], 1, generator=np.random.default_rng(0)),
            "values of such a tensor are not negative",
        ),
        (
            lambda: complete_tensor([[0]], [1.0, 2.0], [1], 1, generator=np.random.default_rng(0)),
            r"values must have shape \(1, 1\)",
        ),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
