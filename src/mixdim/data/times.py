"""Columns of times in the forms that people write, as numbers that grow with time.

Knows nothing about files or splits. A number is taken as it is, be it in seconds, milliseconds or days;
a date or time in text becomes seconds since 1970, in UTC where it has a zone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from difflib import SequenceMatcher
from functools import cache

import numpy as np
import polars as pl

# The order of day and month is known in these.
DATES = (
    *("%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y", "%B %d, %Y", "%B %d %Y", "%d %B %Y", "%d-%B-%Y"),
    "%m %d, %Y",
)
HOURS = ("", " %H:%M:%S%.f", "T%H:%M:%S%.f", " %H:%M", "T%H:%M", " %I:%M:%S %p", " %I:%M %p")
FORMATS = (
    *(date + hour for hour in HOURS for date in DATES),
    *("%Y%m%dT%H%M%S", "%a, %d %b %Y %H:%M:%S", "%a %b %d %H:%M:%S %Y", "%d/%B/%Y:%H:%M:%S", "%Y-%m"),
)
WITH_ZONE = (
    *(form + "%#z" for form in FORMATS if "%M" in form or "%S" in form),
    "%a %b %d %H:%M:%S %z %Y",
)
# These are taken only where they are named, since a day may be a month.
UNCLEAR = tuple(
    date + hour
    for hour in HOURS
    for date in ("%m/%d/%Y", "%d/%m/%Y", "%m-%d-%Y", "%d-%m-%Y", "%m/%d/%y", "%d/%m/%y", "%d.%m.%y")
)
NAMED_ZONE = r"(?i)\s*(utc|gmt)$"
ZONE = r"(?i)(\dz|:\d\d(\.\d+)?\s*[+-]\d\d(:?\d\d)?|T\d{6}[+-]\d{4}|\s[+-]\d{4}\s\d{4})$"
FIRST = -30610224000.0  # the year 1000: a year of fewer digits is cut off
SOME = 200  # texts that formats are chosen by
EXAMPLE = datetime(2016, 4, 20, 13, 5)
NEAREST = 3


def times_of(column: pl.Series, form: str | None = None) -> pl.Series:
    """The times of a column as float64, null where there is none; texts by one format if it is given.

    >>> times_of(pl.Series(["April 20, 2016", "2016-04-20T02:00+02:00", "1461110400", "soon"])).to_list()
    [1461110400.0, 1461110400.0, 1461110400.0, None]
    """
    if isinstance(column.dtype, pl.Date | pl.Datetime):
        return column.cast(pl.Datetime("us")).cast(pl.Int64) / 1e6
    if column.dtype.is_numeric():
        return column.cast(pl.Float64, strict=False)
    if not isinstance(column.dtype, pl.String | pl.Categorical | pl.Enum):
        return pl.Series(column.name, [None] * len(column), pl.Float64)
    texts = column.cast(pl.String).str.strip_chars()
    if form is not None:
        return _parsed(texts, form)
    found = texts.cast(pl.Float64, strict=False).rename(column.name)
    is_text = found.is_null() & texts.is_not_null() & (texts != "")
    return _filled(found, is_text, _times_of_texts(texts.filter(is_text))) if is_text.any() else found


def _filled(found: pl.Series, where: pl.Series, times: pl.Series) -> pl.Series:
    """The times found, with others where a mask says so."""
    values = found.fill_null(np.nan).to_numpy(writable=True)
    values[where.to_numpy()] = times.fill_null(np.nan).to_numpy()
    return pl.Series(found.name, values).fill_nan(None)


def _times_of_texts(texts: pl.Series) -> pl.Series:
    """Times of texts, those with a zone in UTC."""
    texts = texts.str.replace(NAMED_ZONE, "Z") if texts.str.contains(NAMED_ZONE).any() else texts
    has_zone = texts.str.contains(ZONE)
    if not has_zone.any():
        return _by_formats(texts, FORMATS)
    found = pl.Series([None] * len(texts), dtype=pl.Float64)
    found = _filled(found, has_zone, _by_formats(texts.filter(has_zone), WITH_ZONE))
    return _filled(found, ~has_zone, _by_formats(texts.filter(~has_zone), FORMATS))


def _by_formats(texts: pl.Series, formats: Sequence[str]) -> pl.Series:
    """Times by the formats that fit: each is sought among some texts, then read wherever it fits."""
    found = np.full(len(texts), np.nan)
    left, step = np.arange(len(texts)), SOME
    while len(left):
        some = texts.gather(left[:step])
        form = next((form for form in formats if _parsed(some, form).is_not_null().any()), None)
        if form is None:
            if step >= len(left):
                break
            step = len(left)  # the first ones are no times at all
            continue
        found[left] = _parsed(texts.gather(left), form).fill_null(np.nan).to_numpy()
        left = left[np.isnan(found[left])]
    return pl.Series(found).fill_nan(None)


def _parsed(texts: pl.Series, form: str) -> pl.Series:
    try:
        times = texts.str.to_datetime(form, strict=False, time_unit="us")
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"{form!r} is no format of times: {str(error).splitlines()[0]}") from None
    seconds = times.cast(pl.Int64) / 1e6
    return seconds.set(seconds < FIRST, None)


def unclear_formats(texts: pl.Series) -> list[str]:
    """The formats with an unclear order of day and month that read all of some texts.

    >>> unclear_formats(pl.Series(["3/4/2016", "31/4/2016"])), unclear_formats(pl.Series(["3/4/2016"]))
    ([], ['%m/%d/%Y', '%d/%m/%Y'])
    """
    given = texts.drop_nulls().str.strip_chars()
    return [form for form in UNCLEAR if len(given) and _parsed(given, form).null_count() == 0]


def advice_for(text: str, column: str) -> str:
    """What may help where a text is no time: its formats, or the ones that are most like it.

    >>> advice_for("Wednesday", "day")
    'times most like it: April 20 2016, 20 April 2016, 20-April-2016'
    """
    unclear = unclear_formats(pl.Series([text], dtype=pl.String))
    if unclear:
        return f"say what is the month: --split 'time:{column}:{unclear[0]}'" + (
            f" or {unclear[1]}" if len(unclear) > 1 else ""
        )
    near = sorted(_examples(), key=lambda example: -_likeness(example, text))[:NEAREST]
    return f"times most like it: {', '.join(near)}"


@cache
def _examples() -> list[str]:
    return [EXAMPLE.strftime(form.replace("%.f", "")) for form in FORMATS]


def _likeness(example: str, text: str) -> float:
    return SequenceMatcher(None, _shape(example), _shape(text), autojunk=False).ratio()


def _shape(text: str) -> str:
    return re.sub(r"[^\W\d_]", "a", re.sub(r"\d", "9", text))
