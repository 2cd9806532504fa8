"""How good predictions are: exact metrics of clicks and of ratings.

Knows nothing about models, batches or torch: numpy arrays of one number per row in, Python floats out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mixdim._util.arguments import whole_number

Metric = Callable[[Any, Any], float | None]
Rows = tuple[np.ndarray, np.ndarray]  # outputs and targets


def log_loss(logits: Any, targets: Any) -> float:
    """Return the mean cross entropy, in nats: the mean of softplus(z) - y z.

    >>> round(log_loss([0.0, 2.0], [0, 1]), 6)  # log 2 and log(1 + e**-2), averaged
    0.410038
    """
    logits, targets = labelled_rows(logits, targets, "logits", at_least=1)
    # softplus(z) - z is softplus(-z), which loses no digits where the two terms would cancel.
    return float(_softplus(np.where(targets == 1, -logits, logits)).mean())


def accuracy(logits: Any, targets: Any) -> float:
    """Return the share of rows guessed right, where z > 0 (a probability above 1/2) guesses 1.

    >>> accuracy([-1.0, 0.0, 3.0, 3.0], [0, 0, 1, 0])
    0.75
    """
    logits, targets = labelled_rows(logits, targets, "logits", at_least=1)
    return float(np.mean((logits > 0) == (targets == 1)))


def auc(scores: Any, targets: Any) -> float | None:
    """Return the area under the ROC curve; None when there are no positives or no negatives.

    It is the probability that a random positive scores above a random negative, a tie counting half:
    (pairs with the negative below + pairs with the negative at or below) / (2 * pairs).

    >>> auc([0.1, 0.4, 0.4, 0.8], [0, 0, 1, 1])
    0.875
    """
    scores, targets = labelled_rows(scores, targets, "scores")
    # Both sides are sorted: the positives only because looked up in order they find the cache warm.
    negatives, positives = np.sort(scores[targets == 0]), np.sort(scores[targets == 1])
    pairs = len(negatives) * len(positives)
    if pairs == 0:
        return None
    below = int(np.searchsorted(negatives, positives, side="left").sum())
    at_or_below = int(np.searchsorted(negatives, positives, side="right").sum())
    return (below + at_or_below) / (2 * pairs)


def calibration(logits: Any, targets: Any) -> float | None:
    """Return mean predicted probability / mean target, 1 at best; None when there are no positives.

    >>> calibration([0.0, 0.0, 0.0, 0.0], [1, 0, 0, 0])  # says 1/2 where 1/4 is true
    2.0
    """
    logits, targets = labelled_rows(logits, targets, "logits")
    positives = targets.sum()
    return float(_probability(logits).sum() / positives) if positives else None


def calibration_error(logits: Any, targets: Any, bins: int = 10) -> float:
    """Return the expected calibration error over `bins` bins of equal count.

    Rows are sorted by prediction and cut at ranks b * rows // bins; the error is the mean over rows of
    |mean probability - mean target| of the row's bin. Rows of equal prediction stay together: a cut
    between them moves to the first of them, so their order does not matter, and bins may be fewer.

    >>> calibration_error([0.0, 0.0, 0.0, 0.0], [1, 0, 0, 0])
    0.25
    """
    logits, targets = labelled_rows(logits, targets, "logits", at_least=1)
    bins = whole_number(bins, "bins")
    rows = len(logits)
    order = np.argsort(logits)
    ranked = logits[order]
    first_logits = ranked[np.arange(bins) * rows // bins]
    starts = np.unique(np.searchsorted(ranked, first_logits, side="left"))
    # Two sums, not one of differences: both are then the same to the last bit in any order of ties.
    predicted = np.add.reduceat(_probability(ranked), starts)  # (bins,)
    observed = np.add.reduceat(targets[order], starts)
    return float(np.abs(predicted - observed).sum() / rows)


def mse(predictions: Any, targets: Any) -> float:
    """Return the mean squared error.

    >>> mse([3.0, 5.0], [4.0, 2.0])
    5.0
    """
    predictions, targets = finite_rows(predictions, targets, "predictions", at_least=1)
    return float(np.mean((predictions - targets) ** 2))


def rmse(predictions: Any, targets: Any) -> float:
    """Return the square root of the mean squared error, in the units of the targets.

    >>> rmse([3.0, 9.0], [2.0, 2.0])  # errors of 1 and 7
    5.0
    """
    return math.sqrt(mse(predictions, targets))


def mae(predictions: Any, targets: Any) -> float:
    """Return the mean absolute error.

    >>> mae([3.0, 5.0], [4.0, 2.0])
    2.0
    """
    predictions, targets = finite_rows(predictions, targets, "predictions", at_least=1)
    return float(np.mean(np.abs(predictions - targets)))


def recall(hits: np.ndarray, relevant: np.ndarray) -> float:
    """Return the mean over users of the share of their relevant items that are among the recommended.

    `hits` (users, places) says which places of each user's list, the best first, have a relevant item,
    and `relevant` (users,) how many there are in all, at least 1.

    >>> recall(np.array([[True, False], [False, True]]), np.array([1, 4]))
    0.625
    """
    return float((hits.sum(axis=1) / relevant).mean())


def ndcg(hits: np.ndarray, relevant: np.ndarray) -> float:
    """Return the mean over users of DCG / the best DCG there is, where DCG = sum of 1 / log2(1 + place).

    The sum is over the places, from 1, that have a relevant item; arguments are those of `recall`.

    >>> round(ndcg(np.array([[True, False], [False, True]]), np.array([1, 1])), 6)  # 1, 1 / log2(3)
    0.815465
    """
    discounts = 1 / np.log2(np.arange(hits.shape[1]) + 2)
    best = np.cumsum(discounts)[np.minimum(relevant, len(discounts)) - 1]
    return float((hits @ discounts / best).mean())


PLACES = 10  # of a list of recommended items
RANKING = {f"recall@{PLACES}": recall, f"ndcg@{PLACES}": ndcg}


def labelled_rows(outputs: Any, targets: Any, name: str, *, at_least: int = 0) -> Rows:
    """Rows whose targets are all 0 or 1."""
    outputs, targets = finite_rows(outputs, targets, name, at_least=at_least)
    wrong = (targets != 0) & (targets != 1)
    if wrong.any():
        where = int(wrong.argmax())
        raise ValueError(f"targets must be 0 or 1, got {targets[where]:g} at row {where}")
    return outputs, targets


def finite_rows(outputs: Any, targets: Any, name: str, *, at_least: int = 0) -> Rows:
    """Two finite float64 vectors of one length."""
    outputs, targets = _finite_vector(outputs, name), _finite_vector(targets, "targets")
    if len(outputs) != len(targets):
        raise ValueError(
            f"{name} and targets must have one length, got {len(outputs)} and {len(targets)}"
        )
    whole_number(len(outputs), f"the number of rows of {name}", at_least=at_least)
    return outputs, targets


def _finite_vector(values: Any, name: str) -> np.ndarray:
    """A finite float64 vector, or an error that says how many values are not finite."""
    vector = np.asarray(values)
    if vector.dtype.kind not in "biuf":
        raise TypeError(f"{name} must be numbers, got {vector.dtype} values")
    if vector.ndim != 1:
        raise ValueError(f"{name} must have one dimension, got shape {vector.shape}")
    vector = vector.astype(np.float64, copy=False)
    wrong = ~np.isfinite(vector)
    if wrong.any():
        count, where = int(wrong.sum()), int(wrong.argmax())
        them = "1 value that is not:" if count == 1 else f"{count} values that are not, the first"
        raise ValueError(f"{name} must be finite, got {them} {vector[where]} at row {where}")
    return vector


def _softplus(z: np.ndarray) -> np.ndarray:
    """log(1 + e**z), without overflow."""
    return np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z)))


def _probability(logits: np.ndarray) -> np.ndarray:
    """1 / (1 + e**-z), as e**-softplus(-z): small probabilities keep their digits."""
    return np.exp(-_softplus(-logits))
