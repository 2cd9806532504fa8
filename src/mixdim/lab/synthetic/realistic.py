"""The truth behind realistic clicks: what single values and pairs of them do to the logit.

Knows nothing about files, splits or ids. docs/synthetic.md says where the constants come from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from mixdim.lab.synthetic import planted
from mixdim.lab.synthetic.clicks import draw_clicks
from mixdim.lab.synthetic.realistic_values import OPEN, PARENTS, SKEW, UNSEEN, Features, checked_unseen

VERSION = 1  # of all constants here and in `realistic_values`; others would be another data set

MEAN_LOGIT, EFFECT_STD, PAIR_STD = -1.6, 1.9, 0.4  # about 27 % of clicks
IMPORTANCE_SIGMA = 0.8  # of the log-normal importances of features
IMPORTANCE_NOISE = 0.7  # large features tend to say more: the order is by log cardinality plus noise
TREND = 0.4  # the share of log popularity in the variance of effects; the rest is each value's own
PAIRS, MOST_RANK = 10, 2

IMPORTANCES, TRENDS, CHOICE_OF_PAIRS = 1, 2, 3  # of the stream WEIGHTS, where 0 is for dense columns


@dataclass(frozen=True)
class Pair:
    """Two features i < j that interact: weight * the sum over k < rank of F_i[x_i, k] F_j[x_j, k]."""

    features: tuple[int, int]
    rank: int
    weight: float


@dataclass(frozen=True)
class RealisticTruth:
    """A click has probability sigmoid(bias + <dense, dense_weights> + effects + pairs).

    Effects and factors have mean 0, and factors variance 1, over values drawn from their popularity: so
    pairs tell nothing that single features could.
    """

    features: Features
    effects: tuple[np.ndarray, ...]  # of each feature: float32 (cardinality,)
    factors: dict[int, np.ndarray]  # F of the features in pairs, by number: float32 (cardinality, 2)
    pairs: tuple[Pair, ...]
    dense_weights: np.ndarray  # float64 (dense columns,)

    def logits(self, values: Sequence[np.ndarray], dense: np.ndarray) -> np.ndarray:
        """The true logit of each row; `dense` is (rows, dense columns)."""
        logits = MEAN_LOGIT + np.einsum("rd,d->r", dense.astype(np.float64), self.dense_weights)
        for effect, chosen in zip(self.effects, values, strict=True):
            logits += effect[chosen]
        taken = {n: factors[values[n]].astype(np.float64) for n, factors in self.factors.items()}
        for pair in self.pairs:
            i, j = pair.features
            products = taken[i][:, : pair.rank] * taken[j][:, : pair.rank]  # (rows, rank)
            logits += pair.weight * products.sum(axis=1)
        return logits

    def draw(
        self, rng: np.random.Generator, values: Sequence[np.ndarray], dense: np.ndarray
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Clicks (0 or 1), and per row what the best possible prediction loses."""
        return draw_clicks(rng, self.logits(values, dense))

    def describe(self) -> dict[str, Any]:
        """The truth in words and numbers."""
        names, laws = self.features.names, self.features.laws
        parts = {
            "dense": planted.DENSE_STD**2,
            "single_features": EFFECT_STD**2,
            "pairs": PAIR_STD**2 if self.pairs else 0.0,
        }
        variance = sum(parts.values())
        return {
            "formula": "P(click) = sigmoid(bias + <dense, dense_weights> + sum_i effect_i[x_i] "
            "+ sum over pairs of weight * sum_{k<rank} F_i[x_i, k] F_j[x_j, k])",
            "version": VERSION,
            "logit_mean": MEAN_LOGIT,
            "logit_std": math.sqrt(variance),
            "logit_variance_shares": {name: part / variance for name, part in parts.items()},
            "bias": MEAN_LOGIT,
            "dense_weights": self.dense_weights.tolist(),
            "effect_std": {
                name: _std(effect, self.features.popularity(n))
                for n, (name, effect) in enumerate(zip(names, self.effects, strict=True))
            },
            "pairs": [
                {"features": [names[n] for n in pair.features], "rank": pair.rank, "weight": pair.weight}
                for pair in self.pairs
            ],
            "determined_by": PARENTS,
            "tail_shares": {name: laws[name].tail_share for name in OPEN},
            "expected_unseen": {name: laws[name].unseen(self.features.rows) for name in OPEN},
        }


def realistic_truth(
    *, rows: int, seed: int = 0, scale: float = 0.01, skew: float = SKEW, unseen: float = UNSEEN
) -> RealisticTruth:
    """What `generate_realistic_clicks` plants for these arguments; `rows` are those to train on."""
    seed, scale, skew, _ = planted.checked_arguments(seed, scale, skew)
    return plant(Features(rows, seed, scale=scale, skew=skew, unseen=checked_unseen(unseen)))


def plant(features: Features) -> RealisticTruth:
    """Draw effects and pairs, and scale both so that they have their share of the logit's variance."""
    pairs = _choose_pairs(features)
    importances = _importances(features)
    signs = _weights_stream(features, TRENDS).choice([-1.0, 1.0], len(importances))
    effects: list[np.ndarray] = []
    factors, correlations = {}, {}
    for n, importance in enumerate(importances):
        popularity = features.popularity(n)
        rng = planted.stream(features.seed, planted.FACTORS, n)
        codes = planted.draw_codes(rng, len(popularity), 1 + MOST_RANK)
        own, *columns = (_standard(column.astype(np.float64), popularity) for column in codes.T)
        # The count that a value has in training on average stands for its count.
        trend = signs[n] * _standard(np.log1p(features.rows * popularity), popularity)
        effect = _standard(math.sqrt(TREND) * trend + math.sqrt(1 - TREND) * own, popularity)
        effects.append((importance * effect).astype(np.float32))
        if any(n in pair.features for pair in pairs):
            factors[n] = np.stack(columns, axis=1).astype(np.float32)
            correlations[n] = np.array([[(popularity * a * b).sum() for a in columns] for b in columns])
    strength = np.float32(EFFECT_STD / math.sqrt(_effect_variance(features, effects)))
    for effect in effects:
        effect *= strength
    return RealisticTruth(
        features,
        tuple(effects),
        factors,
        _scaled(pairs, correlations),
        planted.draw_dense_weights(features.seed),
    )


def _weights_stream(features: Features, purpose: int) -> np.random.Generator:
    return planted.stream(features.seed, planted.WEIGHTS, purpose)


def _importances(features: Features) -> np.ndarray:
    """How much each feature says: the quantiles of a log-normal law, in a partly random order."""
    sizes = np.array([law.core for law in features.laws.values()])
    noise = _weights_stream(features, IMPORTANCES).standard_normal(len(sizes))
    order = np.argsort(np.log(sizes) + IMPORTANCE_NOISE * noise)
    normal = NormalDist(sigma=IMPORTANCE_SIGMA)
    importances = np.empty(len(sizes))
    importances[order] = [math.exp(normal.inv_cdf((n + 0.5) / len(sizes))) for n in range(len(sizes))]
    return importances


def _effect_variance(features: Features, effects: Sequence[np.ndarray]) -> float:
    """Of the sum of all effects: those of a chain follow from its root, and roots are independent."""
    of_roots = {n: e.astype(np.float64) for n, e in enumerate(effects) if n not in features.links}
    for n in features.links:
        root, of = features.from_root(n)
        of_roots[root] += effects[n][of]
    return sum(_std(effect, features.popularity(n)) ** 2 for n, effect in of_roots.items())


def _choose_pairs(features: Features) -> list[Pair]:
    """Pairs of independent features, no two between the same two roots: their sums are uncorrelated."""
    rng = _weights_stream(features, CHOICE_OF_PAIRS)
    chosen: dict[frozenset[int], Pair] = {}
    while len(chosen) < PAIRS:
        i, j = sorted(rng.choice(len(features.names), 2, replace=False).tolist())
        rank, weight = int(rng.integers(1, MOST_RANK + 1)), math.exp(rng.normal(0, IMPORTANCE_SIGMA))
        roots = frozenset(features.from_root(n)[0] for n in (i, j))
        if len(roots) == 2:
            chosen.setdefault(roots, Pair((i, j), rank, weight))
    return list(chosen.values())


def _scaled(pairs: Sequence[Pair], correlations: dict[int, np.ndarray]) -> tuple[Pair, ...]:
    """The pairs with their weights scaled; none if all their features have but one value in effect."""
    variance = 0.0
    for pair in pairs:
        first, second = (correlations[n][: pair.rank, : pair.rank] for n in pair.features)
        variance += pair.weight**2 * float((first * second).sum())
    if variance == 0:
        return ()
    strength = PAIR_STD / math.sqrt(variance)
    return tuple(replace(pair, weight=pair.weight * strength) for pair in pairs)


def _std(numbers: np.ndarray, probabilities: np.ndarray) -> float:
    numbers = numbers.astype(np.float64)
    centred = numbers - (probabilities * numbers).sum()
    return math.sqrt((probabilities * centred**2).sum())


def _standard(numbers: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Shifted and scaled to mean 0 and variance 1; all 0 if they do not vary."""
    std = _std(numbers, probabilities)
    if std < 1e-9:  # of a single value that has nearly all of the mass, or of equal numbers
        return np.zeros(len(numbers))
    return (numbers - (probabilities * numbers).sum()) / std
