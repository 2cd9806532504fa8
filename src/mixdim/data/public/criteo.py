"""Criteo's files as typed rows: a label, 13 integers, 26 hashed categories, separated by tabs.

Knows nothing about vocabularies or the prepared format.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path

import numpy as np
import polars as pl

from mixdim.data.encode import encode_rows
from mixdim.data.folder import Meta
from mixdim.data.folder_writer import Spool
from mixdim.data.lines import Layout, Rows, read_plain, take_first_line
from mixdim.data.rejects import Rejects
from mixdim.data.sources import Source, check_sources
from mixdim.data.splits import Split, all_test, by_seven_days, halves
from mixdim.data.typed_rows import (
    TARGET,
    PredictionRows,
    Progress,
    Schema,
    dense_column,
    feature_column,
)
from mixdim.data.vocabulary import BaseVocabulary

DENSE = tuple(f"I{i}" for i in range(1, 14))
CATEGORICAL = tuple(f"C{i}" for i in range(1, 27))
WIDTH = 1 + len(DENSE) + len(CATEGORICAL)
FIELDS = Layout("\t", WIDTH, tuple(range(WIDTH)))
UNLABELLED = Layout("\t", WIDTH - 1, tuple(range(WIDTH - 1)))  # as in the test files of Criteo
SCHEMA = Schema("binary", CATEGORICAL, DENSE)
LAST_DAY = 23  # of the terabyte set, counted from 0
BAD_LABEL, BAD_INTEGER, BAD_HEX = "label is not 0 or 1", "not an integer", "not 8 hex digits"


def prepare_criteo(
    raw: Sequence[Path],
    out: str | Path,
    *,
    layout: str = "kaggle",
    min_count: int | None = None,
    rows: int | None = None,
    split: str | None = None,
    vocabulary_of: str | Path | None = None,
    max_bad: int = 0,
    overwrite: bool = False,
    progress: Progress | None = None,
    prediction: PredictionRows | None = None,
) -> Meta:
    """Prepare Criteo's click logs, plain or gzip.

    `layout="kaggle"`: the files follow each other and hold seven days of equal length; six train, the
    halves of the seventh are validation and test. `"terabyte"`: files day_0 to day_22 train, the halves
    of day_23 are validation and test. `rows` takes only the first rows. Integers x become
    log(1 + max(x, 0)), 0 where missing.

    With `vocabulary_of`, an earlier folder, ids are its own, and all rows are in the test split unless
    `split` is "days". `prediction` is for rows that are only predicted, with or without labels.
    """
    base = None if vocabulary_of is None else BaseVocabulary.open(vocabulary_of, "criteo")
    split = split or ("days" if base is None else "test")
    if split not in ("days", "test") or (split == "test" and base is None):
        raise ValueError(f"split must be 'days' or, with an earlier vocabulary, 'test', got {split!r}")
    if layout not in ("kaggle", "terabyte"):
        raise ValueError(f"layout must be 'kaggle' or 'terabyte', got {layout!r}")
    if rows is not None and rows < 1:
        raise ValueError(f"rows must be >= 1, got {rows}")
    sources = check_sources(raw)
    if layout == "terabyte":
        sources.sort(key=_day)
    rejects = Rejects(max_bad)
    before_last_day = [0]  # rows kept of the days that train

    def chunks() -> Iterator[pl.DataFrame]:
        left = rows
        for source in sources:
            fields = FIELDS if prediction is None else _layout_of(source)
            for found in _read(source, left, rejects, fields, is_new=prediction is not None):
                if left is not None:
                    left -= found.read
                if prediction is not None:
                    prediction.has_target |= fields is FIELDS
                    prediction.keep(source.name, found.lines)
                if layout == "terabyte" and _day(source) < LAST_DAY:
                    before_last_day[0] += found.frame.height
                yield found.frame
            if left == 0:
                return

    def split_of(spool: Spool) -> Split:
        if split == "test":
            return all_test(spool.rows)
        if layout == "kaggle":
            return by_seven_days(spool.rows)
        return Split((before_last_day[0], *halves(spool.rows - before_last_day[0])))

    meta = encode_rows(
        out,
        SCHEMA,
        chunks(),
        split_of,
        rejects,
        min_count=min_count,
        overwrite=overwrite,
        progress=progress,
        source=lambda: [source.describe() for source in sources],
        options={"format": "criteo", "layout": layout, "rows": rows},
        base=base,
    )
    if prediction is not None:
        prediction.finish(rejects)
    return meta


@dataclass(frozen=True)
class _Found:
    """Typed rows, their lines, and how many raw rows they were read from."""

    frame: pl.DataFrame
    lines: np.ndarray
    read: int


def _read(
    source: Source, limit: int | None, rejects: Rejects, fields: Layout, *, is_new: bool
) -> Iterator[_Found]:
    for block in source.blocks():
        if limit == 0:
            return
        if limit is not None:
            block = block.first_rows(limit)
        before = rejects.total
        rows = read_plain(block, fields, rejects)
        if fields is UNLABELLED:
            rows = replace(rows, frame=_unlabelled(rows.frame))
        typed = typed_fields(rows, rejects, is_new=is_new)
        read = typed.frame.height + rejects.total - before
        if limit is not None:
            limit -= read
        yield _Found(typed.frame, typed.lines, read)


def _layout_of(source: Source) -> Layout:
    """With or without labels, by the first line."""
    line, _ = take_first_line(next(replace(source, sample=1).blocks()), FIELDS.encoding)
    return UNLABELLED if line.count("\t") == UNLABELLED.width - 1 else FIELDS


def _unlabelled(frame: pl.DataFrame) -> pl.DataFrame:
    """The same as if there were a column of labels, in which nothing is."""
    places = {str(place): str(place + 1) for place in range(UNLABELLED.width)}
    return frame.rename(places).select(pl.lit(None, pl.String).alias("0"), *places.values())


def typed_fields(rows: Rows, rejects: Rejects, *, is_new: bool) -> Rows:
    """Label, logarithms and categories as numbers; rows that have others are rejected.

    Only a label that is no label becomes NaN where rows are new, to be predicted.
    """
    is_label = pl.col("0").is_in(["0", "1"]).fill_null(False)
    label = pl.col("0").cast(pl.Float32, strict=False)
    if is_new:
        label, is_label = pl.when(is_label).then(label).otherwise(nan), pl.lit(True)
    integers = {c: pl.col(str(i)) for i, c in enumerate(DENSE, 1)}
    hexes = {c: pl.col(str(i)) for i, c in enumerate(CATEGORICAL, 1 + len(DENSE))}
    columns = [
        label.cast(pl.Float32).alias(TARGET),
        *(
            field.str.to_integer(base=10, dtype=pl.Int64, strict=False).alias(dense_column(i))
            for i, field in enumerate(integers.values())
        ),
        *(
            field.str.to_integer(base=16, dtype=pl.UInt32, strict=False).alias(feature_column(i))
            for i, field in enumerate(hexes.values())
        ),
    ]
    typed = rows.frame.select(columns)
    checks = rows.frame.with_columns(typed).select(
        is_label.alias(BAD_LABEL),
        pl.all_horizontal(
            pl.col(dense_column(i)).is_not_null() | field.is_null()
            for i, field in enumerate(integers.values())
        ).alias(BAD_INTEGER),
        pl.all_horizontal(
            (
                pl.col(feature_column(i)).is_not_null()
                & (field.str.len_bytes() == 8)
                & ~field.str.starts_with("+")
            )
            | field.is_null()
            for i, field in enumerate(hexes.values())
        ).alias(BAD_HEX),
    )
    passed = ((reason, checks[reason].to_numpy()) for reason in checks.columns)
    good = rejects.passing(rows.name, rows.lines, passed)
    logs = [
        pl.col(c).clip(lower_bound=0).cast(pl.Float64).log1p().cast(pl.Float32).fill_null(0.0)
        for c in map(dense_column, range(len(DENSE)))
    ]
    return Rows(rows.name, typed.with_columns(logs), rows.lines).keep(good)


def _day(source: Source) -> int:
    match = re.fullmatch(r"day_(\d+)(\.\w+)*", source.path.name)
    if not match or int(match[1]) > LAST_DAY:
        raise ValueError(
            f"{source.name}: files of the terabyte layout are called day_0 to day_{LAST_DAY}"
        )
    return int(match[1])
