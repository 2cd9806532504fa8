"""The truth that generated data states against the truth, computed slowly from its factors."""

import itertools
import math

import numpy as np
import pytest
from redrawn import redraw

from mixdim.data.folder import SPLITS
from mixdim.lab.synthetic import planted
from mixdim.lab.synthetic.generate import generate_criteo_like, generate_movielens_like


def sigmoid(logit):
    return 1 / (1 + math.exp(-logit))


def test_the_bayes_loss_of_clicks_equals_a_slow_computation_from_the_factors(tmp_path):
    arguments = {"seed": 7, "scale": 0.0005, "skew": 1.2, "decay": 0.5}
    meta = generate_criteo_like(tmp_path / "out", rows=420, **arguments)
    truth = planted.criteo_like_truth(**arguments)
    factors = [truth.interactions.factors(n) for n in range(26)]
    values = [redraw(meta, n) for n in range(26)]
    dense = np.load(tmp_path / "out" / "dense.npy")
    clicks = np.load(tmp_path / "out" / "target.npy")
    uniform = np.random.default_rng(np.random.SeedSequence(7, spawn_key=(planted.TARGET, 0))).random(420)
    entropy, best, realised = [], [], []
    for row in range(420):
        vectors = np.stack([factors[n][values[n][row]] for n in range(26)])
        logit = meta.truth["bias"]
        logit += sum(
            x * w for x, w in zip(dense[row].tolist(), meta.truth["dense_weights"], strict=True)
        )
        logit += float(np.triu(vectors @ vectors.T, 1).sum())  # of all pairs
        p = sigmoid(logit)
        assert clicks[row] == (uniform[row] < p)
        entropy.append(-p * math.log(p) - (1 - p) * math.log(1 - p))
        best.append(max(p, 1 - p))
        realised.append(-math.log(p if clicks[row] else 1 - p))
    for split in SPLITS:
        part = slice(*meta.splits[split])
        assert meta.truth["bayes_log_loss"][split] == pytest.approx(np.mean(entropy[part]), rel=1e-10)
        assert meta.truth["bayes_accuracy"][split] == pytest.approx(np.mean(best[part]), rel=1e-10)
        assert meta.truth["realised_log_loss"][split] == pytest.approx(
            np.mean(realised[part]), rel=1e-10
        )
        assert meta.truth["click_rate"][split] == pytest.approx(clicks[part].mean())


def test_the_bayes_error_of_ratings_equals_a_slow_computation_from_the_factors(tmp_path):
    arguments = {"seed": 7, "scale": 0.001, "skew": 0.9}
    meta = generate_movielens_like(tmp_path / "out", rows=2_000, **arguments)
    truth = planted.movielens_like_truth(**arguments)
    users, items = redraw(meta, 0), redraw(meta, 1)
    u, v = truth.interactions.factors(0), truth.interactions.factors(1)
    ratings = np.load(tmp_path / "out" / "target.npy")
    noise = [
        float(rating) - (3.5 + truth.user_bias[a] + truth.item_bias[b] + u[a] @ v[b])
        for rating, a, b in zip(ratings, users, items, strict=True)
    ]
    for split in SPLITS:
        part = noise[slice(*meta.splits[split])]
        assert meta.truth["bayes_mse"][split] == pytest.approx(np.mean(np.square(part)), rel=1e-10)
    assert meta.truth["noise_variance"] == meta.truth["noise_std"] ** 2
    assert np.var(noise) == pytest.approx(meta.truth["noise_variance"], rel=0.15)
    assert np.mean(noise) == pytest.approx(0, abs=4 * meta.truth["noise_std"] / math.sqrt(2_000))


def test_clicks_are_calibrated_and_the_stated_moments_are_those_of_the_logits(tmp_path):
    rows = 100_000
    meta = generate_criteo_like(tmp_path / "out", rows=rows, scale=0.0005, seed=1)
    truth = planted.criteo_like_truth(scale=0.0005, seed=1)
    values = [np.array(redraw(meta, n)) for n in range(26)]
    clicks = np.load(tmp_path / "out" / "target.npy")
    logits = truth.logits(values, np.load(tmp_path / "out" / "dense.npy"))
    assert logits.mean() == pytest.approx(meta.truth["logit_mean"], abs=0.03)
    assert logits.std() == pytest.approx(meta.truth["logit_std"], rel=0.03)
    probabilities = 1 / (1 + np.exp(-logits))
    for part in np.array_split(np.argsort(logits), 10):
        p = probabilities[part]
        assert abs(clicks[part].mean() - p.mean()) < 4 * math.sqrt((p * (1 - p)).sum()) / len(part)
    for split, (start, stop) in meta.splits.items():
        gap = meta.truth["click_rate"][split] - meta.truth["mean_probability"][split]
        assert abs(gap) < 4 * 0.5 / math.sqrt(stop - start)


def test_mean_and_spread_of_interactions_equal_a_sum_over_all_combinations():
    sizes, skew = (2, 3, 4), 0.8
    planted_pairs = planted.plant_interactions(0, sizes, skew=skew, decay=0.6, std=1.3)
    factors = [planted_pairs.factors(n) for n in range(3)]
    popularity = [planted.popularity(n, skew) for n in sizes]
    score = np.empty(sizes)
    weight = np.einsum("a,b,c->abc", *popularity)
    for where in itertools.product(*map(range, sizes)):
        vectors = [factors[n][value] for n, value in enumerate(where)]
        score[where] = sum(u @ v for u, v in itertools.combinations(vectors, 2))
    mean = (weight * score).sum()
    variance = (weight * (score - mean) ** 2).sum()
    assert planted_pairs.mean == pytest.approx(mean, rel=1e-8)
    assert planted_pairs.std == 1.3
    assert math.sqrt(variance) == pytest.approx(1.3, rel=1e-8)
    single = 0.0  # the variance of what one feature alone predicts
    for n, p in enumerate(popularity):
        others = tuple(axis for axis in range(3) if axis != n)
        single += (p * ((weight * score).sum(axis=others) / p - mean) ** 2).sum()
    assert planted_pairs.first_order == pytest.approx(single / variance, rel=1e-8)


def test_the_spectrum_falls_as_asked_and_factors_ignore_popularity():
    interactions = planted.plant_interactions(0, (20_000, 20_000), skew=1.05, decay=0.6, std=1.0)
    u, v = interactions.factors(0), interactions.factors(1)
    values = np.linalg.svd(np.linalg.qr(u)[1] @ np.linalg.qr(v)[1].T, compute_uv=False)
    ratio = values / values[0] * np.arange(1, planted.RANK + 1) ** 0.6
    assert ratio == pytest.approx(1, abs=0.05)
    norms = np.square(u).sum(axis=1)
    assert norms[:1_000].mean() == pytest.approx(norms[-1_000:].mean(), rel=0.05)
