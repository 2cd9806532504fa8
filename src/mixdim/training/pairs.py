"""Who has what: the positives of a split that training does not have, for data with negatives.

Knows nothing about models. A pair of a user and an item is one number, user * num_items + item; a user
may be told by several features. Who or what has no value is left out: it is no user, or no item.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from mixdim.training.inputs import TrainingData

ROWS_AT_ONCE = 1 << 16  # that are read


class Pairing(Protocol):
    """A feature of items, those that tell users apart, and ids of each that are no value."""

    @property
    def item(self) -> str:
        """The feature whose values negatives were drawn of."""

    @property
    def users(self) -> tuple[str, ...]:
        """The features that say whose a row is."""

    @property
    def nobody(self) -> Mapping[str, np.ndarray]:
        """Of each of these features, the ids that are missing or out of vocabulary."""


class RowsOfPairs(TrainingData, Protocol):
    """A `mixdim.data.Dataset`: data that knows who has what, and whose rows can be read one by one."""

    @property
    def pairing(self) -> Any:
        """A `Pairing`; None if no negatives were drawn."""

    @property
    def dense_names(self) -> tuple[str, ...]:
        """Names of the numbers of a sample."""

    def rows(self, rows: np.ndarray) -> Any:
        """Read rows by their numbers: ids, dense, target and bags."""


class Positives(NamedTuple):
    """Who has what: sorted numbers user * num_items + item, each once."""

    num_items: int
    seen: np.ndarray  # in training
    relevant: np.ndarray  # in the split, but not in training
    rows: np.ndarray  # the first row of each that is relevant

    def hits(self, users: np.ndarray, best: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which of the best items (users, places) are relevant, -1 never, and how many there are."""
        sought = users[:, None] * self.num_items + best
        places = np.minimum(np.searchsorted(self.relevant, sought), len(self.relevant) - 1)
        first, last = self.bounds(self.relevant, users, 0, self.num_items)
        return (self.relevant[places] == sought) & (best >= 0), last - first

    def bounds(
        self, pairs: np.ndarray, users: np.ndarray, first: int, last: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Where the pairs of each user with items from `first` to before `last` begin and end."""
        begins, ends = users * self.num_items + first, users * self.num_items + last
        return np.searchsorted(pairs, begins), np.searchsorted(pairs, ends)


def find_positives(data: RowsOfPairs, split: str, pairing: Pairing) -> Positives:
    """Read who has what in training and in a split."""
    num_items = len(data.counts[pairing.item])
    seen = np.unique(np.concatenate([pairs for pairs, _ in pairs_of(data, "train", pairing)]))
    parts = list(pairs_of(data, split, pairing))
    pairs, first = np.unique(np.concatenate([pairs for pairs, _ in parts]), return_index=True)
    rows = np.concatenate([rows for _, rows in parts])[first]
    places = np.minimum(np.searchsorted(seen, pairs), max(len(seen) - 1, 0))
    new = seen[places] != pairs if len(seen) else np.ones(len(pairs), bool)
    return Positives(num_items, seen, pairs[new], rows[new])


def pairs_of(data: RowsOfPairs, split: str, pairing: Pairing) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The pairs of the positives of a split, and their rows, some after others."""
    columns = [list(data.single_valued).index(name) for name in (*pairing.users, pairing.item)]
    sizes = [len(data.counts[name]) for name in (*pairing.users, pairing.item)]
    nobody = [pairing.nobody[name] for name in (*pairing.users, pairing.item)]
    row, _ = data.splits[split]
    for batch in data.batches(split, batch_size=ROWS_AT_ONCE):
        ids = batch.ids.numpy()[:, columns].astype(np.int64)
        wanted = batch.target.numpy() > 0
        pairs = np.zeros(len(ids), np.int64)
        for column, size, missing in zip(ids.T, sizes, nobody, strict=True):
            wanted &= ~np.isin(column, missing)
            pairs = pairs * size + column
        yield pairs[wanted], row + np.flatnonzero(wanted)
        row += len(ids)


def item_ids(data: RowsOfPairs, pairing: Pairing) -> np.ndarray:
    """All ids of items that are a value, rising."""
    return np.setdiff1d(np.arange(len(data.counts[pairing.item])), pairing.nobody[pairing.item])
