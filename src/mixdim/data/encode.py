"""Typed rows in, a prepared folder out: rows wait on disk, values are counted, then encoded.

Knows nothing about raw formats. Memory holds one chunk of rows and the vocabularies, never all rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from mixdim.data.dense_rules import DenseMoments, DenseRule, apply_rules, dense_names
from mixdim.data.folder import FeatureMeta, Meta, vocabulary_file
from mixdim.data.folder_writer import ArrayFile, FolderWriter, Spool
from mixdim.data.rejects import Rejects
from mixdim.data.splits import Split
from mixdim.data.vocabulary import BaseVocabulary, ValueCounts, Vocabulary

Progress = Callable[[str, int, int | None], None]
TARGET, TIME = "target", "time"
Members = list[slice | np.ndarray]


def dense_column(index: int) -> str:
    """How typed rows call a dense column: float32, or float64 with nulls if rules are for it."""
    return f"dense.{index}"


def feature_column(index: int) -> str:
    """How typed rows call a feature: values, null where missing; of a bag, lists of values."""
    return f"feature.{index}"


@dataclass(frozen=True)
class Schema:
    """What typed rows hold."""

    task: str
    features: tuple[str, ...]
    dense: tuple[str, ...] = ()
    bags: frozenset[str] = frozenset()
    by_rules: bool = False  # whether dense columns are standardised by rules of the training split

    @property
    def columns(self) -> list[str]:
        """The columns of typed rows, beside the time."""
        dense = [dense_column(i) for i in range(len(self.dense))]
        return [TARGET, *dense, *(feature_column(i) for i in range(len(self.features)))]


@dataclass
class PredictionRows:
    """Rows that are only predicted: targets may be missing; a reader records here where rows stood."""

    has_target: bool = False  # whether the file has a target, if perhaps not in each row
    lines: list[np.ndarray] = field(default_factory=list)
    file: str = ""
    rejected: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    def keep(self, file: str, lines: np.ndarray) -> None:
        """Remember the lines of rows that are kept."""
        self.file = file
        self.lines.append(lines)

    def finish(self, rejects: Rejects) -> None:
        """Remember the lines of the rows that were not."""
        self.rejected = np.concatenate([np.empty(0, np.int64), *rejects.lines[self.file]])

    @property
    def places(self) -> np.ndarray:
        """The place of each row kept among all of the file from 0, without header and blank lines."""
        kept = np.concatenate([np.empty(0, np.int64), *self.lines])
        return np.searchsorted(np.sort(np.concatenate([kept, self.rejected])), kept)


def encode_rows(
    out: str | Path,
    schema: Schema,
    chunks: Iterable[pl.DataFrame],
    split_of: Callable[[Spool], Split],
    rejects: Rejects,
    *,
    min_count: int | None,
    overwrite: bool,
    progress: Progress | None,
    source: Callable[[], list[dict[str, Any]]],
    options: dict[str, Any],
    base: BaseVocabulary | None = None,
) -> Meta:
    """Write the prepared folder of typed rows; `split_of` is called once all rows are known.

    Ids and dense rules are those of a `base` folder, or come from the training split.
    """
    if base is not None:
        base.check(schema.task, schema.features, schema.bags, schema.dense)
        min_count = base.agreed("min_count", min_count, base.meta.options.get("min_count", 1))
        options = {**options, "vocabulary_of": str(base.folder)}
    min_count = 1 if min_count is None else min_count
    if min_count < 1:
        raise ValueError(f"min_count must be >= 1, got {min_count}")
    report = progress or (lambda stage, done, total: None)
    out = Path(out)
    with FolderWriter(out, overwrite=overwrite) as writer:
        spool = Spool(writer.path / "spool")
        _read(chunks, spool, rejects, report)
        split = split_of(spool) if spool.rows else Split((0, 0, 0))
        if not split.sizes[0] and (base is None or not spool.rows):
            kept = f", {rejects.left_out:,} others left out by where" if rejects.left_out else ""
            where = "at all" if base is not None else "in the training split"
            raise ValueError(f"no rows {where}: {spool.rows:,} rows of {_names(source)}{kept}")
        counts, bag_sizes, moments = _count(schema, spool, split, report)
        source_values = [count.total().height for count in counts]
        if base is None:
            vocabularies = [Vocabulary.counted(count.total(), min_count=min_count) for count in counts]
            for index, vocabulary in enumerate(vocabularies):
                vocabulary.write(writer.path / vocabulary_file(index))
            rules = moments.rules() if schema.by_rules and schema.dense else None
        else:
            vocabularies, rules = base.copy_to(writer.path), base.meta.dense_rules
        del counts
        _Encoder(writer, schema, split, vocabularies, bag_sizes, rules).run(spool, report)
        meta = Meta(
            task=schema.task,
            features=tuple(
                FeatureMeta(name, v.rows, v.out_of_vocabulary, distinct, name in schema.bags)
                for name, v, distinct in zip(schema.features, vocabularies, source_values, strict=True)
            ),
            dense=schema.dense if rules is None else dense_names(rules),
            splits=split.bounds,
            source={"files": source()},
            options={**options, "min_count": min_count, "max_bad": rejects.max_bad},
            rows={
                "read": spool.rows + rejects.total + (rejects.left_out or 0),
                "kept": spool.rows,
                "rejected": dict(sorted(rejects.reasons.items())),
                **({} if rejects.left_out is None else {"left_out": rejects.left_out}),
            },
            dense_rules=rules,
        )
        writer.finish(meta)
        return meta


def _read(chunks: Iterable[pl.DataFrame], spool: Spool, rejects: Rejects, report: Progress) -> None:
    kept = well_formed = 0
    for chunk in chunks:
        kept += chunk.height
        well_formed = kept + (rejects.left_out or 0)
        report("read", well_formed + rejects.total, None)
        if not rejects.too_many:
            if chunk.height:
                spool.add(chunk)
        elif rejects.total > well_formed:
            break  # most rows are malformed: this is another format, and the rest says nothing new
    rejects.check(well_formed + rejects.total)


def _count(
    schema: Schema, spool: Spool, split: Split, report: Progress
) -> tuple[list[ValueCounts], dict[int, list[int]], DenseMoments]:
    """Count values of each feature and in the bags of each split; sum up dense columns in training."""
    moments = DenseMoments(schema.dense)
    dense = [dense_column(index) for index in range(len(schema.dense))]
    counts = [ValueCounts() for _ in schema.features]
    bag_sizes = {i: [0, 0, 0] for i, name in enumerate(schema.features) if name in schema.bags}
    for start, chunk in spool.chunks():
        for number, rows in enumerate(split.members(start, start + chunk.height)):
            part = _take(chunk, rows)
            if not part.height:
                continue
            for index in range(len(schema.features)):
                values = part[feature_column(index)]
                if index in bag_sizes:
                    values = values.explode(empty_as_null=False, keep_nulls=False)
                    bag_sizes[index][number] += len(values)
                counts[index].add(values, training=number == 0)
            if number == 0 and schema.by_rules and dense:
                moments.add(part.select(dense).to_numpy())
        report("count", start + chunk.height, spool.rows)
    return counts, bag_sizes, moments


class _Encoder:
    """Writes typed rows into the arrays of the folder, each split in its place."""

    def __init__(
        self,
        writer: FolderWriter,
        schema: Schema,
        split: Split,
        vocabularies: Sequence[Vocabulary],
        bag_sizes: dict[int, list[int]],
        rules: Sequence[DenseRule] | None,
    ) -> None:
        rows = sum(split.sizes)
        self.split, self.vocabularies, self.rules = split, vocabularies, rules
        self.singles = [i for i in range(len(schema.features)) if i not in bag_sizes]
        self.dense = [dense_column(i) for i in range(len(schema.dense))]
        self.arrays = {"target": ArrayFile(writer, "target.npy", (rows,), np.float32)}
        self.arrays["ids"] = ArrayFile(writer, "ids.npy", (rows, len(self.singles)), np.int32)
        if self.dense:
            width = len(self.dense) if rules is None else len(dense_names(rules))
            self.arrays["dense"] = ArrayFile(writer, "dense.npy", (rows, width), np.float32)
        self.bags = {}
        for index, (train, validation, test) in bag_sizes.items():
            name, total = schema.features[index], train + validation + test
            values = ArrayFile(writer, f"bags/{name}.values.npy", (total,), np.int32)
            offsets = ArrayFile(writer, f"bags/{name}.offsets.npy", (rows + 1,), np.int64)
            offsets.put(rows, np.array([total]))
            self.bags[index] = (values, offsets, [0, train, train + validation])

    def run(self, spool: Spool, report: Progress) -> None:
        """Encode all rows."""
        cursor = [first for first, _ in self.split.bounds.values()]
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as threads:
            for start, chunk in spool.chunks(remove=True):
                arrays = self._arrays_of(chunk, threads)
                for number, rows in enumerate(self.split.members(start, start + chunk.height)):
                    for name, array in arrays.items():
                        self.arrays[name].put(cursor[number], array[rows])
                    if self.bags:
                        self._put_bags(_take(chunk, rows), number, cursor[number])
                    cursor[number] += len(arrays["target"][rows])
                report("encode", start + chunk.height, spool.rows)

    def _arrays_of(self, chunk: pl.DataFrame, threads: ThreadPoolExecutor) -> dict[str, np.ndarray]:
        """What a chunk adds to the arrays that have one row a row."""
        ids = np.empty((chunk.height, len(self.singles)), np.int32)

        def fill(column: int) -> None:
            feature = self.singles[column]
            ids[:, column] = self.vocabularies[feature].encode(chunk[feature_column(feature)])

        list(threads.map(fill, range(len(self.singles))))
        arrays = {"ids": ids, "target": chunk[TARGET].to_numpy()}
        if self.dense:
            numbers = chunk.select(self.dense).to_numpy()
            arrays["dense"] = numbers if self.rules is None else apply_rules(self.rules, numbers)
        return arrays

    def _put_bags(self, part: pl.DataFrame, number: int, row: int) -> None:
        """Write the bags of rows of one split, the first of them at `row`."""
        for index, (values, offsets, ends) in self.bags.items():
            bags = part[feature_column(index)]
            lengths = bags.list.len().to_numpy().astype(np.int64)
            flat = bags.explode(empty_as_null=False, keep_nulls=False)
            values.put(ends[number], self.vocabularies[index].encode(flat))
            offsets.put(row, ends[number] + np.cumsum(lengths) - lengths)
            ends[number] += len(flat)


def _take(chunk: pl.DataFrame, rows: slice | np.ndarray) -> pl.DataFrame:
    if isinstance(rows, slice):
        return chunk.slice(rows.start, rows.stop - rows.start)
    return chunk[rows]


def _names(source: Callable[[], list[dict[str, Any]]]) -> str:
    return ", ".join(file["name"] for file in source())
