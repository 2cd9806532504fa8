"""A penalty on what a model looks up, in its loss: less for ids that have more ratings. Knows no model.

To the squared error of each rating it adds, over its ids with n training rows each,

    strength * sigma * |vector|^2 / sqrt(n) + (sigma^2 / tau^2) * bias^2 / n

where sigma^2 is the variance of the noise and tau^2 that of the biases of the id's feature, both fitted
as random effects. The sum of the second over all rows is ridge regression; of the first, an id with more
ratings is held back by all of them together as sqrt(n), so less by each. The vector is the one that is
looked up, however it is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mixdim.training.inputs import BaselineData
from mixdim.training.random_effects import effects_of


class Penalty:
    """The weights of the penalty, by id: made once for a run, `of_batch` for each batch."""

    def __init__(self, of_vectors: Sequence[Tensor], of_biases: Sequence[Tensor]) -> None:
        """Take what the squares of vectors and biases are multiplied by: (ids,) of each column."""
        self.of_vectors, self.of_biases = list(of_vectors), list(of_biases)

    @classmethod
    def of(cls, data: BaselineData, strength: float, *, unknown_dropout: bool = False) -> Penalty:
        """Find the variances of a data set of ratings, and with them the weights."""
        effects = effects_of(data)
        of_vectors, of_biases = [], []
        for name, shrinkage in zip(data.single_valued, effects.shrinkages, strict=True):
            unknown = _unknown_of(data, name) if unknown_dropout else None
            rows = rows_of_ids(data.counts[name], unknown)
            inverse = np.divide(1.0, rows, out=np.zeros_like(rows), where=rows > 0)
            of_vectors.append(_tensor(strength * effects.noise**0.5 * np.sqrt(inverse)))
            of_biases.append(_tensor(shrinkage * inverse))
        return cls(of_vectors, of_biases)

    def of_batch(self, ids: Tensor) -> OfBatch:
        """Begin with a batch of ids (batch, columns), which a model is called with."""
        if self.of_vectors and self.of_vectors[0].device != ids.device:
            self.of_vectors = [weights.to(ids.device) for weights in self.of_vectors]
            self.of_biases = [weights.to(ids.device) for weights in self.of_biases]
        return OfBatch(self, ids)


class OfBatch:
    """The penalty of each sample of a batch, added up while the model says what it looks up."""

    def __init__(self, penalty: Penalty, ids: Tensor) -> None:
        self.penalty, self.ids = penalty, ids
        self.total = torch.zeros(len(ids), device=ids.device)  # (batch,)

    def vectors(self, column: int, vectors: Tensor) -> None:
        """Take the vectors of a column of ids: (batch, width)."""
        self._add(self.penalty.of_vectors[column], column, vectors.square().sum(1))

    def biases(self, column: int, biases: Tensor) -> None:
        """Take the biases of a column of ids: (batch,)."""
        self._add(self.penalty.of_biases[column], column, biases.square())

    def _add(self, weights: Tensor, column: int, squares: Tensor) -> None:
        self.total = self.total + weights.index_select(0, self.ids[:, column]) * squares


def rows_of_ids(counts: np.ndarray, unknown: int | None = None) -> np.ndarray:
    """How many training rows each id has, of an epoch: float64 (ids,).

    With the id `unknown`, under unknown dropout: an id keeps n / (1 + n) of its n rows, and the unknown
    id gets the others beside its own.

    >>> rows_of_ids(np.array([3, 1, 0])), rows_of_ids(np.array([3, 1, 0]), unknown=2)
    (array([3., 1., 0.]), array([2.25, 0.5 , 1.25]))
    """
    rows = counts.astype(np.float64)
    if unknown is None:
        return rows
    kept = rows**2 / (1 + rows)
    kept[unknown] = rows.sum() - (kept.sum() - kept[unknown])
    return kept


def _unknown_of(data: Any, name: str) -> int:
    """The id of unknown values of a feature."""
    ids: Mapping[str, int] = data.unknown_ids
    return ids[name]


def _tensor(weights: np.ndarray) -> Tensor:
    return torch.from_numpy(weights.astype(np.float32))
