"""Biases and their variances equal what was planted and what dense least squares say."""

import numpy as np
import pytest

from mixdim.training import random_effects
from mixdim.training.random_effects import Rows, effects_of, fit_effects
from training_data import ratings


def planted(deviations, noise, *, rows=40_000, sizes=(900, 400), seed=0):
    """Rows of ids whose popularity falls, and targets of biases with these standard deviations."""
    rng = np.random.default_rng(seed)
    ids = np.stack([(size - 1) * rng.random(rows) ** 2 for size in sizes], axis=1).astype(np.int32)
    biases = [sd * rng.standard_normal(size) for sd, size in zip(deviations, sizes, strict=True)]
    targets = 3.0 + noise * rng.standard_normal(rows)
    for column, own in zip(ids.T, biases, strict=True):
        targets += own[column]
    return Rows(ids, targets), biases, sizes


def test_the_variances_that_were_planted_are_found():
    rows, biases, sizes = planted((0.6, 0.25), 0.9)
    found = fit_effects(rows, sizes, mean=3.0)
    assert found.noise == pytest.approx(0.81, rel=0.03)
    assert found.variances == pytest.approx([0.36, 0.0625], rel=0.15)
    expected = [found.noise / variance for variance in found.variances]
    assert found.shrinkages == pytest.approx(expected)
    for own, true in zip(found.biases, biases, strict=True):
        assert np.corrcoef(own, true)[0, 1] > 0.9
        assert own[-1] == 0  # an id that no row has


def test_noise_is_told_from_biases_where_most_ids_occur_once():
    rng, rows = np.random.default_rng(1), 20_000
    ids = np.stack([rng.integers(0, size, rows) for size in (25_000, 9_000)], axis=1)
    biases = [rng.standard_normal(25_000), rng.standard_normal(9_000)]
    targets = biases[0][ids[:, 0]] + biases[1][ids[:, 1]] + 1.2 * rng.standard_normal(rows)
    assert (np.bincount(ids[:, 0]) == 1).sum() > 0.4 * rows
    found = fit_effects(Rows(ids, targets), (25_000, 9_000), mean=0.0)
    assert found.noise == pytest.approx(1.44, rel=0.1)
    assert found.variances == pytest.approx([1.0, 1.0], rel=0.15)


@pytest.mark.parametrize("deviations", [(0.0, 0.0), (0.5, 0.0)])
def test_a_feature_that_says_nothing_is_shrunken_away(deviations):
    rows, _, sizes = planted(deviations, 1.0)
    found = fit_effects(rows, sizes, mean=3.0)
    assert found.variances[1] < 2e-3
    assert np.abs(found.biases[1]).max() < 0.1


def test_biases_solve_the_dense_ridge_problem_of_their_shrinkages():
    rng = np.random.default_rng(0)
    sizes = [7, 5, 4]
    ids = np.stack([rng.integers(0, n - 1, 60) for n in sizes], axis=1)
    design = np.concatenate([np.eye(n)[column] for n, column in zip(sizes, ids.T, strict=True)], axis=1)
    targets, mean = 3.2 + design @ rng.normal(0, 1, 16) + rng.normal(0, 0.5, 60), 3.2
    how = {"tolerance": 1e-12, "settled": 1e-12, "max_rounds": 5000}
    found = fit_effects(Rows(ids, targets), sizes, mean=mean, **how)
    penalty = np.diag(np.repeat(found.shrinkages, sizes))
    expected = np.linalg.solve(design.T @ design + penalty, design.T @ (targets - mean))
    np.testing.assert_allclose(np.concatenate(found.biases), expected, atol=1e-7)
    np.testing.assert_allclose(found.predicted(ids, mean), mean + design @ expected, atol=1e-6)
    # What moves last, and for long, is what features can take from each other: predictions stay.
    roughly = fit_effects(Rows(ids, targets), sizes, mean=mean)
    np.testing.assert_allclose(roughly.predicted(ids, mean), mean + design @ expected, atol=0.05)


def test_targets_that_are_all_the_mean_have_no_biases():
    found = fit_effects(Rows(np.zeros((5, 1), np.int32), np.full(5, 2.0)), [3], mean=2.0)
    assert not found.biases[0].any()
    assert np.isfinite(found.shrinkages).all()


def test_of_many_ratings_a_random_part_is_taken(monkeypatch):
    monkeypatch.setattr(random_effects, "MAX_ROWS", 300)
    monkeypatch.setattr(random_effects, "ROWS_AT_ONCE", 128)
    assert effects_of(ratings()).train_rows == 384
