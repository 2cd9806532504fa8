"""Any table, text or Parquet, as typed rows: the caller says which column is what.

Knows nothing about vocabularies or the prepared format.
"""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import polars as pl

from mixdim.data.encoding import (
    TARGET,
    TIME,
    Progress,
    Schema,
    Spool,
    dense_column,
    encode_rows,
    feature_column,
)
from mixdim.data.fields import Layout, Rows, read_fields, take_first_line
from mixdim.data.folder import Meta
from mixdim.data.rejects import Rejects
from mixdim.data.sources import Source, check_sources
from mixdim.data.splitting import Split, at_random, by_position, by_time

SEPARATORS = ",;\t|"
PARQUET = b"PAR1"
PARQUET_ROWS = 1 << 17  # rows of a chunk
BAD = {"binary": "label is not 0 or 1", "rating": "target is not a number"}
TIMES = ("%Y-%m-%d", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M:%S%.f")


def prepare_table(
    raw: Sequence[Path],
    out: str | Path,
    *,
    target: str,
    categorical: Sequence[str],
    dense: Sequence[str] = (),
    bags: Mapping[str, str] | None = None,
    separator: str | None = None,
    encoding: str = "utf-8",
    task: str = "binary",
    split: str = "random",
    seed: int = 0,
    min_count: int = 1,
    max_bad: int = 0,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Meta:
    """Prepare tables with a header: CSV and its relatives, plain or gzip, and Parquet.

    `bags` maps a multi-valued column to the mark between its values. Without a `separator` the header
    shows it. The split is 80/10/10: `"random"` (seeded), `"position"`, or `"time:COLUMN"`, a column of
    numbers or ISO dates. Dense columns are taken as they are, 0 where missing.
    """
    roles = _Roles(target, tuple(categorical), tuple(dense), dict(bags or {}), task, split)
    if separator is not None and len(separator.encode()) != 1:
        raise ValueError(f"separator must be one ASCII character, got {separator!r}")
    try:
        codecs.lookup(encoding)
    except LookupError:
        raise ValueError(f"encoding {encoding!r} is unknown") from None
    if "\n".encode(encoding) != b"\n":
        raise ValueError(f"encoding must extend ASCII, such as utf-8 or latin-1, got {encoding!r}")
    sources = check_sources(raw)
    rejects = Rejects(max_bad)

    def chunks() -> Iterator[pl.DataFrame]:
        for source in sources:
            for rows in _read(source, roles.columns, separator, encoding, rejects):
                yield roles.typed(rows, rejects)

    def split_of(spool: Spool) -> Split:
        if roles.time is not None:
            return by_time(spool.column(TIME))
        return at_random(spool.rows, seed) if split == "random" else by_position(spool.rows)

    return encode_rows(
        out,
        Schema(task, roles.features, roles.dense, frozenset(roles.bags)),
        chunks(),
        split_of,
        rejects,
        min_count=min_count,
        overwrite=overwrite,
        progress=progress,
        source=lambda: [source.describe() for source in sources],
        options={
            "format": "table",
            "target": target,
            "categorical": list(categorical),
            "dense": list(dense),
            "bags": roles.bags,
            "separator": separator,
            "encoding": encoding,
            "split": split,
            "seed": seed,
        },
    )


@dataclass
class _Roles:
    """Which column is what; remembers the type of each feature, so that all files have the same."""

    target: str
    categorical: tuple[str, ...]
    dense: tuple[str, ...]
    bags: dict[str, str]
    task: str
    split: str

    def __post_init__(self) -> None:
        if self.task not in BAD:
            raise ValueError(f"task must be 'binary' or 'rating', got {self.task!r}")
        self.time = self.split.removeprefix("time:") if self.split.startswith("time:") else None
        if self.time == "" or (self.time is None and self.split not in ("random", "position")):
            raise ValueError(f"split must be 'random', 'position' or 'time:COLUMN', got {self.split!r}")
        self.features = (*self.categorical, *(b for b in self.bags if b not in self.categorical))
        if not self.features:
            raise ValueError("categorical must name at least one column")
        for names in (self.features, self.dense):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"column {twice[0]!r} is given twice")
            if self.target in names:
                raise ValueError(f"column {self.target!r} is the target, so it cannot be a feature too")
        for name, mark in self.bags.items():
            if not mark:
                raise ValueError(f"bag {name!r} needs the mark between its values, such as '|'")
            if "/" in name or "\0" in name:
                raise ValueError(f"bag {name!r} cannot be a file name; rename the column")
        times = () if self.time is None else (self.time,)
        self.columns = list(dict.fromkeys([self.target, *self.dense, *self.features, *times]))
        self.types: dict[str, pl.DataType] = {}

    def typed(self, rows: Rows, rejects: Rejects) -> pl.DataFrame:
        """The columns as numbers and values; rows that have others are rejected."""
        target = _number(rows.frame[self.target])
        in_task = target.is_in([0.0, 1.0]) if self.task == "binary" else target.is_finite()
        columns, checks = {TARGET: target}, {BAD[self.task]: in_task}
        for index, name in enumerate(self.dense):
            given = rows.frame[name]
            columns[dense_column(index)] = number = _number(given)
            checks[f"{name} is not a number"] = number.is_finite() | _is_missing(given)
        for index, name in enumerate(self.features):
            columns[feature_column(index)] = self._values(rows, name)
        if self.time is not None:
            columns[TIME] = _time(rows.frame[self.time])
            checks[f"{self.time} is not a time"] = columns[TIME].is_finite()
        good = np.ones(rows.frame.height, bool)
        for reason, check in checks.items():
            passed = check.fill_null(False).to_numpy()
            rejects.add(reason, rows.name, rows.lines[good & ~passed])
            good &= passed
        return (
            pl.DataFrame(columns)
            .filter(good)
            .with_columns(pl.col(dense_column(i)).fill_null(0.0) for i in range(len(self.dense)))
        )

    def _values(self, rows: Rows, name: str) -> pl.Series:
        values = rows.frame[name]
        if name in self.bags:
            if values.dtype != pl.List:
                values = values.cast(pl.String).str.split(self.bags[name])
            texts = values.cast(pl.List(pl.String)).fill_null([])
            return texts.list.eval(
                pl.element().filter(pl.element().is_not_null() & (pl.element() != ""))
            )
        # Integers that always fit stay numbers; all else is its text.
        number = values.dtype.is_integer() and values.dtype not in (pl.UInt64, pl.Int128, pl.UInt128)
        kind = self.types.setdefault(name, pl.Int64() if number else pl.String())
        if isinstance(values.dtype, pl.List | pl.Struct | pl.Array | pl.Binary | pl.Object):
            raise ValueError(f"{rows.name}: column {name!r} has values of type {values.dtype}")
        try:
            values = values.cast(kind)
        except pl.exceptions.InvalidOperationError:
            raise ValueError(f"{rows.name}: column {name!r} has other types in other files") from None
        return values if kind != pl.String else values.replace("", None)


def _read(
    source: Source, columns: list[str], separator: str | None, encoding: str, rejects: Rejects
) -> Iterator[Rows]:
    with source.path.open("rb") as file:
        if file.read(len(PARQUET)) == PARQUET:
            return _read_parquet(source, columns)
    return _read_text(source, columns, separator, encoding, rejects)


def _read_parquet(source: Source, columns: list[str]) -> Iterator[Rows]:
    first = 1
    try:
        table = pl.scan_parquet(source.path, glob=False)
        _check_columns(source, table.collect_schema().names(), columns)
        for frame in table.select(columns).collect_batches(chunk_size=PARQUET_ROWS):
            yield Rows(source.name, frame, np.arange(first, first + frame.height))
            first += frame.height
    except pl.exceptions.PolarsError as error:
        raise ValueError(
            f"{source.name} is no readable Parquet file: {str(error).splitlines()[0]}"
        ) from None


def _read_text(
    source: Source, columns: list[str], separator: str | None, encoding: str, rejects: Rejects
) -> Iterator[Rows]:
    blocks = source.blocks()
    line, first = take_first_line(next(blocks), encoding)
    mark = separator or max(SEPARATORS, key=line.count)
    header = next(csv.reader([line], delimiter=mark), [])
    _check_columns(source, header, columns)
    layout = Layout(mark, len(header), tuple(header.index(c) for c in columns), encoding, quotes=True)
    head = [first] if first.data else []
    for rows in read_fields(source, chain(head, blocks), layout, rejects):
        frame = rows.frame.rename(dict(zip(rows.frame.columns, columns, strict=True)))
        yield Rows(rows.name, frame, rows.lines)


def _check_columns(source: Source, header: list[str], columns: list[str]) -> None:
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise ValueError(f"{source.name}: its header names {', '.join(map(repr, twice))} more than once")
    missing = [name for name in columns if name not in header]
    if missing:
        raise ValueError(
            f"{source.name} has no column {', '.join(map(repr, missing))}; "
            f"it has {', '.join(header)[:200]}"
        )


def _is_missing(values: pl.Series) -> pl.Series:
    return (
        values.is_null() | (values.str.strip_chars() == "")
        if values.dtype == pl.String
        else values.is_null()
    )


def _number(values: pl.Series) -> pl.Series:
    """As float32; null where it is no number, infinite where it is too large."""
    if values.dtype == pl.String:
        values = values.str.strip_chars()
    try:
        return values.cast(pl.Float64, strict=False).cast(pl.Float32, strict=False)
    except pl.exceptions.InvalidOperationError:
        return pl.repeat(None, len(values), dtype=pl.Float32, eager=True)


def _time(values: pl.Series) -> pl.Series:
    """As float64: a number as it is, a date as seconds."""
    if values.dtype.is_temporal():
        return values.cast(pl.Datetime("us")).cast(pl.Int64) / 1e6
    if values.dtype != pl.String:
        return values.cast(pl.Float64, strict=False)
    text = values.str.strip_chars()
    dates = [
        (text.str.to_datetime(form, strict=False, time_unit="us").cast(pl.Int64) / 1e6) for form in TIMES
    ]
    return pl.select(pl.coalesce([text.cast(pl.Float64, strict=False), *dates])).to_series()
