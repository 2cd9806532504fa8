"""Which stored rows a batch asks for: rows of the layer become values and lengths, as TorchRec has them.

Knows nothing about TorchRec nor about weights. A key is what TorchRec calls a feature: it names a table
and the samples' bags of rows there. Most tables have one key; one with several rows of its block in a
stored row needs a key for each column if samples have bags, as sums cannot be told apart afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mixdim.distributed.tables import BlockTable
from mixdim.layer.bags import Bags


class Key(NamedTuple):
    """A key of a table; `column` is the one column it asks for, or -1: the id decides."""

    name: str
    table: BlockTable
    column: int


class Routed(NamedTuple):
    """What is looked up. K keys, B samples, V values."""

    values: Tensor  # (V,) stored rows, by key, then sample
    lengths: Tensor  # (K * B,) how many of them each sample has of each key
    columns: Tensor  # (K, B) which column of the stored row is meant


def keys_of(tables: Sequence[BlockTable], bag_features: Collection[int]) -> list[Key]:
    """The keys of all tables, in their order; features with bags of several ids are given by number."""
    keys = []
    for table in tables:
        fold = table.layout.fold
        if fold > 1 and table.block.feature in bag_features:
            keys += [Key(f"{table.name}_column{column}", table, column) for column in range(fold)]
        else:
            keys.append(Key(table.name, table, 0 if fold == 1 else -1))
    return keys


class KeyRouting:
    """The way from rows of the layer to stored rows, for the keys of a plan."""

    def __init__(self, keys: Sequence[Key], feature_names: Sequence[str]) -> None:
        self.keys, self.feature_names = keys, feature_names
        self.numbers_of: dict[str, range] = {}  # of each table, see `numbers`
        for key in keys:
            if key.table.name not in self.numbers_of:
                first = max((numbers.stop for numbers in self.numbers_of.values()), default=0)
                layout = key.table.layout
                self.numbers_of[key.table.name] = range(first, first + layout.rows * layout.fold)
        blocks = [key.table.block for key in keys]
        layouts = [key.table.layout for key in keys]

        def tensor(numbers: Iterable[int]) -> Tensor:
            return torch.tensor(list(numbers), dtype=torch.int64, device="cpu")

        self._features = tensor(block.feature for block in blocks)
        self._starts = tensor(block.start for block in blocks)
        self._ends = tensor(block.end for block in blocks)
        self._shared = tensor(block.storage.dim == 0 for block in blocks).bool()
        self._columns = tensor(key.column for key in keys)
        self._folds = tensor(layout.fold for layout in layouts)
        self._strides = tensor(layout.stride for layout in layouts)
        self._rows = tensor(layout.rows for layout in layouts)
        self._first_numbers = tensor(self.numbers_of[key.table.name].start for key in keys)
        # Tables, in the order of rows: where each begins, and its first key.
        self._table_starts, counts = self._starts.unique_consecutive(return_counts=True)
        self._first_keys = counts.cumsum(0) - counts

    def to(self, device: torch.device) -> KeyRouting:
        """Put what it knows beside the ids."""
        if self._starts.device != device:
            for name, value in vars(self).items():
                if isinstance(value, Tensor):
                    setattr(self, name, value.to(device))
        return self

    def ids(self, rows: Tensor) -> Routed:
        """Route one row for each feature and sample, -1 for none: (F, B)."""
        rows = rows[self._features]  # (K, B)
        here = (rows >= self._starts[:, None]) & (rows < self._ends[:, None])
        stored, columns = self._place(rows, slice(None))
        own = self._columns[:, None]
        here &= (own < 0) | (own == columns)
        return Routed(stored[here], here.flatten().to(torch.int64), columns)

    def bags(self, bags: Bags) -> Routed:
        """Route bags of rows, without padding."""
        table = torch.searchsorted(self._table_starts, bags.values, right=True) - 1
        key = self._first_keys[table]  # (V,)
        _, columns = self._place(bags.values, key)
        key = key + torch.where(self._columns[key] == 0, columns, 0)
        stored, columns = self._place(bags.values, key)
        number = key * bags.batch_size + bags.samples
        lengths = torch.bincount(number, minlength=len(self.keys) * bags.batch_size)
        by_key = lengths.view(len(self.keys), -1)
        self._check_single(by_key)
        all_columns = self._columns.clamp(min=0)[:, None].repeat(1, bags.batch_size)
        all_columns.view(-1)[number] = columns
        return Routed(stored[number.argsort(stable=True)], lengths, all_columns)

    def numbers(self, routed: Routed) -> Tensor:
        """Number what is looked up, each once: columns of stored rows, through all tables."""
        values = routed.lengths.view(len(self.keys), -1).sum(1)
        key = torch.arange(len(self.keys), device=values.device).repeat_interleave(values)
        columns = routed.columns.flatten().repeat_interleave(routed.lengths)
        return (self._first_numbers[key] + routed.values * self._folds[key] + columns).unique()

    def _place(self, rows: Tensor, keys: slice | Tensor) -> tuple[Tensor, Tensor]:
        """The stored row and the column of rows: (K, B) of all keys, or (V,) of the keys given."""
        start, shared, fold, stride, num_rows = (
            numbers[keys] if isinstance(keys, Tensor) else numbers[:, None]
            for numbers in (self._starts, self._shared, self._folds, self._strides, self._rows)
        )
        ranks = (rows - start).masked_fill(shared, 0)
        return ranks.div(fold, rounding_mode="floor") * stride % num_rows, ranks % fold

    def _check_single(self, lengths: Tensor) -> None:
        """Refuse a bag of several rows where one sum cannot be told apart: (K, B)."""
        wrong = (lengths.amax(1) > 1) & (self._columns < 0) if lengths.numel() else self._columns < -1
        if bool(wrong.any()):
            name = self.feature_names[int(self._features[wrong][0])]
            raise ValueError(
                f"feature {name!r} has bags of several ids: name it in "
                f"ShardableEmbeddings(plan, bags=[{name!r}])"
            )
