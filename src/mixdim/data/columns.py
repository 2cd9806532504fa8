"""A column of a table, of whatever type, as numbers, times, values or bags: expressions of polars.

Knows nothing about files, roles or splits. All columns of a frame are computed in one query: a query
for each of 50,000 columns would take minutes.
"""

from __future__ import annotations

import polars as pl

TIMES = ("%Y-%m-%d", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M:%S%.f")
TEXTS = pl.String, pl.Categorical, pl.Enum
YES, NO = ("1", "true", "t", "yes", "y"), ("0", "false", "f", "no", "n")


def number(column: pl.Expr, kind: pl.DataType) -> pl.Expr:
    """As float32; null where it is no number, infinite where it is too large."""
    return exact_number(column, kind).cast(pl.Float32, strict=False)


def exact_number(column: pl.Expr, kind: pl.DataType) -> pl.Expr:
    """As float64; null where it is no number."""
    if isinstance(kind, TEXTS):
        column = column.cast(pl.String).str.strip_chars()
    elif is_odd(kind):
        return _nothing(column)
    return column.cast(pl.Float64, strict=False)


def label(column: pl.Expr, kind: pl.DataType) -> pl.Expr:
    """As float32: 1 or 0 for words such as yes and no in any case, else the number, null where none."""
    if not isinstance(kind, TEXTS):
        return number(column, kind)
    word = column.cast(pl.String).str.strip_chars().str.to_lowercase()
    said = pl.when(word.is_in(YES)).then(1.0).when(word.is_in(NO)).then(0.0)
    return pl.coalesce([said.cast(pl.Float32), number(column, kind)])


def missing(column: pl.Expr, kind: pl.DataType) -> pl.Expr:
    """Whether there is nothing in the field."""
    if isinstance(kind, TEXTS):
        return column.is_null() | (column.cast(pl.String).str.strip_chars() == "")
    return column.is_null()


def time(column: pl.Expr, kind: pl.DataType) -> pl.Expr:
    """As float64: a number as it is, a date as seconds; null where it is neither."""
    if isinstance(kind, pl.Date | pl.Datetime):
        return column.cast(pl.Datetime("us")).cast(pl.Int64) / 1e6
    if isinstance(kind, TEXTS):
        text = column.cast(pl.String).str.strip_chars()
        dates = [
            text.str.to_datetime(form, strict=False, time_unit="us").cast(pl.Int64) / 1e6
            for form in TIMES
        ]
        return pl.coalesce([text.cast(pl.Float64, strict=False), *dates])
    return column.cast(pl.Float64, strict=False) if kind.is_numeric() else _nothing(column)


def values(column: pl.Expr, wanted: pl.DataType) -> pl.Expr:
    """As values of the wanted type, int64 or text; an empty text is missing, null."""
    column = column.cast(wanted)
    return pl.when(column != "").then(column) if isinstance(wanted, pl.String) else column


def bag(column: pl.Expr, kind: pl.DataType, mark: str) -> pl.Expr:
    """As lists of texts, none of them empty: lists as they are, other values split at the mark."""
    if not isinstance(kind, pl.List):
        column = column.cast(pl.String).str.split(mark)
    element = pl.element()
    texts = column.cast(pl.List(pl.String)).fill_null([])
    return texts.list.eval(element.filter(element.is_not_null() & (element != "")))


def type_of_values(kind: pl.DataType) -> pl.DataType:
    """The type of a feature's values: integers that always fit stay numbers; all else is its text."""
    too_large = isinstance(kind, pl.UInt64 | pl.Int128 | pl.UInt128)
    return pl.Int64() if kind.is_integer() and not too_large else pl.String()


def is_odd(kind: pl.DataType) -> bool:
    """Whether a type has no single value in each row."""
    return kind.is_nested() or isinstance(kind, pl.Binary | pl.Object)


def _nothing(column: pl.Expr) -> pl.Expr:
    """Null in each row."""
    return pl.when(column.is_null() & column.is_not_null()).then(0.0)
