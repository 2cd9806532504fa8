"""Rows that ask a model about every item for a user: copies of a row of his with other items.

Knows nothing about metrics. Other columns are those of the user's own row, as in the negatives that
the model learned from; but a column in which an item always has one value, such as its genre, is looked
up in the item's rows. One that follows the item and is not decided by it, such as a price that changes,
would tell which item the row was of: then there are no candidates.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mixdim.training.devices import device_of, to_device
from mixdim.training.pairs import Pairing, Positives, RowsOfPairs, item_ids, pairs_of

ITEMS_AT_ONCE = 1 << 13  # rows of a batch
LOOKED_AT = 1 << 18  # positives by which columns are told apart
FOLLOWS = (
    0.5  # a column of which the item says so much beyond chance, and more than the user, follows it
)


class NoCandidatesError(ValueError):
    """No rows can be made that ask about every item."""


class Candidates(NamedTuple):
    """A batch of rows that are asked about; nobody knows its targets."""

    ids: Tensor
    dense: Tensor
    target: Tensor
    bags: dict[str, tuple[Tensor, Tensor]]


class CandidateRows:
    """The outputs of a model for rows of users, once for each item."""

    items_at_once = ITEMS_AT_ONCE

    def __init__(
        self,
        model: nn.Module,
        data: RowsOfPairs,
        pairing: Pairing,
        found: Positives,
        users: np.ndarray,
    ) -> None:
        """Read a row of each user: his first that is relevant; `users` are those of `found`, rising."""
        self.model, self.data, self.device = model, data, device_of(model)
        self.column = list(data.single_valued).index(pairing.item)
        begins, ends = found.bounds(found.relevant, users, 0, found.num_items)
        rows = [found.rows[one:other].min() for one, other in zip(begins, ends, strict=True)]
        self.own = data.rows(np.array(rows, np.int64))
        self.items = item_ids(data, pairing)
        of_items = {*Columns(data, pairing).of_items()}
        self.looked_up = sorted(column.name for column in of_items)
        singles = enumerate(data.single_valued)
        self.single = [n for n, name in singles if Column("id", name) in of_items]
        numbers = enumerate(data.dense_names)
        self.numbers = [n for n, name in numbers if Column("number", name) in of_items]
        self.bags = {name for name in self.own.bags if Column("bag", name) in of_items}
        if of_items:
            self.row_of = _first_rows(data, pairing, found.num_items)
            self.items = self.items[self.row_of[self.items] >= 0]

    @property
    def words(self) -> str:
        """What was looked up, for readers."""
        names = ", ".join(self.looked_up[:3]) + (", ..." if len(self.looked_up) > 3 else "")
        return f"; {names} of each item looked up" if names else ""

    def blocks(self, items: np.ndarray) -> Iterator[tuple[slice, Tensor]]:
        """Outputs of one user after another, (1, items)."""
        count = len(items)
        looked_up = self.data.rows(self.row_of[items]) if self.looked_up else None
        for user in range(len(self.own.ids)):
            ids = self.own.ids[user].repeat(count, 1)
            dense = self.own.dense[user].repeat(count, 1)
            bags = {name: _repeated(bag, user, count) for name, bag in self.own.bags.items()}
            ids[:, self.column] = torch.from_numpy(items)
            if looked_up is not None:
                ids[:, self.single] = looked_up.ids[:, self.single]
                dense[:, self.numbers] = looked_up.dense[:, self.numbers]
                bags |= {name: looked_up.bags[name] for name in self.bags}
            output = self.model(to_device(Candidates(ids, dense, torch.empty(count), bags), self.device))
            yield slice(user, user + 1), output[None].clone()


class Column(NamedTuple):
    """A column by its kind, "id", "number" or "bag", and its name; two kinds may share a name."""

    kind: str
    name: str


class Columns:
    """The columns of rows beside user and item: what each depends on, by a sample of positives."""

    def __init__(self, data: RowsOfPairs, pairing: Pairing) -> None:
        self.data, self.pairing, names = data, pairing, list(data.single_valued)
        self.item, self.users = names.index(pairing.item), [names.index(one) for one in pairing.users]
        self.others = [n for n in range(len(names)) if n not in (self.item, *self.users)]

    def of_items(self) -> list[Column]:
        """The columns to look up; NoCandidatesError if one follows the item and is not decided by it."""
        first = self.data.rows(np.arange(min(1, self.data.splits["train"][1])))
        if not self.others and not self.data.dense_names and not first.bags:
            return []
        rows = self._sample()
        sample = self.data.rows(rows)
        by_item = _Pairs.within(sample.ids.numpy()[:, [self.item]])
        by_user = _Pairs.within(sample.ids.numpy()[:, self.users])
        found = []
        for column, values in self._values(sample).items():
            item, user = by_item.share_explained(values), by_user.share_explained(values)
            if item == 1.0 and user != 1.0:
                found.append(column)
            elif item is not None and item > FOLLOWS and (user is None or item > user):
                raise NoCandidatesError(
                    f"{column.name} follows the item and is not the same in all of its rows, so that "
                    "it would tell which item a row was of; prepare the data without it"
                )
        return found

    def _sample(self) -> np.ndarray:
        """Rows of positives in training, at random."""
        rows = np.concatenate([rows for _, rows in pairs_of(self.data, "train", self.pairing)])
        if len(rows) > LOOKED_AT:
            rows = np.sort(np.random.default_rng(0).choice(rows, LOOKED_AT, replace=False))
        return rows

    def _values(self, batch: Any) -> dict[Column, np.ndarray]:
        """The columns of a batch, each value as one number: exact, but for bags, which are hashed."""
        ids, dense = batch.ids.numpy(), batch.dense.numpy()
        names = list(self.data.single_valued)
        found = {Column("id", names[n]): ids[:, n] for n in self.others}
        numbers = enumerate(self.data.dense_names)
        found |= {Column("number", name): dense[:, n] for n, name in numbers}
        return found | {Column("bag", name): _hashed(*bag) for name, bag in batch.bags.items()}


class _Pairs(NamedTuple):
    """Rows of a batch with the first row that has the same key: places of both, never one row twice."""

    rows: np.ndarray
    first: np.ndarray

    @classmethod
    def within(cls, keys: np.ndarray) -> _Pairs:
        """The pairs of rows with keys (rows, columns)."""
        _, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        rows, same = np.arange(len(keys)), first[inverse.reshape(-1)]
        return cls(rows[rows != same], same[rows != same])

    def share_explained(self, values: np.ndarray) -> float | None:
        """How much the key says of a column beyond chance: 1 if it decides it; None without pairs."""
        if not len(self.rows):
            return None
        one, other = values[self.rows], values[self.first]
        same = float((one == other).mean())
        if same == 1.0:
            return 1.0
        anything = np.random.default_rng(0).permutation(values)[self.rows]
        chance = float((one == anything).mean())
        explained = (same - chance) / (1 - chance) if chance < 1.0 else 0.0
        if values.dtype == np.float32 and one.std() > 0 and other.std() > 0:
            explained = max(explained, float(np.corrcoef(one, other)[0, 1]))
        return min(explained, np.nextafter(1.0, 0.0))


def _first_rows(data: RowsOfPairs, pairing: Pairing, num_items: int) -> np.ndarray:
    """The first positive in training of each item, -1 for none."""
    found = np.full(num_items, -1)
    for pairs, rows in pairs_of(data, "train", pairing):
        known, first = np.unique(pairs % num_items, return_index=True)
        new = found[known] < 0
        found[known[new]] = rows[first[new]]
    return found


def _repeated(bag: tuple[Tensor, Tensor], row: int, count: int) -> tuple[Tensor, Tensor]:
    """The bag of one row, so many times."""
    values, offsets = bag
    own = values[offsets[row] : offsets[row + 1]]
    return own.repeat(count), torch.arange(count + 1) * len(own)


def _hashed(values: Tensor, offsets: Tensor) -> np.ndarray:
    """A number for each bag, the same for equal ones: of its values in any order."""
    mixed = (values.numpy().astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed * mixed, dtype=np.uint64)])
    return np.diff(sums[offsets.numpy()])
