"""Which column of a table is what, and its rows as typed ones.

Knows nothing about files, vocabularies or the prepared format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import nan

import numpy as np
import polars as pl

from mixdim.data.columns import (
    bag,
    exact_number,
    is_odd,
    label,
    match_columns,
    missing,
    number,
    split_of,
    type_of_values,
    values,
)
from mixdim.data.conditions import Columns, Condition, columns_of
from mixdim.data.lines import TRY_LATIN_1, Rows
from mixdim.data.rejects import BAD_ENCODING, Rejects
from mixdim.data.table_files import named_twice
from mixdim.data.times import advice_for, times_of
from mixdim.data.typed_rows import (
    SPLIT,
    TARGET,
    TIME,
    dense_column,
    feature_column,
)
from mixdim.tasks import TASKS

EMPTY = "target is empty"
HOLDS = "holds"
SPLITS_WITHOUT_COLUMN = ("random", "position", "test")
ADVICE = {
    BAD_ENCODING: TRY_LATIN_1,
    **{task.wrong_target: task.target_advice for task in TASKS.values() if task.target_advice},
}

Check = tuple[str, pl.Expr, str | None]  # what is wrong unless a test passes, and whose value to show


@dataclass
class Roles:
    """Which column is what; remembers the type of each feature, so that all files have the same."""

    target: str | Condition | None  # None: all rows are positives
    categorical: Sequence[str]
    dense: Sequence[str]
    bags: dict[str, str]
    task: str
    where: Condition | None
    split: str
    header: Sequence[str]  # of the first file, for patterns
    by_rules: bool  # whether dense columns keep their gaps, for rules to fill
    is_new: bool = False  # whether rows are only predicted, so that targets may be missing

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise ValueError(f"task must be {' or '.join(map(repr, TASKS))}, got {self.task!r}")
        self.labels = TASKS[self.task].labels
        self.time, self.time_format = self._time_column()
        of_file = self.split.startswith("column:")
        self.split_column = self.split.removeprefix("column:") if of_file else None
        by_column = self.time if self.time is not None else self.split_column
        if not by_column and (by_column == "" or self.split not in SPLITS_WITHOUT_COLUMN):
            raise ValueError(
                "split must be 'random', 'position', 'time:COLUMN' or 'column:COLUMN', "
                f"got {self.split!r}"
            )
        targets = self._target_columns()
        if self.target is not None and targets != [self.target] and self.labels is None:
            raise ValueError(f"a target with a condition makes labels, so task cannot be {self.task!r}")
        if self.target is None and self.labels is None:
            raise ValueError(f"positives and negatives are labels, so task cannot be {self.task!r}")
        times = [] if by_column is None else [by_column]
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
        compared = [] if self.where is None else columns_of(self.where)
        self.has_target = not self.is_new or (bool(targets) and {*targets} <= {*self.header})
        read = targets if self.has_target else []
        self.columns = list(dict.fromkeys([*read, *self.dense, *self.features, *times, *compared]))
        self.place = {name: place for place, name in enumerate(self.columns)}
        self.types: dict[str, pl.DataType] = {}

    def _time_column(self) -> tuple[str | None, str | None]:
        """The column of `time:COLUMN` or `time:COLUMN:FORMAT`, and the format."""
        name = self.split.removeprefix("time:")
        if name == self.split:
            return None, None
        column, percent, form = name.partition(":%")
        return (name, None) if name in self.header or not percent else (column, f"%{form}")

    def _advise_about_time(self, rows: Rows, times: pl.Series, rejects: Rejects) -> None:
        reason = f"{self.time} is not a time"
        if reason in rejects.advice or self.time is None:
            return
        if self.time_format is not None:
            rejects.advice[reason] = f"the format {self.time_format!r} does not read it"
            return
        column = rows.frame.to_series(self.place[self.time])
        wrong = column.filter(times.is_null() & column.is_not_null())
        if len(wrong) and not is_odd(column.dtype):
            rejects.advice[reason] = advice_for(str(wrong[0]), self.time)

    def _target_columns(self) -> list[str]:
        if self.target is None:
            return []
        return [self.target] if isinstance(self.target, str) else columns_of(self.target)

    def typed(self, rows: Rows, rejects: Rejects) -> Rows:
        """The columns as numbers and values; rows that have others are rejected."""
        if self.where is not None:
            rows = self._wanted(self.where, rows, rejects)
        given, columns = self._numbered(rows)
        typed = self._select(rows.name, given, columns)
        if self.time is not None:
            times = times_of(rows.frame.to_series(self.place[self.time]), self.time_format)
            typed = typed.with_columns(times.alias(TIME))
        both = pl.concat([given, typed], how="horizontal")
        good = self._passing(rows, both, self._checks(columns), rejects)
        if self.time is not None and f"{self.time} is not a time" in rejects.reasons:
            self._advise_about_time(rows, typed[TIME], rejects)
        found = Rows(rows.name, typed, rows.lines).keep(good)
        if self.by_rules:
            return found
        dense = [dense_column(index) for index in range(len(self.dense))]
        return replace(found, frame=found.frame.with_columns(pl.col(dense).fill_null(0.0)))

    def _wanted(self, where: Condition, rows: Rows, rejects: Rejects) -> Rows:
        """The rows that meet a condition; others are counted, or rejected if it has no answer."""
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
        failures = ((found[check][0], passed[:, check], values(check)) for check in failed.tolist())
        return rejects.passing(rows.name, rows.lines, failures)

    def _select(self, file: str, given: pl.DataFrame, columns: Columns) -> pl.DataFrame:
        wanted = {TARGET: self._target(columns)}
        for index, name in enumerate(self.dense):
            read = exact_number if self.by_rules else number
            wanted[dense_column(index)] = read(*columns[name])
        for index, name in enumerate(self.features):
            wanted[feature_column(index)] = self._values(file, name, *columns[name])
        if self.split_column is not None:
            wanted[SPLIT] = split_of(*columns[self.split_column])
        try:
            return given.select(expression.alias(name) for name, expression in wanted.items())
        except pl.exceptions.InvalidOperationError:
            for index, name in enumerate(self.features):
                try:
                    given.select(wanted[feature_column(index)])
                except pl.exceptions.InvalidOperationError:
                    raise ValueError(f"{file}: column {name!r} has other types in other files") from None
            raise

    def _target(self, columns: Columns) -> pl.Expr:
        """As float32; NaN for rows to be predicted that have none."""
        if not self.has_target:
            return pl.lit(float("nan"), pl.Float32)
        if self.target is None:
            return pl.lit(1.0, pl.Float32)
        if isinstance(self.target, str):
            target = (number if self.labels is None else label)(*columns[self.target])
        else:
            target = self.target.expression(columns).cast(pl.Float32)
        return pl.when(self._is_known(target)).then(target).fill_null(nan) if self.is_new else target

    def _is_known(self, target: pl.Expr) -> pl.Expr:
        return target.is_finite() if self.labels is None else target.is_in(self.labels)

    def _checks(self, columns: Columns) -> Iterator[Check]:
        target = pl.col(TARGET)
        if self.is_new or self.target is None:
            pass  # no target is needed
        elif isinstance(self.target, str):
            yield EMPTY, ~missing(*columns[self.target]), None
            yield TASKS[self.task].wrong_target, self._is_known(target), self.target
        else:
            yield from _number_checks(self.target, columns, TARGET)
            yield EMPTY, target.is_not_null(), None
        for index, name in enumerate(self.dense):
            is_number = pl.col(dense_column(index)).cast(pl.Float32).is_finite()
            yield f"{name} is not a number", is_number | missing(*columns[name]), name
        if self.time is not None:
            yield f"{self.time} is not a time", pl.col(TIME).is_finite(), self.time
        if self.split_column is not None:
            reason = f"{self.split_column} is not train, validation or test"
            yield reason, pl.col(SPLIT).is_not_null(), self.split_column

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
