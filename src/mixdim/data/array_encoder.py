"""Typed rows as ids and numbers in the arrays of a prepared folder, with negatives if there are any.

Knows nothing about raw formats, or how vocabularies, rules and negatives come into being.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import polars as pl

from mixdim.data.dense_rules import DenseRule, apply_rules, dense_names
from mixdim.data.folder_writer import ArrayFile, FolderWriter, Spool
from mixdim.data.negatives import NONE, Negatives, repeats_of
from mixdim.data.splits import Split, bounds_of, take_rows
from mixdim.data.typed_rows import TARGET, Progress, Schema, dense_column, feature_column
from mixdim.data.vocabulary import Vocabulary

Arrays = dict[str, np.ndarray]


class TypedEncoder:
    """Makes ids and numbers of typed rows.

    - `bags`: the features that have several values a row, by their places.
    - `rules`: None if dense columns are taken as they are.
    """

    def __init__(
        self,
        vocabularies: Sequence[Vocabulary],
        bags: Collection[int],
        num_dense: int,
        rules: Sequence[DenseRule] | None,
    ) -> None:
        self.vocabularies, self.bags, self.rules = vocabularies, bags, rules
        self.singles = [index for index in range(len(vocabularies)) if index not in bags]
        self.dense = [dense_column(index) for index in range(num_dense)]

    def arrays(self, typed: pl.DataFrame, do: Callable[..., Iterable[None]] = map) -> Arrays:
        """Ids of single-valued features, targets and numbers, if there are any: one row a row."""
        ids = np.empty((typed.height, len(self.singles)), np.int32)

        def fill(column: int) -> None:
            feature = self.singles[column]
            ids[:, column] = self.vocabularies[feature].encode(typed[feature_column(feature)])

        list(do(fill, range(len(self.singles))))
        arrays = {"ids": ids, "target": typed[TARGET].to_numpy()}
        if self.dense:
            numbers = typed.select(self.dense).to_numpy()
            arrays["dense"] = numbers if self.rules is None else apply_rules(self.rules, numbers)
        return arrays

    def bag(self, typed: pl.DataFrame, feature: int) -> tuple[np.ndarray, np.ndarray]:
        """The ids of a bag's values, one row after another, and how many each row has."""
        bags = typed[feature_column(feature)]
        lengths = bags.list.len().to_numpy().astype(np.int64)
        flat = bags.explode(empty_as_null=False, keep_nulls=False)
        return self.vocabularies[feature].encode(flat), lengths


class ArrayEncoder:
    """Writes typed rows into the arrays of a folder, each split in its place."""

    def __init__(
        self,
        writer: FolderWriter,
        schema: Schema,
        split: Split,
        vocabularies: Sequence[Vocabulary],
        bag_sizes: dict[int, list[int]],
        rules: Sequence[DenseRule] | None,
        negatives: Negatives | None = None,
    ) -> None:
        """Make the arrays; `bag_sizes` are the values of each bag in each split, with negatives."""
        self.split, self.negatives = split, negatives
        self.encoder = TypedEncoder(vocabularies, bag_sizes, len(schema.dense), rules)
        self.sizes = split.sizes if negatives is None else negatives.sizes(split.sizes)
        rows = sum(self.sizes)
        singles = self.encoder.singles
        self.arrays = {"target": ArrayFile(writer, "target.npy", (rows,), np.float32)}
        self.arrays["ids"] = ArrayFile(writer, "ids.npy", (rows, len(singles)), np.int32)
        if schema.dense:
            width = len(schema.dense) if rules is None else len(dense_names(rules))
            self.arrays["dense"] = ArrayFile(writer, "dense.npy", (rows, width), np.float32)
        if negatives is not None:
            self.sampled = singles.index(negatives.sampling.of)
            self.drawn_ids = vocabularies[negatives.sampling.of].encode(negatives.values)
        self.bags = {}
        for index, (train, validation, test) in bag_sizes.items():
            name, total = schema.features[index], train + validation + test
            values = ArrayFile(writer, f"bags/{name}.values.npy", (total,), np.int32)
            offsets = ArrayFile(writer, f"bags/{name}.offsets.npy", (rows + 1,), np.int64)
            offsets.put(rows, np.array([total]))
            self.bags[index] = (values, offsets, [0, train, train + validation])

    def run(self, spool: Spool, report: Progress) -> None:
        """Encode all rows."""
        cursor = [first for first, _ in bounds_of(self.sizes).values()]
        with ExitStack() as opened:
            threads = opened.enter_context(ThreadPoolExecutor(min(4, os.cpu_count() or 1)))
            drawn = None if self.negatives is None else opened.enter_context(self.negatives.opened())
            for start, chunk in spool.chunks(remove=True):
                arrays = self.encoder.arrays(chunk, threads.map)
                for number, rows in enumerate(self.split.members(start, start + chunk.height)):
                    part = {name: array[rows] for name, array in arrays.items()}
                    repeats = None
                    if drawn is not None:
                        codes = drawn(number, len(part["target"]))
                        repeats = repeats_of(codes)
                        part = self._with_negatives(part, codes)
                    for name, array in part.items():
                        self.arrays[name].put(cursor[number], array)
                    if self.bags:
                        self._put_bags(take_rows(chunk, rows), number, cursor[number], repeats)
                    cursor[number] += len(part["target"])
                report("encode", start + chunk.height, spool.rows)

    def _with_negatives(self, positives: Arrays, codes: np.ndarray) -> Arrays:
        """Each row, followed by its negatives."""
        assert self.negatives is not None
        repeats = repeats_of(codes)
        found = {name: np.repeat(array, repeats, axis=0) for name, array in positives.items()}
        is_drawn = np.ones(len(found["target"]), bool)
        is_drawn[np.cumsum(repeats) - repeats] = False
        found["target"][is_drawn] = 0.0
        found["ids"][is_drawn, self.sampled] = self.drawn_ids[codes[codes != NONE]]
        return found

    def _put_bags(self, part: pl.DataFrame, number: int, row: int, repeats: np.ndarray | None) -> None:
        """Write the bags of rows of one split, each so many times, the first of them at `row`."""
        for index, (values, offsets, ends) in self.bags.items():
            ids, lengths = self.encoder.bag(part, index)
            if repeats is not None:
                starts = np.repeat(np.cumsum(lengths) - lengths, repeats)
                lengths = np.repeat(lengths, repeats)
                within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
                ids = ids[np.repeat(starts, lengths) + within]
            values.put(ends[number], ids)
            offsets.put(row, ends[number] + np.cumsum(lengths) - lengths)
            ends[number] += len(ids)
