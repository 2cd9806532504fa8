"""Ids of training batches that become unknown, so that the row of unknown values learns something.

An id becomes its feature's unknown id with probability 1 / (1 + its training count), each on its own: a
value seen once is treated as a new one half of the time. Knows nothing about files or orders of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mixdim.data.folder import FeatureMeta


class UnknownDropout:
    """What becomes unknown in each batch, given by seed, epoch and the batch's number alone."""

    def __init__(self, features: Sequence[FeatureMeta], counts: Mapping[str, np.ndarray]) -> None:
        """Make it for some features and how often training rows have each of their ids."""
        self._features = {feature.name: feature for feature in features}
        sizes = [feature.rows for feature in features]
        starts = np.concatenate([[0], np.cumsum(sizes[:-1], dtype=np.int64)])
        self._starts = dict(zip(self._features, starts.tolist(), strict=True))
        self._thresholds = np.concatenate([thresholds(counts[name]) for name in self._features])
        single = [feature for feature in features if not feature.bag]
        self._single_starts = np.array([self._starts[f.name] for f in single], dtype=np.int64)
        self._single_unknown = np.array([f.out_of_vocabulary for f in single], dtype=np.int32)

    def apply(
        self,
        ids: np.ndarray,
        bags: Mapping[str, np.ndarray],
        *,
        seed: int,
        epoch: int,
        position: int,
    ) -> None:
        """Change ids, (batch, single-valued features), and the values of bags, in their place."""
        draws = _draws(ids.size + sum(map(len, bags.values())), seed, epoch, position)
        self._drop(ids, self._single_starts, self._single_unknown, draws[: ids.size].reshape(ids.shape))
        first = ids.size
        for name, values in bags.items():
            own = draws[first : first + len(values)]
            self._drop(values, self._starts[name], self._features[name].out_of_vocabulary, own)
            first += len(values)

    def _drop(
        self, ids: np.ndarray, starts: np.ndarray | int, unknown: np.ndarray | int, draws: np.ndarray
    ) -> None:
        # An id that is none of its feature's stays in bounds here, and is refused by the layer.
        limits = self._thresholds.take(ids + starts, mode="clip")
        np.copyto(ids, unknown, where=draws <= limits, casting="same_kind")


def thresholds(counts: np.ndarray) -> np.ndarray:
    """The largest of 2^32 equally likely numbers at which an id becomes unknown, as uint32.

    >>> (thresholds(np.array([0, 1, 3])) + 1.0) / 2**32
    array([1.  , 0.5 , 0.25])
    """
    # Rounded up, so that no id is safe: 2^32 / (1 + count) numbers of 0, 1, 2, ...
    return (-(-(2**32) // (1 + counts.astype(np.int64))) - 1).astype(np.uint32)


def _draws(size: int, seed: int, epoch: int, position: int) -> np.ndarray:
    """So many uint32 of a batch. The order of an epoch's rows is drawn where its counter ends in 0."""
    generator = np.random.Philox(key=[seed, epoch], counter=[0, 0, 0, 1 + position])
    return generator.random_raw(-(-size // 2)).view(np.uint32)[:size]
