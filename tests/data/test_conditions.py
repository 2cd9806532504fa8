"""Conditions against a slow reading of rows, one at a time; what is no condition is refused."""

import random

import polars as pl
import pytest

from mixdim.data.conditions import DEEPEST, LONGEST, columns_of, parse_condition

ROWS = [
    {"a": a, "b c": b, "city": city}
    for a in ("1", "2.5", "-3", None, "x")
    for b in ("0", "1", None)
    for city in ("Oz", 'q"q', " ", None, "it's")
]


def found(text, rows=ROWS):
    frame = pl.DataFrame(rows, orient="row")
    columns = {n: (pl.col(n), k) for n, k in zip(frame.columns, frame.dtypes, strict=True)}
    return frame.select(parse_condition(text, "where").expression(columns).alias("x"))["x"].to_list()


def number(text):
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("a > 1", lambda a, b, c: None if a is None else a > 1),
        ("a>=+1.0", lambda a, b, c: None if a is None else a >= 1),
        ("a<-1e0", lambda a, b, c: None if a is None else a < -1),
        ("'b c' == 1", lambda a, b, c: None if b is None else b == 1),
        ('"b c" != .0', lambda a, b, c: None if b is None else b != 0),
        ("'b c' in (1, 5)", lambda a, b, c: None if b is None else b == 1),
        ("city not in ('Oz', \"it's\")", lambda a, b, c: None if c is None else c not in ("Oz", "it's")),
        ('city == "q""q"', lambda a, b, c: None if c is None else c == 'q"q'),
        ("city == 'it''s'", lambda a, b, c: None if c is None else c == "it's"),
        ("city >= 'a'", lambda a, b, c: None if c is None else c >= "a"),
        ("city == ''", lambda a, b, c: c is None),
        ('NOT city == ""', lambda a, b, c: c is not None),
        ("city != ''", lambda a, b, c: c is not None),
        ("city is null", lambda a, b, c: c is None),
        ("'b c' IS NOT NULL", lambda a, b, c: b is not None),
    ],
)
def test_a_comparison_is_what_python_says_and_unknown_of_nothing(text, holds):
    def words(city):
        return None if city is None or not city.strip() else city

    expected = [holds(number(r["a"]), number(r["b c"]), words(r["city"])) for r in ROWS]
    assert found(text) == expected


def test_and_binds_before_or_and_not_before_and():
    letters = {"p": "'b c' == 1", "q": "city == ''", "r": "city == 'Oz'"}
    rows = [row for row in ROWS if row["b c"] is not None and row["city"] not in (None, " ")]
    rng = random.Random(0)

    def expression(depth):
        if not depth:
            return rng.choice("pqr")
        kind = rng.choice(["({})", "not {}", "{} and {}", "{} or {}", "{} and {} or {}"])
        return kind.format(*(expression(depth - 1) for _ in range(3)))

    for _ in range(30):
        shape = expression(4)
        text = " ".join(letters.get(w, w) for w in shape.replace("(", "( ").replace(")", " )").split())
        python = compile(shape, "shape", "eval")
        truth = [{"p": r["b c"] == "1", "q": False, "r": r["city"] == "Oz"} for r in rows]
        assert found(text, rows) == [bool(eval(python, {}, values)) for values in truth]


def test_what_is_unknown_does_not_matter_if_the_rest_decides():
    rows = [{"a": "NULL"}, {"a": "20"}, {"a": "3"}]
    assert found("a != 'NULL' and a > 18", rows) == [False, True, False]
    assert found("a == 'NULL' or a > 18", rows) == [True, True, False]
    assert found("a > 18", rows) == [None, True, False]


def test_columns_are_named_once_and_those_of_numbers_apart():
    condition = parse_condition("a > 1 and ('b c' == 'x' or not a in (2)) and d != ''", "where")
    assert columns_of(condition) == ["a", "b c", "d"]
    assert columns_of(condition, numbers=True) == ["a"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "its end: a column must come here"),
        ("  ", "its end: a column must come here"),
        ("a", "its end: one of >= > <= < == !=, 'in' or 'is' must follow 'a'"),
        ("a >", "its end: a number or a text in quotes must come here"),
        ("a = 1", "'=' at character 3: one of .* write == for equal"),
        ("a ! 1", "'!' at character 3: one of"),
        ("a => 1", "'=' at character 3: one of"),
        ("a > b", "'b' at character 5: .*; quote a text: \"b\""),
        ("a > nan", "'nan' at character 5: a number or"),
        ("a > 1_000", "'1_000' at character 5: a number or"),
        ("a > 0x10", "'0x10' at character 5: a number or"),
        ("a > 1e999", "'1e999' at character 5: a number too large"),
        ("a == 9007199254740993", "too large to be exact; quote it"),
        ("5 > a", "'5' at character 1: a column must come here; quote its name"),
        ("a > 1 b", "'b' at character 7: 'and', 'or' or the end"),
        ("a > 1 and", "its end: a column"),
        ("and a > 1", "'and' at character 1: a column"),
        ("(a > 1", r"'\(' at character 1: this parenthesis is never closed"),
        ("a > 1)", r"'\)' at character 6: 'and', 'or' or the end"),
        ("(a > 1 b)", r"'b' at character 8: 'and', 'or' or '\)'"),
        ("()", r"'\)' at character 2: a column"),
        ("a in 1", r"'1' at character 6: '\(' must follow 'in'"),
        ("a in ()", r"'\)' at character 7: a number or"),
        ("a in (1, 'x')", "\"'x'\" at character 10: numbers and texts cannot be mixed"),
        ("a in (1", r"its end: ',' or '\)'"),
        ("a not 1", "'1' at character 7: 'in' must follow 'not'"),
        ("a is 1", "'1' at character 6: 'null or not null' must follow 'is'"),
        ("a is not", "its end: 'null' must follow 'is'"),
        ("a == 'x", '"\'x" at character 6: this quote is never closed'),
        ("__import__('os')", r"'\(' at character 11: one of"),
        ("a > 1; import os", "'1;' at character 5: a number or"),
        ("(" * 5_000 + "a > 1" + ")" * 4_000, f"within each other {DEEPEST} times at most"),
        ("not " * 2_000 + "a > 1", f"within each other {DEEPEST} times at most"),
        ("x" * (LONGEST + 1), "at most 10,000 characters, got 10,001"),
    ],
)
def test_what_is_no_condition_is_refused_with_its_place(text, message):
    with pytest.raises(ValueError, match=message) as caught:
        parse_condition(text, "where")
    assert len(str(caught.value)) < 300


def test_the_longest_conditions_are_computed():
    many = " or ".join(["a > 1"] * (LONGEST // 9 - 1))
    deep = "(" * DEEPEST + "a > 1" + ")" * DEEPEST
    odd = "not " * (DEEPEST - 1) + "a > 1"
    rows = [{"a": "1"}, {"a": "2"}]
    assert found(many, rows) == found(deep, rows) == [False, True]
    assert found(odd, rows) == [True, False]


@pytest.mark.parametrize(
    ("series", "text", "message"),
    [
        (
            pl.Series([1]),
            "a == 'x'",
            r"'a' holds numbers \(Int64\): compare it with a number",
        ),
        (pl.Series(["2024-01-31"]).str.to_date(), "a > 3", r"'a' holds times \(Date\): compare it with"),
        (pl.Series([[1]]), "a > 3", r"'a' has values of type List"),
        (pl.Series([b"x"]), "a == 'x'", r"'a' has values of type Binary"),
    ],
)
def test_operators_on_other_types_are_refused(series, text, message):
    with pytest.raises(ValueError, match=message):
        found(text, {"a": series})


@pytest.mark.parametrize(
    ("series", "text"),
    [
        (pl.Series([1, 2]), "a > 1"),
        (pl.Series([0.5, 2.0]), "a > 1"),
        (pl.Series([False, True]), "a == 1"),
        (pl.Series([False, True]), "a == 'true'"),
        (pl.Series(["2024-01-31", "2024-02-01"]).str.to_date(), "a >= '2024-02-01'"),
        (pl.Series(["2024-01-31", "2024-02-01"]).str.to_datetime(), "a >= '2024-02-01'"),
        (pl.Series(["u", "v"], dtype=pl.Categorical), "a > 'u'"),
    ],
)
def test_columns_of_parquet_are_compared_by_their_type(series, text):
    assert found(text, {"a": series}) == [False, True]
