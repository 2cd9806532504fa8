"""The truth behind generated data: how popular a value is, and what the target is given the values.

Knows nothing about files, splits or ids. A value is its planted rank of popularity: 0 is the likeliest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mixdim._util.arguments import real_number, whole_number
from mixdim.lab.synthetic.clicks import draw_clicks

# Distinct values of each categorical feature over the whole training file (45.8 million rows).
CRITEO_KAGGLE_ROWS = {
    f"C{number}": rows
    for number, rows in enumerate(
        [
            1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
            27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
        ],
        start=1,
    )
}  # fmt: skip
CRITEO_DENSE = tuple(f"I{number}" for number in range(1, 14))
MOVIELENS_27M_ROWS = {"user": 283_228, "item": 53_889}

RANK = 24
DECAY = 0.6  # of the spectrum of the interactions, unless told: singular value k falls as k^-DECAY
CRITEO_SKEW, MOVIELENS_SKEW = 1.05, 0.8

MEAN_LOGIT, LOGIT_STD, DENSE_STD = -1.5, 1.5, 0.3  # about 25 % of clicks; Criteo has 26 %
MEAN_RATING, BIAS_STD, TASTE_STD, NOISE_STD = 3.5, 0.4, 0.5, 0.75  # the ratings' std is then about 1.06

# The streams of random numbers; each is told apart further by feature and chunk of rows.
VALUES, DENSE, TARGET, FACTORS, WEIGHTS = range(5)

_STEPS = 32  # factors are multiples of 1/32, held as int8: 24 bytes a value, and sums of them are exact
_BLOCK = 1 << 16


def stream(seed: int, *place: int) -> np.random.Generator:
    """One of many independent streams of random numbers that a seed stands for."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=place))


def popularity(cardinality: int, skew: float) -> np.ndarray:
    """Zipf's law: the probability of value r is proportional to (r + 1)^-skew.

    >>> popularity(3, 1.0).round(3).tolist()
    [0.545, 0.273, 0.182]
    """
    probabilities: np.ndarray = np.arange(1, cardinality + 1, dtype=np.float64) ** -skew
    probabilities /= probabilities.sum()
    return probabilities


def scaled_cardinalities(full: dict[str, int], scale: float) -> dict[str, int]:
    """The cardinalities of the real set times `scale`, at least 2.

    >>> scaled_cardinalities({"C1": 1460, "C9": 3}, 0.01)
    {'C1': 15, 'C9': 2}
    """
    return {name: max(2, round(rows * scale)) for name, rows in full.items()}


@dataclass(frozen=True)
class Interactions:
    """The sum over pairs of features i < j of <U_i[x_i], U_j[x_j]>, with U of rank 24.

    Component k of U_i is `codes[i][:, k] / 32 * component_scale[k]`; the codes are normal with std 32,
    rounded, whatever the value's popularity. `mean` and `std` are those of the sum, over values drawn
    from their popularity; `first_order` is the share of its variance that single features explain.
    """

    codes: tuple[np.ndarray, ...]  # of each feature: int8 (cardinality, rank), in units of 1/32
    component_scale: np.ndarray  # float64 (rank,), proportional to k^(-decay / 2)
    mean: float
    std: float
    first_order: float

    def factors(self, feature: int) -> np.ndarray:
        """U of one feature: float64 (cardinality, rank)."""
        return self.codes[feature] / _STEPS * self.component_scale

    def score(self, values: Sequence[np.ndarray]) -> np.ndarray:
        """The sum over pairs, of rows given as one vector of values a feature; float64 (rows,)."""
        total = np.zeros((len(values[0]), RANK), np.int16)  # at most 26 * 127
        squares = np.zeros((len(values[0]), RANK), np.int32)
        for codes, chosen in zip(self.codes, values, strict=True):
            taken = codes.take(chosen, axis=0).astype(np.int16)  # (rows, rank)
            total += taken
            taken *= taken
            squares += taken
        # sum over i < j of z_i z_j = ((sum z_i)^2 - sum z_i^2) / 2, in whole numbers and so exactly.
        pairs = total.astype(np.int32) ** 2 - squares
        # einsum, not BLAS, whose rounding may depend on the number of threads.
        return np.einsum("rk,k->r", pairs.astype(np.float64), (self.component_scale / _STEPS) ** 2 / 2)


def plant_interactions(
    seed: int, cardinalities: Sequence[int], *, skew: float, decay: float, std: float
) -> Interactions:
    """Draw the factors of each feature and scale them so that the sum over pairs has this `std`.

    The singular values of U_i U_j^T fall as k^-decay, since both sides carry k^(-decay / 2).
    """
    codes = tuple(draw_codes(stream(seed, FACTORS, n), rows) for n, rows in enumerate(cardinalities))
    moments = [code_moments(c, popularity(len(c), skew)) for c in codes]
    means = np.stack([mean for mean, _ in moments]) / _STEPS  # (feature, rank)
    covariances = np.stack([cov for _, cov in moments]) / _STEPS**2  # (feature, rank, rank)
    weights: np.ndarray = np.arange(1, RANK + 1, dtype=np.float64) ** -decay

    # With U_i = m_i + V_i the score is a constant, plus sum_i <V_i, M - m_i>, plus sum_{i<j} <V_i, V_j>,
    # and these parts are uncorrelated, because the features are drawn independently.
    others = (means.sum(axis=0) - means) * weights
    first = float(np.einsum("ik,ikl,il->", others, covariances, others))
    pair_sums = covariances.sum(axis=0) ** 2 - (covariances**2).sum(axis=0)
    second = float(np.einsum("k,kl,l->", weights, pair_sums, weights)) / 2
    constant = float(((means.sum(axis=0) ** 2 - (means**2).sum(axis=0)) * weights).sum()) / 2

    strength = std / math.sqrt(first + second)
    return Interactions(
        codes, np.sqrt(strength * weights), strength * constant, std, first / (first + second)
    )


def draw_codes(rng: np.random.Generator, rows: int, rank: int = RANK) -> np.ndarray:
    """Normal numbers with std 32, rounded: int8 (rows, rank)."""
    codes = np.empty((rows, rank), np.int8)
    for start in range(0, rows, _BLOCK):
        block = codes[start : start + _BLOCK]
        normal = rng.standard_normal(block.shape, dtype=np.float32)
        block[:] = np.rint(normal * _STEPS).clip(-127, 127)
    return codes


def code_moments(codes: np.ndarray, probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean (rank,) and covariance (rank, rank) of the codes of a value drawn from its popularity."""
    # Whole weights make every sum a whole number below 2^53: exact, whatever the order of summation.
    weights = np.rint(probabilities * 2.0**38)
    rank = codes.shape[1]
    first, second = np.zeros(rank), np.zeros((rank, rank))
    for start in range(0, len(codes), _BLOCK):
        block = codes[start : start + _BLOCK].astype(np.float64)
        weighted = block * weights[start : start + _BLOCK, None]
        first += weighted.sum(axis=0)
        second += weighted.T @ block
    mean = first / weights.sum()
    return mean, second / weights.sum() - mean[:, None] * mean


@dataclass(frozen=True)
class ClickTruth:
    """A click has probability sigmoid(bias + <dense, dense_weights> + interactions)."""

    interactions: Interactions
    dense_weights: np.ndarray  # float64 (dense columns,)
    bias: float
    decay: float

    def logits(self, values: Sequence[np.ndarray], dense: np.ndarray) -> np.ndarray:
        """The true logit of each row; `dense` is (rows, dense columns)."""
        linear = np.einsum("rd,d->r", dense.astype(np.float64), self.dense_weights)
        return self.bias + linear + self.interactions.score(values)

    def draw(
        self, rng: np.random.Generator, values: Sequence[np.ndarray], dense: np.ndarray
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Clicks (0 or 1), and per row what the best possible prediction loses."""
        return draw_clicks(rng, self.logits(values, dense))

    def describe(self) -> dict[str, Any]:
        """The truth in words and numbers."""
        interaction_share = self.interactions.std**2 / LOGIT_STD**2
        return {
            "formula": "P(click) = sigmoid(bias + <dense, dense_weights> + sum_{i<j} <U_i[x], U_j[x]>)",
            "rank": RANK,
            "decay": self.decay,
            "logit_mean": MEAN_LOGIT,
            "logit_std": LOGIT_STD,
            "logit_variance_shares": {
                "dense": 1 - interaction_share,
                "single_features": interaction_share * self.interactions.first_order,
                "pairs": interaction_share * (1 - self.interactions.first_order),
            },
            "bias": self.bias,
            "dense_weights": self.dense_weights.tolist(),
            "component_scale": self.interactions.component_scale.tolist(),
        }


@dataclass(frozen=True)
class RatingTruth:
    """A rating is 3.5 + user bias + item bias + <u, v> + Gaussian noise, not clipped and not rounded."""

    interactions: Interactions
    user_bias: np.ndarray  # float64 (users,)
    item_bias: np.ndarray  # float64 (items,)
    decay: float

    def means(self, values: Sequence[np.ndarray]) -> np.ndarray:
        """The true expected rating of each row."""
        users, items = values
        score = self.interactions.score(values)
        return MEAN_RATING + self.user_bias[users] + self.item_bias[items] + score

    def draw(
        self, rng: np.random.Generator, values: Sequence[np.ndarray], dense: np.ndarray
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Ratings (float32), and per row what the best possible prediction loses."""
        means = self.means(values)
        ratings = (means + NOISE_STD * rng.standard_normal(len(means))).astype(np.float32)
        return ratings, {"bayes_mse": (ratings - means) ** 2, "mean_rating": ratings.astype(np.float64)}

    def describe(self) -> dict[str, Any]:
        """The truth in words and numbers."""
        return {
            "formula": "rating = mean + user_bias[u] + item_bias[i] + <U[u], V[i]> + noise",
            "rank": RANK,
            "decay": self.decay,
            "mean": MEAN_RATING,
            "user_bias_std": BIAS_STD,
            "item_bias_std": BIAS_STD,
            "interaction_std": self.interactions.std,
            "noise_std": NOISE_STD,
            "noise_variance": NOISE_STD**2,
            "component_scale": self.interactions.component_scale.tolist(),
        }


def criteo_like_truth(
    *, seed: int = 0, scale: float = 0.01, skew: float = CRITEO_SKEW, decay: float = DECAY
) -> ClickTruth:
    """What `generate_criteo_like` plants for these arguments, whatever the number of rows."""
    seed, scale, skew, decay = checked_arguments(seed, scale, skew, decay)
    cardinalities = list(scaled_cardinalities(CRITEO_KAGGLE_ROWS, scale).values())
    interactions = plant_interactions(
        seed, cardinalities, skew=skew, decay=decay, std=math.sqrt(LOGIT_STD**2 - DENSE_STD**2)
    )
    return ClickTruth(interactions, draw_dense_weights(seed), MEAN_LOGIT - interactions.mean, decay)


def draw_dense_weights(seed: int) -> np.ndarray:
    """Weights of Criteo's dense columns, which give the logit a standard deviation of 0.3."""
    direction = stream(seed, WEIGHTS, 0).standard_normal(len(CRITEO_DENSE))
    weights: np.ndarray = direction * (DENSE_STD / math.sqrt((direction**2).sum()))
    return weights


def movielens_like_truth(
    *, seed: int = 0, scale: float = 0.01, skew: float = MOVIELENS_SKEW, decay: float = DECAY
) -> RatingTruth:
    """What `generate_movielens_like` plants for these arguments, whatever the number of rows."""
    seed, scale, skew, decay = checked_arguments(seed, scale, skew, decay)
    cardinalities = list(scaled_cardinalities(MOVIELENS_27M_ROWS, scale).values())
    interactions = plant_interactions(seed, cardinalities, skew=skew, decay=decay, std=TASTE_STD)
    user_bias, item_bias = (
        BIAS_STD * stream(seed, WEIGHTS, n).standard_normal(rows) for n, rows in enumerate(cardinalities)
    )
    return RatingTruth(interactions, user_bias, item_bias, decay)


def checked_arguments(
    seed: Any, scale: Any, skew: Any, decay: Any = DECAY
) -> tuple[int, float, float, float]:
    """Return them as numbers, or say which one is out of its bounds.

    >>> checked_arguments(0, 2, 1.05, 0.6)
    Traceback (most recent call last):
    ValueError: scale must be above 0 and at most 1, got 2.0
    """
    seed = whole_number(seed, "seed", at_least=0)
    scale, skew, decay = (
        real_number(scale, "scale"),
        real_number(skew, "skew"),
        real_number(decay, "decay"),
    )
    if not 0 < scale <= 1:
        raise ValueError(f"scale must be above 0 and at most 1, got {scale}")
    if not 0 <= skew <= 4:  # beyond, hardly anything but the first value would ever be drawn
        raise ValueError(f"skew must be in [0, 4], got {skew}")
    if not 0 <= decay <= 4:
        raise ValueError(f"decay must be in [0, 4], got {decay}")
    return seed, scale, skew, decay
