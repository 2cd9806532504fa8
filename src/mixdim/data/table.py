"""Any table, text or Parquet, as typed rows: the caller says which column is what.

Knows nothing about vocabularies or the prepared format.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from mixdim.data.column_patterns import match_columns
from mixdim.data.columns import (
    bag,
    exact_number,
    is_odd,
    label,
    missing,
    number,
    time,
    type_of_values,
    values,
)
from mixdim.data.conditions import Columns, Condition, columns_of, parse_condition
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
from mixdim.data.table_files import check_text, header_of, named_twice, read_rows

BAD = {"binary": "label is not 0 or 1", "rating": "target is not a number"}
EMPTY = "target is empty"
CONDITION = re.compile(r"[<>=!]|\bin\s*\(")  # in a target, unless it is a column
HOLDS = "holds"
ADVICE = {
    BAD_ENCODING: TRY_LATIN_1,
    BAD["binary"]: '--target "COLUMN >= NUMBER" makes labels of numbers, --task rating learns them',
}

Check = tuple[str, pl.Expr, str | None]  # what is wrong unless a test passes, and whose value to show


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
    where: str | None = None,
    split: str = "random",
    seed: int = 0,
    min_count: int = 1,
    max_bad: int = 0,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Meta:
    """Prepare tables with a header: CSV and its relatives, plain or gzip, and Parquet.

    `target` is a column, or a condition such as `"rating >= 8"` that makes labels. `where` is one
    too: only rows that meet it are taken (`mixdim.data.conditions` has the grammar). `categorical` and
    `dense` may have patterns such as `"C*"`. `bags` maps a multi-valued column to the mark between its
    values. Without a `separator` the header shows it. The split is 80/10/10: `"random"` (seeded),
    `"position"`, or `"time:COLUMN"`, a column of numbers or ISO dates. Dense columns are taken as they
    are, 0 where missing.
    """
    check_text(separator, encoding)
    sources = check_sources(raw)
    rejects = Rejects(max_bad, advice=ADVICE)
    header = header_of(sources[0], separator, encoding)
    is_condition = target not in header and CONDITION.search(target)
    roles = _Roles(
        parse_condition(target, "target") if is_condition else target,
        categorical,
        dense,
        dict(bags or {}),
        task,
        None if where is None else parse_condition(where, "where"),
        split,
        header,
    )

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
        Schema(task, roles.features, tuple(roles.dense), frozenset(roles.bags)),
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
            "categorical": list(roles.categorical),
            "dense": list(roles.dense),
            "bags": roles.bags,
            "separator": separator,
            "encoding": encoding,
            "split": split,
            "seed": seed,
            **({} if where is None else {"where": where}),
        },
    )


@dataclass
class _Roles:
    """Which column is what; remembers the type of each feature, so that all files have the same."""

    target: str | Condition
    categorical: Sequence[str]
    dense: Sequence[str]
    bags: dict[str, str]
    task: str
    where: Condition | None
    split: str
    header: Sequence[str]  # of the first file, for patterns

    def __post_init__(self) -> None:
        if self.task not in BAD:
            raise ValueError(f"task must be 'binary' or 'rating', got {self.task!r}")
        self.time = self.split.removeprefix("time:") if self.split.startswith("time:") else None
        if self.time == "" or (self.time is None and self.split not in ("random", "position")):
            raise ValueError(f"split must be 'random', 'position' or 'time:COLUMN', got {self.split!r}")
        targets = [self.target] if isinstance(self.target, str) else columns_of(self.target)
        if targets != [self.target] and self.task != "binary":
            raise ValueError(f"a target with a condition makes labels, so task cannot be {self.task!r}")
        times = [] if self.time is None else [self.time]
        given = {"categorical": self.categorical, "dense": self.dense}
        found = match_columns(given, self.header, {*targets, *self.bags, *times})
        self.categorical, self.dense = tuple(found["categorical"]), tuple(found["dense"])
        single = set(self.categorical)
        self.features = (*self.categorical, *(name for name in self.bags if name not in single))
        if not self.features:
            raise ValueError("categorical must name at least one column")
        for names in (self.features, self.dense):
            twice = named_twice(names)
            if twice:
                raise ValueError(f"column {twice[0]!r} is given twice")
            for target in targets:
                if target in names:
                    raise ValueError(f"column {target!r} is the target, so it cannot be a feature too")
        for name, mark in self.bags.items():
            if not mark:
                raise ValueError(f"bag {name!r} needs the mark between its values, such as '|'")
            if "/" in name or "\0" in name:
                raise ValueError(f"bag {name!r} cannot be a file name; rename the column")
        asked = [] if self.where is None else columns_of(self.where)
        self.columns = list(dict.fromkeys([*targets, *self.dense, *self.features, *times, *asked]))
        self.place = {name: place for place, name in enumerate(self.columns)}
        self.types: dict[str, pl.DataType] = {}

    def typed(self, rows: Rows, rejects: Rejects) -> pl.DataFrame:
        """The columns as numbers and values; rows that have others are rejected."""
        if self.where is not None:
            rows = self._wanted(self.where, rows, rejects)
        given, columns = self._numbered(rows)
        typed = self._select(rows.name, given, columns)
        both = pl.concat([given, typed], how="horizontal")
        good = self._passing(rows, both, self._checks(columns), rejects)
        dense = [dense_column(index) for index in range(len(self.dense))]
        return typed.filter(good).with_columns(pl.col(dense).fill_null(0.0))

    def _wanted(self, where: Condition, rows: Rows, rejects: Rejects) -> Rows:
        """The rows that meet a condition; the others are counted, or rejected if they cannot tell."""
        given, columns = self._numbered(rows)
        both = given.with_columns(where.expression(columns).alias(HOLDS))
        well_formed = self._passing(rows, both, _number_checks(where, columns, HOLDS), rejects)
        wanted = well_formed & both[HOLDS].fill_null(False).to_numpy()
        rejects.left_out = (rejects.left_out or 0) + int(well_formed.sum() - wanted.sum())
        return rows.keep(wanted)

    def _numbered(self, rows: Rows) -> tuple[pl.DataFrame, Columns]:
        """The rows with columns called by their place, for any name is a name, even "*"."""
        given = rows.frame.clone()
        given.columns = [str(place) for place in range(given.width)]
        parts = zip(self.columns, given.columns, given.dtypes, strict=True)
        return given, {name: (pl.col(place), kind) for name, place, kind in parts}

    def _passing(
        self, rows: Rows, frame: pl.DataFrame, checks: Iterable[Check], rejects: Rejects
    ) -> np.ndarray:
        """Which rows of a frame pass all checks; the others are rejected."""
        found = list(checks)
        if not found:
            return np.ones(frame.height, bool)
        tests = (test.fill_null(False).alias(str(i)) for i, (_, test, _) in enumerate(found))
        passed = frame.select(tests).to_numpy()

        def values(check: int) -> pl.Series | None:
            name = found[check][2]
            return None if name is None else rows.frame.to_series(self.place[name])

        failed = np.flatnonzero(~passed.all(axis=0))
        told = ((found[check][0], passed[:, check], values(check)) for check in failed.tolist())
        return rejects.passing(rows.name, rows.lines, told)

    def _select(self, file: str, given: pl.DataFrame, columns: Columns) -> pl.DataFrame:
        if isinstance(self.target, str):
            read = label if self.task == "binary" else number
            wanted = {TARGET: read(*columns[self.target])}
        else:
            wanted = {TARGET: self.target.expression(columns).cast(pl.Float32)}
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

    def _checks(self, columns: Columns) -> Iterator[Check]:
        target = pl.col(TARGET)
        if isinstance(self.target, str):
            yield EMPTY, ~missing(*columns[self.target]), None
            known = target.is_in([0.0, 1.0]) if self.task == "binary" else target.is_finite()
            yield BAD[self.task], known, self.target
        else:
            yield from _number_checks(self.target, columns, TARGET)
            yield EMPTY, target.is_not_null(), None
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


def _number_checks(condition: Condition, columns: Columns, holds: str) -> Iterator[Check]:
    """Where it is unknown whether a condition holds, that it is not for want of a number."""
    for name in columns_of(condition, numbers=True):
        is_number = exact_number(*columns[name]).is_not_nan().fill_null(False)
        test = pl.col(holds).is_not_null() | is_number | missing(*columns[name])
        yield f"{name} is not a number", test, name
