"""Realistic clicks against slow computations in plain Python, and the facts they are made for."""

import itertools
import math
from bisect import bisect_right
from collections import defaultdict

import numpy as np
import pytest

from mixdim.data.folder import SPLITS, read_meta
from mixdim.data.unknown_values import unknown_shares
from mixdim.lab.synthetic import planted
from mixdim.lab.synthetic.generate import CHUNK, generate_realistic_clicks
from mixdim.lab.synthetic.realistic import MEAN_LOGIT, realistic_truth
from mixdim.lab.synthetic.realistic_values import OPEN, PARENTS, Features, Law
from mixdim.tasks.metrics import auc

NAMES = list(planted.CRITEO_KAGGLE_ROWS)


def slow_values(features, feature, rows):
    """The planted values of a feature, one uniform number after the other."""
    if feature in features.links:
        link = features.links[feature]
        return [int(link.of[value]) for value in slow_values(features, link.child, rows)]
    law = features.laws[NAMES[feature]]
    weights = [(rank + 1) ** -law.skew for rank in range(law.core)]
    core = (1 - law.tail_share) / math.fsum(weights)
    weights = [weight * core for weight in weights] + [law.tail_share / max(law.tail, 1)] * law.tail
    cumulative = list(itertools.accumulate(weights))
    values = []
    for chunk, start in enumerate(range(0, rows, CHUNK)):
        sequence = np.random.SeedSequence(features.seed, spawn_key=(planted.VALUES, feature, chunk))
        uniform = np.random.default_rng(sequence).random(min(CHUNK, rows - start))
        values += [bisect_right(cumulative, u) for u in uniform.tolist()]
    return values


def test_the_bayes_loss_equals_a_slow_computation_from_effects_and_pairs(tmp_path):
    arguments = {"seed": 7, "scale": 0.002, "skew": 0.9, "unseen": 0.5}
    meta = generate_realistic_clicks(tmp_path / "out", rows=840, **arguments)
    truth = realistic_truth(rows=720, **arguments)
    values = [slow_values(truth.features, n, 840) for n in range(26)]
    dense = np.load(tmp_path / "out" / "dense.npy").tolist()
    clicks = np.load(tmp_path / "out" / "target.npy")
    uniform = np.random.default_rng(np.random.SeedSequence(7, spawn_key=(planted.TARGET, 0))).random(840)
    entropy, realised = [], []
    for row in range(840):
        logit = MEAN_LOGIT
        logit += sum(x * w for x, w in zip(dense[row], meta.truth["dense_weights"], strict=True))
        logit += sum(float(truth.effects[n][values[n][row]]) for n in range(26))
        for pair in meta.truth["pairs"]:
            i, j = map(NAMES.index, pair["features"])
            u, v = truth.factors[i][values[i][row]], truth.factors[j][values[j][row]]
            logit += pair["weight"] * sum(float(u[k]) * float(v[k]) for k in range(pair["rank"]))
        p = 1 / (1 + math.exp(-logit))
        assert clicks[row] == (uniform[row] < p)
        entropy.append(-p * math.log(p) - (1 - p) * math.log(1 - p))
        realised.append(-math.log(p if clicks[row] else 1 - p))
    for split in SPLITS:
        part = slice(*meta.splits[split])
        for name, slow in (("bayes_log_loss", entropy), ("realised_log_loss", realised)):
            assert meta.truth[name][split] == pytest.approx(np.mean(slow[part]), rel=1e-10)


def test_the_stated_moments_are_those_of_the_logits():
    truth = realistic_truth(rows=50_000, seed=1)
    drawing = truth.features.drawing()
    parts = []
    for chunk in range(10):
        values, dense = drawing.values(chunk, CHUNK), drawing.dense(chunk, CHUNK)
        singles = sum(effect[v] for effect, v in zip(truth.effects, values, strict=True))
        linear = dense @ truth.dense_weights
        pairs = truth.logits(values, dense) - singles - linear - MEAN_LOGIT
        parts.append((singles, linear, pairs))
    singles, linear, pairs = (np.concatenate(part) for part in zip(*parts, strict=True))
    stated = truth.describe()
    shares = stated["logit_variance_shares"]
    variance = stated["logit_std"] ** 2
    for name, part in (("single_features", singles), ("dense", linear), ("pairs", pairs)):
        assert part.mean() == pytest.approx(0, abs=0.02)
        assert part.var() == pytest.approx(shares[name] * variance, rel=0.05)
    assert shares["single_features"] > 0.8
    assert np.corrcoef(singles, pairs)[0, 1] == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize("unseen", [0.15, 0.4, 0.6])
def test_the_share_of_unseen_lookups_is_the_asked_one(unseen, tmp_path):
    meta = generate_realistic_clicks(tmp_path / "out", rows=60_000, unseen=unseen)
    found = unknown_shares(tmp_path / "out", meta)
    assert found["C3"]["test"] == pytest.approx(unseen, abs=0.03)
    for name in OPEN:
        assert found[name]["test"] == pytest.approx(meta.truth["expected_unseen"][name], abs=0.03)
    assert max(found, key=lambda name: found[name]["test"]) == "C3"
    assert max(meta.features, key=lambda feature: feature.rows).name == "C3"


def test_the_expected_share_of_unseen_lookups_equals_a_sum_over_all_values():
    law = Law(core=3, skew=1.0, tail=5, tail_share=0.25)
    p = law.popularity()
    assert p == pytest.approx([0.75 * w / (11 / 6) for w in (1, 1 / 2, 1 / 3)] + [0.05] * 5)
    assert law.unseen(4) == pytest.approx(sum(x * (1 - x) ** 4 for x in p))


def test_values_of_some_fields_determine_those_of_others(tmp_path):
    meta = generate_realistic_clicks(tmp_path / "out", rows=30_000)
    ids = np.load(tmp_path / "out" / "ids.npy")[: meta.splits["train"][1]].tolist()
    for parent, child in PARENTS.items():
        seen = defaultdict(set)
        for row in ids:
            seen[row[NAMES.index(child)]].add(row[NAMES.index(parent)])
        assert all(len(parents) == 1 for parents in seen.values())
        assert len(set.union(*seen.values())) > 5
    free = defaultdict(set)
    for row in ids:
        free[row[NAMES.index("C10")]].add(row[NAMES.index("C7")])
    assert max(map(len, free.values())) > 5


def test_popular_and_rare_values_differ_systematically():
    truth = realistic_truth(rows=50_000)
    for name in ("C3", "C12", "C10"):
        n = NAMES.index(name)
        p, effect = truth.features.popularity(n), truth.effects[n].astype(np.float64)
        trend = np.log1p(50_000 * p)
        trend -= (p * trend).sum()
        correlation = (p * trend * effect).sum() / math.sqrt(
            (p * trend**2).sum() * (p * effect**2).sum()
        )
        assert 0.4 < abs(correlation) < 0.9  # sqrt(0.4) = 0.63 on average


def test_importances_are_log_normal_and_pairs_join_independent_fields():
    truth = realistic_truth(rows=50_000, seed=2)
    stated = truth.describe()
    logs = np.log([std for std in stated["effect_std"].values() if std > 0])
    assert np.std(logs) == pytest.approx(0.8, abs=0.1)
    roots = [frozenset(truth.features.from_root(n)[0] for n in pair.features) for pair in truth.pairs]
    assert len(set(roots)) == len(roots) == 10
    assert all(len(both) == 2 for both in roots)
    assert {pair.rank for pair in truth.pairs} == {1, 2}
    for n, factors in truth.factors.items():
        p = truth.features.popularity(n)[:, None]
        assert (p * factors).sum(axis=0) == pytest.approx(0, abs=1e-5)


def test_single_fields_say_as_much_as_real_ones(tmp_path):
    meta = generate_realistic_clicks(tmp_path / "out", rows=100_000)
    ids, clicks = (np.load(tmp_path / "out" / f"{name}.npy") for name in ("ids", "target"))
    train, test = (slice(*meta.splits[split]) for split in ("train", "test"))
    found = []
    for n, feature in enumerate(meta.features):
        shown = np.bincount(ids[train, n], minlength=feature.rows)
        clicked = np.bincount(ids[train, n], weights=clicks[train], minlength=feature.rows)
        rates = (clicked + 20 * clicks[train].mean()) / (shown + 20)
        found.append(auc(rates[ids[test, n]], clicks[test]))
    assert 0.62 < max(found) < 0.72
    assert sorted(found)[13] < 0.55  # most fields say little


def test_a_chunk_can_be_drawn_alone_and_begins_with_those_of_fewer_rows():
    features = Features(50_000, 3, scale=0.001, skew=0.7, unseen=0.4)
    drawing = features.drawing()
    first, second = drawing.values(0, CHUNK), drawing.values(1, CHUNK)
    alone = features.drawing().values(1, 100)
    for all_rows, few, earlier in zip(second, alone, first, strict=True):
        assert (all_rows[:100] == few).all()
        assert len(earlier) == CHUNK


@pytest.mark.parametrize(
    "other", [{"seed": 6}, {"skew": 0.9}, {"unseen": 0.3}, {"scale": 0.002}], ids=str
)
def test_every_argument_changes_the_targets(other, tmp_path):
    arguments = {"rows": 2_000, "seed": 5, "scale": 0.001}
    generate_realistic_clicks(tmp_path / "a", **arguments)
    generate_realistic_clicks(tmp_path / "b", **(arguments | other))
    first, second = (np.load(tmp_path / name / "target.npy") for name in "ab")
    assert (first != second).any()


def test_the_folder_says_which_generator_and_which_version_made_it(tmp_path):
    meta = generate_realistic_clicks(tmp_path / "out", rows=1_000, seed=2)
    assert read_meta(tmp_path / "out") == meta
    assert meta.source["generator"] == "criteo-like-realistic-1"
    assert meta.truth["version"] == 1
    assert meta.options == {"rows": 1_000, "seed": 2, "scale": 0.01, "skew": 0.7, "unseen": 0.4}


@pytest.mark.parametrize(
    "arguments", [{"rows": 14}, {"skew": 0}, {"skew": 4}, {"scale": 1e-9}, {"scale": 0.1}], ids=str
)
def test_the_bounds_are_usable(arguments, tmp_path):
    meta = generate_realistic_clicks(tmp_path / "out", **({"rows": 3_000, "unseen": 0.5} | arguments))
    assert all(math.isfinite(loss) for loss in meta.truth["bayes_log_loss"].values())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rows": 13}, "rows must be at least 14, got 13"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"scale": 1.5}, "scale must be above 0 and at most 1, got 1.5"),
        ({"skew": 5}, r"skew must be in \[0, 4\], got 5.0"),
        ({"unseen": 0}, "unseen must be above 0 and below 1, got 0"),
        ({"unseen": 1.5}, "unseen must be above 0 and below 1, got 1.5"),
        ({"unseen": "much"}, "unseen must be a number, got 'much'"),
        ({"unseen": 0.9}, r"unseen must be in \[0.0\d+, 0.778\] with 8,571 rows .*, got 0.9"),
        ({"unseen": 0.001}, r"unseen must be in \[0.0\d+, 0.778\] with 8,571 rows .*, got 0.001"),
    ],
    ids=str,
)
def test_an_argument_out_of_bounds_is_named_and_nothing_is_written(wrong, message, tmp_path):
    with pytest.raises((TypeError, ValueError), match=message):
        generate_realistic_clicks(tmp_path / "out", **({"rows": 10_000} | wrong))
    assert not list(tmp_path.iterdir())
