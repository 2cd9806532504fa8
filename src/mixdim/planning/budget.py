"""How many parameters a budget allows, and how sizes are written. Knows nothing about plans."""

from __future__ import annotations

import re
from typing import Any

from mixdim._util.arguments import whole_number

BYTES_PER_PARAMETER = 4  # budgets in bytes are for float32 tables
LARGEST_BUDGET = 2**53  # costs are compared in float64, exact up to here

_PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY_PREFIXES = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_WIDTH = re.compile(r"width:(\d{1,9})")
_FORM = re.compile(r"(?:2\^(?P<power>\d{1,2})|(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[a-z]*))")


class BudgetTooSmallError(ValueError):
    """A budget that no plan of the wanted kind can keep; `least` is the smallest that one can."""

    least: int | None = None


def parse_budget(budget: Any, *, held_bytes: int = 0, num_rows: int | None = None) -> int:
    """Return the number of parameters that `budget` allows.

    An int counts parameters. A string counts parameters (`"2000000"`, `"2M"`, `"2^21"`) or, with a
    unit, float32 bytes (`"64MB"` is 64 million bytes, `"64MiB"` is 64 * 2**20). Of bytes, `held_bytes`
    are needed for what is kept and not trained. Of `num_rows` rows, `"width:2"` is what uniform
    dimensions of width 2 have: two parameters a row.

    >>> parse_budget("64MB"), parse_budget("64MiB"), parse_budget("2M"), parse_budget("2^21")
    (16000000, 16777216, 2000000, 2097152)
    >>> parse_budget("width:2", num_rows=9746)
    19492
    """
    width = width_of(budget)
    if width is not None and num_rows is not None:
        parameters = width * num_rows
    elif isinstance(budget, str):
        parameters = _parse_text(budget, held_bytes)
    else:
        parameters = whole_number(budget, "budget")
    if not 1 <= parameters <= LARGEST_BUDGET:
        raise ValueError(f"budget must be between 1 and 2^53 parameters, got {budget!r}")
    return parameters


def width_of(budget: Any) -> int | None:
    """The uniform width that a budget such as "width:2" names; None of any other.

    >>> width_of("width:2"), width_of("2M")
    (2, None)
    """
    form = _WIDTH.fullmatch(budget.strip().lower()) if isinstance(budget, str) else None
    return None if form is None else whole_number(int(form[1]), "the width of a budget")


def is_in_bytes(budget: Any) -> bool:
    """Whether a budget says bytes, such as "64MB", and not parameters.

    >>> is_in_bytes("64MB"), is_in_bytes("2M"), is_in_bytes("width:2")
    (True, False, False)
    """
    if not isinstance(budget, str) or width_of(budget) is not None:
        return False
    return _amount(budget)[1]


def parse_bytes(text: str) -> int:
    """Return the number of bytes that a text such as "64MB" or "2048B" says.

    >>> parse_bytes("64MB"), parse_bytes("1.5kB")
    (64000000, 1500)
    """
    try:
        amount, is_bytes = _amount(text)
    except ValueError:
        amount, is_bytes = 0, False
    if not is_bytes or amount < 1:
        raise ValueError(f"a size must be a number of bytes such as '64MB' or '64MiB', got {text!r}")
    return amount


def _parse_text(text: str, held_bytes: int) -> int:
    amount, is_bytes = _amount(text)
    if not is_bytes:
        return amount
    if amount < held_bytes + BYTES_PER_PARAMETER and held_bytes:
        raise BudgetTooSmallError(
            f"budget of {text} is too small: the ranks of ids alone take {format_bytes(held_bytes)}"
        )
    return (amount - held_bytes) // BYTES_PER_PARAMETER


def _amount(text: str) -> tuple[int, bool]:
    """The number that a text says, and whether it is of bytes."""
    form = _FORM.fullmatch(text.strip().lower().replace(",", "").replace("_", ""))
    if form is None:
        raise _unreadable(text)
    if form["power"] is not None:
        return 2 ** int(form["power"]), False
    unit = form["unit"]
    prefix = unit.removesuffix("b")
    per_unit = {**_PREFIXES, **_BINARY_PREFIXES}.get(prefix)
    if per_unit is None:
        raise _unreadable(text)
    whole, _, fraction = form["number"].partition(".")
    amount = int(whole + fraction) * per_unit // 10 ** len(fraction)  # exact: no float in between
    return amount, unit.endswith("b")


def _unreadable(text: str) -> ValueError:
    return ValueError(
        f"budget must be a number of parameters such as '2000000', '2M' or '2^21', "
        f"or of float32 bytes such as '64MB' or '64MiB', got {text!r}"
    )


def format_bytes(num_bytes: int) -> str:
    """Write a number of bytes for a person, in decimal units.

    >>> format_bytes(237_431_788), format_bytes(512)
    ('237.4 MB', '512 B')
    """
    amount, unit = float(num_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if amount < 1000:
            break
        amount, unit = amount / 1000, larger
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
