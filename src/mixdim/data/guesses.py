"""What a column of a table looks like, from its name and a sample of its values.

Knows nothing about files or commands. The rules are those of docs/data.md, "A proposal", in their order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import polars as pl

from mixdim.data.columns import NO, SPLIT_WORDS, YES, exact_number, is_odd, missing
from mixdim.data.times import times_of, unclear_formats

TARGET_WORDS = {
    *("target", "label", "labels", "y", "click", "clicked", "clicks", "converted", "conversion", "like"),
    *("purchase", "purchased", "bought", "liked", "response", "outcome", "churn", "churned", "fraud"),
}
RATING_WORDS = {"rating", "ratings", "score", "stars"}
ID_WORDS = {
    *("id", "ids", "uid", "code", "zip", "zipcode", "postcode", "user", "item", "movie", "product"),
    *("book", "isbn", "ad", "site", "device", "category", "cat", "type", "class", "shop", "store"),
    *("channel", "app", "os", "ip", "hash", "key"),
}
TIME_WORDS = {"time", "timestamp", "date", "datetime", "day", "ts", "created", "updated"}
ITEM_WORDS = {
    *(
        "item",
        "items",
        "product",
        "movie",
        "book",
        "isbn",
        "asin",
        "sku",
        "stock",
        "song",
        "track",
        "artist",
    ),
    *("article", "news", "video", "place", "venue", "poi", "location", "business", "restaurant", "game"),
}
USER_WORDS = {"user", "users", "uid", "customer", "member", "client", "visitor", "person", "account"}
IDS = ID_WORDS | ITEM_WORDS | USER_WORDS
MARKS = "|;"  # between the values of a bag
SECONDS = 1e8  # smaller numbers are no seconds since 1970
RECENT = (6e8, 4.2e9)  # seconds since 1970 of the years 1989 to 2103
FEW = 50  # whole numbers of so few values are codes
LONG_TEXT = 40  # characters, on average
NEVER_TWICE = 20  # rows from which on "no value occurs twice" means something


@dataclass(frozen=True)
class Guess:
    """A column: what it seems to be, why, and what its sample holds."""

    name: str
    kind: str  # binary, rating (both may be the target), time, categorical, dense, bag or leave out
    why: str
    distinct: int
    missing: float  # share of the rows
    example: str
    mark: str = ""  # of a bag; of times, their format if it must be named
    named: bool = False  # whether it is called as targets are

    def is_called(self, words: set[str]) -> bool:
        """Whether its name has one of some words."""
        return not _words(self.name).isdisjoint(words)


def guess(name: str, column: pl.Series, *, has_name: bool = True) -> Guess:
    """Guess what a column is; without a header its name says nothing."""
    frame = column.to_frame("0")
    here, kind = pl.col("0"), column.dtype
    values = frame.filter(~missing(here, kind))["0"]
    share = 1 - len(values) / max(1, len(column))
    if is_odd(kind):
        is_bag = isinstance(kind, pl.List) and not is_odd(kind.inner)  # type: ignore[arg-type]  # polars may say a class
        found = ("bag", "lists") if is_bag else ("leave out", f"type {kind}")
        return Guess(name, *found, 0, share, str(values[0]) if len(values) else "", mark="|")
    texts = values.cast(pl.String)
    distinct = texts.n_unique()
    words = _words(name) if has_name else set()
    found, mark = _kind(words, values, texts, distinct, has_name)
    example = texts.mode().sort()[0] if len(texts) else ""
    named = not words.isdisjoint(TARGET_WORDS | RATING_WORDS)
    return Guess(name, *found, distinct, share, example, mark, named)


def _kind(
    words: set[str], values: pl.Series, texts: pl.Series, distinct: int, has_name: bool
) -> tuple[tuple[str, str], str]:
    """What the values are and why; of a bag also the mark, of times the format if it must be named."""
    here, kind, rows = pl.col("0"), values.dtype, len(values)
    if distinct <= 1:
        return ("leave out", "one value only" if rows else "no value"), ""
    frame = values.to_frame("0")
    if distinct == 2 and texts.str.strip_chars().str.to_lowercase().is_in([*YES, *NO]).all():
        return ("binary", "two labels"), ""
    lower = texts.str.strip_chars().str.to_lowercase()
    if lower.is_in([*SPLIT_WORDS]).all() and {"train", "training"} & {*lower}:
        return ("split", "train, validation or test"), ""
    numbers = frame.select(exact_number(here, kind))["0"]
    is_number = not numbers.null_count() and not kind.is_temporal()
    if words & RATING_WORDS and is_number:
        return ("rating", "numbers, by its name"), ""
    if is_number:
        if (words & TIME_WORDS or not has_name) and _are_times(numbers, has_name):
            return ("time", "times"), ""
        if not has_name and distinct >= 4 and set((numbers * 2).unique()) <= {*range(1, 11)}:
            return ("rating", "numbers up to 5"), ""
        return _kind_of_numbers(words, numbers, distinct, has_name), ""
    if kind.is_temporal() or not times_of(values).null_count():
        return ("time", "times"), ""
    unclear = unclear_formats(texts)
    if unclear:
        return ("time", "times" if len(unclear) == 1 else "times; day or month first?"), unclear[0]
    mark = next((mark for mark in MARKS if _is_bag(texts, mark)), "")
    if mark:
        return ("bag", f"values between {mark}"), mark
    if texts.str.len_chars().sum() > LONG_TEXT * rows:
        return ("leave out", "long texts"), ""
    if distinct == rows >= NEVER_TWICE:
        return ("leave out", "no value twice"), ""
    return ("categorical", "texts"), ""


def _kind_of_numbers(
    words: set[str], numbers: pl.Series, distinct: int, has_name: bool
) -> tuple[str, str]:
    whole = bool((numbers == numbers.floor()).all())
    if not whole and not words & IDS:
        return "dense", "numbers with fractions"
    counts_up = distinct == len(numbers) >= NEVER_TWICE and numbers.is_sorted()
    if counts_up or (words & IDS and distinct == len(numbers) >= NEVER_TWICE):
        return "leave out", "no value twice"
    if words & IDS:
        return "categorical", "numbers, by its name"
    if not has_name and distinct * 2 <= len(numbers):
        return "categorical", "whole numbers that repeat"
    return ("categorical", "few whole numbers") if distinct <= FEW else ("dense", "many whole numbers")


def _are_times(numbers: pl.Series, has_name: bool) -> bool:
    """Numbers as large as seconds since 1970, or such as 20160420; without a name, of recent seconds."""
    if not has_name:
        return bool(((numbers >= RECENT[0]) & (numbers <= RECENT[1])).all())
    is_day = (numbers >= 1900_01_01) & (numbers <= 2100_12_31) & (numbers % 100 <= 31)
    return bool((numbers >= SECONDS).all() or (is_day & (numbers // 100 % 100 <= 12)).all())


def _is_bag(texts: pl.Series, mark: str) -> bool:
    """Whether a fifth of the texts has the mark, and what is between occurs twice on average."""
    if texts.str.contains(mark, literal=True).sum() * 5 < len(texts):
        return False
    pieces = texts.str.split(mark).explode(empty_as_null=False, keep_nulls=False)
    return pieces.n_unique() * 2 <= len(pieces)


def _words(name: str) -> set[str]:
    """The words of a name: userId, user_id and "User ID" have the same."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", name)}
