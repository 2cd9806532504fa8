"""Negatives for rows that are all positive: copies of a row in which one feature has another value.

Knows nothing about raw files or ids. A negative's value is drawn with probability
count^0.75 / sum of count^0.75, where count is how many training positives have it (Mikolov et al. 2013),
among those values that the same user has in no positive of the same split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import numpy as np
import polars as pl

from mixdim.data.splits import Split
from mixdim.data.vocabulary import Vocabulary

POWER = 0.75
GROUP = 1 << 16  # positives that are drawn for together; another number gives other negatives
ROUNDS = 30  # draws of a value that turns out positive, before the others are searched
NONE = -1  # code of a negative that cannot be: its user has every value


@dataclass(frozen=True)
class NegativeSampling:
    """How many negatives each positive gets, and which features they are made with, by their places."""

    per_positive: int
    of: int  # the feature that gets drawn values
    users: tuple[int, ...]  # features that together say whose positive a row is
    seed: int = 0


@dataclass
class Negatives:
    """Drawn negatives, on disk: a file a split, in the order of its positives.

    A negative is a code: the id of its value in the vocabulary that it was drawn from.
    """

    folder: Path
    sampling: NegativeSampling
    vocabulary: Vocabulary
    training: np.ndarray  # how often each code was drawn in training
    # Positives of each split that have fewer negatives, by their places among them, and how many fewer.
    lacking: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)

    @property
    def values(self) -> pl.Series:
        """The value of each code."""
        return self.vocabulary.table["value"]

    @property
    def lack_some(self) -> bool:
        """Whether a user has so many values that a positive has fewer negatives."""
        return any(len(places) for places, _ in self.lacking)

    def counts_of(self, values: pl.Series) -> pl.Series:
        """How often each of some values was drawn in training."""
        codes = self.vocabulary.encode(values)
        return pl.Series(np.where(self.vocabulary.drawing_weights[codes] > 0, self.training[codes], 0))

    def repeats(self, split: int, first: int, last: int) -> np.ndarray:
        """How many rows each of a split's positives makes, from the first to the last."""
        found = np.full(last - first, 1 + self.sampling.per_positive)
        places, fewer = self.lacking[split]
        here = slice(*np.searchsorted(places, [first, last]))
        found[places[here] - first] -= fewer[here]
        return found

    def sizes(self, positives: Sequence[int]) -> tuple[int, int, int]:
        """Rows of each split, positives and negatives."""
        each = 1 + self.sampling.per_positive
        train, validation, test = (
            rows * each - int(fewer.sum())
            for rows, (_, fewer) in zip(positives, self.lacking, strict=True)
        )
        return train, validation, test

    @contextmanager
    def opened(self) -> Iterator[Callable[[int, int], np.ndarray]]:
        """A function of split and positives: codes of its next ones, int32 (positives, negatives)."""
        each = self.sampling.per_positive
        with ExitStack() as stack:
            files = [
                stack.enter_context(_file_of(self.folder, number).open("rb")) for number in range(3)
            ]
            yield lambda split, rows: np.frombuffer(
                files[split].read(4 * rows * each), np.int32
            ).reshape(rows, each)
        for number in range(3):
            _file_of(self.folder, number).unlink()


def draw_negatives(
    folder: Path,
    chunks: Iterator[tuple[int, Sequence[pl.Series]]],
    split: Split,
    sampling: NegativeSampling,
    vocabulary: Vocabulary,
    users: Sequence[Vocabulary],
) -> Negatives:
    """Draw negatives for all rows, into files of a folder.

    `chunks` are the first row of a chunk and its columns: the values to be drawn, then those of users.
    `vocabulary` has the values and their training positives; `users` have an id for each user.
    """
    weights = vocabulary.drawing_weights
    if not weights.any():
        raise ValueError("negatives_of names a column without a value in the training split")
    combinations = prod(known.rows for known in users)
    if combinations * len(weights) >= 2**63:
        raise ValueError("negatives_for names columns with too many values to tell users apart")
    found = Negatives(folder, sampling, vocabulary, np.zeros(len(weights), np.int64))
    rows = sum(split.sizes)
    pairs, size = np.zeros(rows, np.int64), len(weights)  # user * size + value
    for start, (column, *others) in chunks:
        here = slice(start, start + len(column))
        for known, other in zip(users, others, strict=True):
            pairs[here] = pairs[here] * known.rows + known.encode(other)
        pairs[here] = pairs[here] * size + vocabulary.encode(column)
    chance = weights.astype(float) ** POWER
    for number, members in enumerate(split.members(0, rows)):
        random = np.random.default_rng([sampling.seed, number, len(split.sizes)])
        fewer = [np.empty(0, np.int64)]
        with _file_of(folder, number).open("wb") as file:
            for codes in _Draws(pairs[members], chance, sampling.per_positive, random):
                if number == 0:
                    found.training += np.bincount(codes[codes != NONE], minlength=size)
                fewer.append((codes == NONE).sum(axis=1))
                file.write(codes.data)
        counts = np.concatenate(fewer)
        places = np.flatnonzero(counts)
        found.lacking.append((places, counts[places]))
    return found


class _Draws:
    """The draws for one split, group by group: int32 (positives, negatives of each)."""

    def __init__(
        self,
        pairs: np.ndarray,
        chance: np.ndarray,
        per_positive: int,
        random: np.random.Generator,
    ) -> None:
        self._rows, self._chance, self._each, self._random = pairs, chance, per_positive, random
        self._cumulative, self._last = np.cumsum(chance), int(np.flatnonzero(chance)[-1])
        self._size = len(chance)
        self._pairs = np.sort(pairs)

    def __iter__(self) -> Iterator[np.ndarray]:
        for start in range(0, len(self._rows), GROUP):
            users = np.repeat(self._rows[start : start + GROUP] // self._size, self._each)
            codes = self._drawn(self._cumulative, len(users))
            taken = np.flatnonzero(self._is_positive(users, codes))
            for _ in range(ROUNDS):
                if not len(taken):
                    break
                codes[taken] = self._drawn(self._cumulative, len(taken))
                taken = taken[self._is_positive(users[taken], codes[taken])]
            for user in np.unique(users[taken]):
                own = taken[users[taken] == user]
                codes[own] = self._drawn_of_others(user, len(own))
            yield codes.reshape(-1, self._each)

    def _drawn(self, cumulative: np.ndarray, size: int) -> np.ndarray:
        numbers = self._random.random(size) * cumulative[-1]
        codes = np.searchsorted(cumulative, numbers, side="right")
        return np.minimum(codes, self._last).astype(np.int32)  # a product may round up to the end

    def _is_positive(self, users: np.ndarray, codes: np.ndarray) -> np.ndarray:
        sought = users * self._size + codes
        places = np.minimum(np.searchsorted(self._pairs, sought), len(self._pairs) - 1)
        return self._pairs[places] == sought

    def _drawn_of_others(self, user: int, size: int) -> np.ndarray:
        """Draws among the values that the user has not; NONE if there are none."""
        first, last = np.searchsorted(self._pairs, [user * self._size, (user + 1) * self._size])
        chance = self._chance.copy()
        chance[self._pairs[first:last] - user * self._size] = 0.0
        if not chance.any():
            return np.full(size, NONE, np.int32)
        codes = self._drawn(np.cumsum(chance), size)
        return np.minimum(codes, int(np.flatnonzero(chance)[-1]))


def repeats_of(codes: np.ndarray) -> np.ndarray:
    """How many rows each positive makes, itself included: one more than its negatives."""
    return 1 + (codes != NONE).sum(axis=1)


def _file_of(folder: Path, split: int) -> Path:
    return folder / f"negatives.{split}"
