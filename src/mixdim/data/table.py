"""Any table, text or Parquet, as typed rows: the caller says which column is what.

Knows nothing about vocabularies or the prepared format.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from mixdim.data.columns import bag, is_odd, label, missing, number, time, type_of_values, values
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
from mixdim.data.fields import TRY_LATIN_1, Rows
from mixdim.data.folder import Meta
from mixdim.data.rejects import BAD_ENCODING, Rejects
from mixdim.data.sources import check_sources
from mixdim.data.splitting import Split, at_random, by_position, by_time
from mixdim.data.table_files import named_twice, read_rows

BAD = {"binary": "label is not 0 or 1", "rating": "target is not a number"}
EMPTY = "target is empty"
ADVICE = {
    BAD_ENCODING: TRY_LATIN_1,
    BAD["binary"]: '--target "COLUMN >= NUMBER" makes labels of numbers, --task rating learns them',
}

Columns = dict[str, tuple[pl.Expr, pl.DataType]]  # where a column is in a frame, and its type


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
    rejects = Rejects(max_bad, advice=ADVICE)

    def chunks() -> Iterator[pl.DataFrame]:
        for source in sources:
            for rows in read_rows(source, roles.columns, separator, encoding, rejects):
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
        single = set(self.categorical)
        self.features = (*self.categorical, *(name for name in self.bags if name not in single))
        if not self.features:
            raise ValueError("categorical must name at least one column")
        for names in (self.features, self.dense):
            twice = named_twice(names)
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
        self.place = {name: place for place, name in enumerate(self.columns)}
        self.types: dict[str, pl.DataType] = {}

    def typed(self, rows: Rows, rejects: Rejects) -> pl.DataFrame:
        """The columns as numbers and values; rows that have others are rejected."""
        given = rows.frame.clone()
        given.columns = [str(place) for place in range(given.width)]  # any name is a name, even "*"
        columns = {
            name: (pl.col(place), kind)
            for name, place, kind in zip(self.columns, given.columns, given.dtypes, strict=True)
        }
        typed = self._select(rows.name, given, columns)
        reasons, checks, about = zip(*self._checks(columns), strict=True)
        both = pl.concat([given, typed], how="horizontal")
        passed = both.select(c.fill_null(False).alias(str(i)) for i, c in enumerate(checks)).to_numpy()
        failed = np.flatnonzero(~passed.all(axis=0))
        good = rejects.passing(
            rows.name,
            rows.lines,
            ((reasons[check], passed[:, check], self._shown(rows, about[check])) for check in failed),
        )
        dense = [dense_column(index) for index in range(len(self.dense))]
        return typed.filter(good).with_columns(pl.col(dense).fill_null(0.0))

    def _shown(self, rows: Rows, name: str | None) -> pl.Series | None:
        return None if name is None else rows.frame.to_series(self.place[name])

    def _select(self, file: str, given: pl.DataFrame, columns: Columns) -> pl.DataFrame:
        read = label if self.task == "binary" else number
        wanted = {TARGET: read(*columns[self.target])}
        for index, name in enumerate(self.dense):
            wanted[dense_column(index)] = number(*columns[name])
        for index, name in enumerate(self.features):
            wanted[feature_column(index)] = self._values(file, name, *columns[name])
        if self.time is not None:
            wanted[TIME] = time(*columns[self.time])
        try:
            return given.select(expression.alias(name) for name, expression in wanted.items())
        except pl.exceptions.InvalidOperationError:
            for index, name in enumerate(self.features):
                try:
                    given.select(wanted[feature_column(index)])
                except pl.exceptions.InvalidOperationError:
                    raise ValueError(f"{file}: column {name!r} has other types in other files") from None
            raise

    def _checks(self, columns: Columns) -> Iterator[tuple[str, pl.Expr, str | None]]:
        """What is wrong with a row, the test that it then does not pass, and whose value to show."""
        target = pl.col(TARGET)
        yield EMPTY, ~missing(*columns[self.target]), None
        known = target.is_in([0.0, 1.0]) if self.task == "binary" else target.is_finite()
        yield BAD[self.task], known, self.target
        for index, name in enumerate(self.dense):
            is_number = pl.col(dense_column(index)).is_finite()
            yield f"{name} is not a number", is_number | missing(*columns[name]), name
        if self.time is not None:
            yield f"{self.time} is not a time", pl.col(TIME).is_finite(), self.time

    def _values(self, file: str, name: str, column: pl.Expr, kind: pl.DataType) -> pl.Expr:
        if name in self.bags:
            return bag(column, kind, self.bags[name])
        if is_odd(kind):
            raise ValueError(f"{file}: column {name!r} has values of type {kind}")
        return values(column, self.types.setdefault(name, type_of_values(kind)))
