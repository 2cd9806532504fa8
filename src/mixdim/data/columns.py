"""Columns of a table: found by name or pattern, and read as numbers, values or bags.

Knows nothing about files, roles or splits. A column becomes an expression of polars, and all columns of
a frame are computed in one query: a query for each of 50,000 columns would take minutes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import translate
from itertools import accumulate
from re import compile as compile_pattern

import polars as pl

SIGNS = "*?["  # of patterns
RANGE = ".."  # between the first and the last column of a range
TEXTS = pl.String, pl.Categorical, pl.Enum
SPLIT_WORDS = {
    word: place
    for place, words in enumerate(
        (("train", "training"), ("validation", "val", "valid", "dev"), ("test", "testing"))
    )
    for word in words
}
YES, NO = ("1", "true", "t", "yes", "y"), ("0", "false", "f", "no", "n")


def match_columns(
    given: Mapping[str, Sequence[str]], header: Sequence[str], taken: Collection[str] = ()
) -> dict[str, list[str]]:
    """The columns of each option; a pattern or range stands for several, in the header's order.

    What is itself a column is that column. A pattern, or a range of the header such as `C1..C9`, passes
    over the columns that are `taken`, and over those that any option names.

    >>> match_columns({"categorical": ["C*"], "dense": ["C2", "?"]}, ["C1", "C2", "x", "y"], ["y"])
    {'categorical': ['C1'], 'dense': ['C2', 'x']}
    >>> match_columns({"categorical": ["a..c"], "dense": ["b"]}, ["a", "b", "c", "d"])
    {'categorical': ['a', 'c'], 'dense': ['b']}
    """
    known = set(header)
    named = {item for items in given.values() for item in items if item in known}
    free = [name for name in header if name not in named and name not in taken]
    places = {name: place for place, name in enumerate(header)}
    owner: dict[str, str] = {}  # option and pattern that a column was matched by
    found: dict[str, list[str]] = {}
    for option, items in given.items():
        found[option] = []
        for item in items:
            ends = _ends_of(item, known)
            if item in known or not (ends or any(sign in item for sign in SIGNS)):
                found[option].append(item)
                continue
            if ends:
                first, last = (places[name] for name in ends)
                names = [name for name in free if first <= places[name] <= last]
            else:
                matches = compile_pattern(translate(item)).match
                names = [name for name in free if matches(name)]
            if not names:
                raise ValueError(
                    f"{option} {item!r} matches no column that is free; there are {listed(header)}"
                )
            for name in names:
                other = owner.setdefault(name, option)
                if other != option:
                    raise ValueError(f"column {name!r} matches a pattern of {other} and one of {option}")
            found[option] += [name for name in names if name not in found[option]]
    return found


def _ends_of(item: str, known: Collection[str]) -> tuple[str, str] | None:
    """The first and last column of a range such as `C1..C9`, if it is one."""
    pieces = item.split(RANGE)
    pairs = ((RANGE.join(pieces[:n]), RANGE.join(pieces[n:])) for n in range(1, len(pieces)))
    return next((pair for pair in pairs if pair[0] in known and pair[1] in known), None)


def listed(names: Sequence[str], room: int = 200) -> str:
    """Names of columns, as far as a message has room, and how many others there are.

    >>> listed(["user", "item", "country", "day"], room=13)
    'user, item and 2 others'
    """
    fit = sum(1 for size in accumulate(len(name) + 2 for name in names) if size <= room + 2)
    shown = max(fit, 1)
    left = len(names) - shown
    more = "" if left <= 0 else " and 1 other" if left == 1 else f" and {left:,} others"
    return ", ".join(name[:room] for name in names[:shown]) + more


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
    word_label = pl.when(word.is_in(YES)).then(1.0).when(word.is_in(NO)).then(0.0)
    return pl.coalesce([word_label.cast(pl.Float32), number(column, kind)])


def missing(column: pl.Expr, kind: pl.DataType) -> pl.Expr:
    """Whether there is nothing in the field."""
    if isinstance(kind, TEXTS):
        return column.is_null() | (column.cast(pl.String).str.strip_chars() == "")
    return column.is_null()


def split_of(column: pl.Expr, kind: pl.DataType) -> pl.Expr:
    """As int8: the place of a split that is named in any case; null where none is."""
    if not isinstance(kind, TEXTS):
        return pl.when(_nothing(column).is_not_null()).then(0).cast(pl.Int8)
    word = column.cast(pl.String).str.strip_chars().str.to_lowercase()
    return word.replace_strict(SPLIT_WORDS, default=None, return_dtype=pl.Int8)


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
