"""Conditions on the columns of a table, such as `rating >= 8 and not (city in ("A", "B"))`.

Knows nothing about files or roles. A text is parsed by the grammar below, never evaluated as code:

    or_     = and_ {"or" and_}
    and_    = not_ {"and" not_}
    not_    = "not" not_ | "(" or_ ")" | COLUMN comparison
    comparison = (">=" | ">" | "<=" | "<" | "==" | "!=") VALUE | ["not"] "in" "(" VALUE {"," VALUE} ")"
               | "is" ["not"] "null"

A COLUMN is a word or in quotes, a VALUE a number or a text in quotes. As in SQL, comparing an
empty field gives neither true nor false, but `COLUMN is null` is whether a field is empty.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, NoReturn

import polars as pl

from mixdim.data.columns import exact_number, is_odd, missing

LONGEST = 10_000  # characters of a condition
DEEPEST = 50  # parentheses and nots within each other
LARGEST = 2**53  # whole numbers up to here are exact as float64
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
    "<": operator.lt,
    "==": operator.eq,
    "!=": operator.ne,
}
KEYWORDS = ("and", "or", "not", "in")
TOKEN = re.compile(
    r"""\s*(?:(?P<quoted>"(?:[^"]|"")*"|'(?:[^']|'')*')|(?P<mark>[<>=!]=|[<>=!(),])|(?P<word>[^\s"'<>=!(),]+))"""
)
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)

Columns = Mapping[str, tuple[pl.Expr, pl.DataType]]  # where a column is in a frame, and its type
Value = float | str


@dataclass(frozen=True)
class Comparison:
    """A column and what it is compared with; for `in` several values of one type."""

    column: str
    operator: str
    values: tuple[Value, ...]

    def expression(self, columns: Columns) -> pl.Expr:
        """Whether it holds: null where the field is empty or, compared with numbers, is none."""
        column, kind = columns[self.column]
        if is_odd(kind):
            raise ValueError(
                f"column {self.column!r} has values of type {kind}: no condition is for these"
            )
        if isinstance(self.values[0], float):
            return self._compare(self._as_number(column, kind))
        if kind.is_numeric():
            raise ValueError(
                f"column {self.column!r} holds numbers ({kind}): compare it with a number, "
                f"not with the text {self.values[0]!r}"
            )
        if self.values == ("",) and self.operator in ("==", "!="):
            empty = missing(column, kind)
            return empty if self.operator == "==" else ~empty
        return pl.when(~missing(column, kind)).then(self._compare(column.cast(pl.String)))

    def _as_number(self, column: pl.Expr, kind: pl.DataType) -> pl.Expr:
        if kind.is_temporal():
            raise ValueError(
                f"column {self.column!r} holds times ({kind}): compare it with a text such as "
                f"'2024-01-31', not with the number {self.values[0]:g}"
            )
        number = exact_number(column, kind)
        return pl.when(~number.is_nan()).then(number)

    def _compare(self, column: pl.Expr) -> pl.Expr:
        if self.operator == "in":
            return column.is_in(list(self.values))
        return OPERATORS[self.operator](column, pl.lit(self.values[0]))


@dataclass(frozen=True)
class IsNull:
    """Whether there is nothing in a column's field."""

    column: str

    def expression(self, columns: Columns) -> pl.Expr:
        """Whether it holds, which is never null."""
        return missing(*columns[self.column])


@dataclass(frozen=True)
class Negation:
    """The opposite of a condition."""

    part: Condition

    def expression(self, columns: Columns) -> pl.Expr:
        """Whether the part does not hold."""
        return ~self.part.expression(columns)


@dataclass(frozen=True)
class Junction:
    """Several conditions of which all, or any, must hold."""

    every: bool
    parts: tuple[Condition, ...]

    def expression(self, columns: Columns) -> pl.Expr:
        """Whether they hold, in one expression however many there are."""
        join = pl.all_horizontal if self.every else pl.any_horizontal
        return join([part.expression(columns) for part in self.parts])


Condition = Comparison | IsNull | Negation | Junction


def comparisons(condition: Condition) -> Iterator[Comparison | IsNull]:
    """All comparisons of a condition, from left to right."""
    match condition:
        case Comparison() | IsNull():
            yield condition
        case Negation(part):
            yield from comparisons(part)
        case Junction(_, parts):
            for part in parts:
                yield from comparisons(part)


def columns_of(condition: Condition, *, numbers: bool = False) -> list[str]:
    """The columns of a condition, each once; with `numbers` those compared with numbers."""
    found = (c for c in comparisons(condition) if not numbers or _is_of_numbers(c))
    return list(dict.fromkeys(comparison.column for comparison in found))


def _is_of_numbers(comparison: Comparison | IsNull) -> bool:
    return isinstance(comparison, Comparison) and isinstance(comparison.values[0], float)


def parse_condition(text: str, option: str) -> Condition:
    """Parse a condition, given as an option of that name.

    >>> parse_condition("rating >= 8", "where")
    Comparison(column='rating', operator='>=', values=(8.0,))
    """
    if len(text) > LONGEST:
        raise ValueError(f"{option} must have at most {LONGEST:,} characters, got {len(text):,}")
    return _Parser(text, option).whole()


@dataclass(frozen=True)
class _Token:
    kind: str  # quoted, mark, word or end
    text: str
    start: int

    def is_(self, *texts: str) -> bool:
        text = self.text.lower() if self.kind == "word" else self.text
        return self.kind in ("mark", "word") and text in texts


class _Parser:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str, option: str) -> None:
        self.text, self.option = text, option
        self.tokens = list(self._tokens())
        self.next, self.depth = 0, 0

    def whole(self) -> Condition:
        found = self._or()
        if self._token.kind != "end":
            self._fail("'and', 'or' or the end must come here")
        return found

    def _tokens(self) -> Iterator[_Token]:
        place, end = 0, len(self.text.rstrip())
        while place < end:
            match = TOKEN.match(self.text, place)
            if match is None:
                start = place + len(self.text[place:]) - len(self.text[place:].lstrip())
                self._fail("this quote is never closed", _Token("word", self.text[start:end], start))
            kind = str(match.lastgroup)
            yield _Token(kind, match[kind], match.start(kind))
            place = match.end()
        yield _Token("end", "", end)

    @property
    def _token(self) -> _Token:
        return self.tokens[self.next]

    def _take(self, *texts: str) -> bool:
        """Go on if the token is one of these."""
        found = self._token.is_(*texts)
        self.next += found
        return found

    def _need(self, mark: str, why: str) -> None:
        if not self._take(mark):
            self._fail(why)

    def _or(self) -> Condition:
        return self._junction("or", self._and)

    def _and(self) -> Condition:
        return self._junction("and", self._not)

    def _junction(self, word: str, part: Callable[[], Condition]) -> Condition:
        parts = [part()]
        while self._take(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else Junction(word == "and", tuple(parts))

    def _not(self) -> Condition:
        if not self._token.is_("not", "("):
            return self._comparison()
        if self.depth == DEEPEST:
            self._fail(f"parentheses and nots may be within each other {DEEPEST} times at most")
        self.depth += 1
        if self._take("not"):
            found: Condition = Negation(self._not())
        else:
            opened = self._token
            self.next += 1
            found = self._or()
            if self._token.kind == "end":
                self._fail("this parenthesis is never closed", opened)
            self._need(")", "'and', 'or' or ')' must come here")
        self.depth -= 1
        return found

    def _comparison(self) -> Condition:
        token = self._token
        if token.kind not in ("word", "quoted") or token.is_(*KEYWORDS):
            self._fail("a column must come here")
        if token.kind == "word" and NUMBER.fullmatch(token.text):
            self._fail("a column must come here; quote its name if it is a number")
        self.next += 1
        column = _unquoted(token)
        if self._take("not"):
            self._need("in", "'in' must follow 'not'")
            return Negation(Comparison(column, "in", self._values()))
        if self._take("in"):
            return Comparison(column, "in", self._values())
        if self._take("is"):
            is_not = self._take("not")
            self._need("null", f"'{'null' if is_not else 'null or not null'}' must follow 'is'")
            return Negation(IsNull(column)) if is_not else IsNull(column)
        sign = self._token
        if not self._take(*OPERATORS):
            equal = "; write == for equal" if sign.is_("=") else ""
            self._fail(f"one of {' '.join(OPERATORS)}, 'in' or 'is' must follow {column!r}{equal}")
        return Comparison(column, sign.text, (self._value(),))

    def _values(self) -> tuple[Value, ...]:
        self._need("(", "'(' must follow 'in'")
        values = [self._value()]
        while self._take(","):
            values.append(self._value())
            if type(values[-1]) is not type(values[0]):
                self.next -= 1
                self._fail("numbers and texts cannot be mixed after 'in'")
        self._need(")", "',' or ')' must come here")
        return tuple(values)

    def _value(self) -> Value:
        token = self._token
        if token.kind == "quoted":
            value: Value = _unquoted(token)
        elif token.kind == "word" and NUMBER.fullmatch(token.text):
            value = float(token.text)
            whole = token.text.lstrip("+-").isdigit()
            if not isfinite(value) or (whole and abs(value) >= LARGEST):
                self._fail("a number too large to be exact; quote it to compare texts")
        else:
            quoted = f'; quote a text: "{token.text}"' if token.kind == "word" else ""
            self._fail(f"a number or a text in quotes must come here{quoted}")
        self.next += 1
        return value

    def _fail(self, why: str, token: _Token | None = None) -> NoReturn:
        token = token or self._token
        found = f"{_cut(token.text)!r} at character {token.start + 1}" if token.text else "its end"
        raise ValueError(f"{self.option} {_cut(self.text)!r}, {found}: {why}")


def _unquoted(token: _Token) -> str:
    if token.kind != "quoted":
        return token.text
    mark = token.text[0]
    return token.text[1:-1].replace(mark * 2, mark)


def _cut(text: str, longest: int = 60) -> str:
    return text if len(text) <= longest else f"{text[:longest]}..."
