"""How the values of options are written. Knows no command."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Number = TypeVar("Number", int, float)


def parse_list(text: str, name: str) -> list[str]:
    """What stands between commas; an error if that is nothing.

    >>> parse_list("1/8, 4MB", "bytes")
    ['1/8', '4MB']
    """
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    if not entries:
        raise ValueError(f"--{name} must name at least one, got {text!r}")
    return entries


def parse_numbers(text: str, name: str, kind: Callable[[str], Number], *, example: str) -> list[Number]:
    """Numbers between commas.

    >>> parse_numbers("2, 4", "widths", int, example="2,4,8")
    [2, 4]
    """
    entries = parse_list(text, name)
    try:
        return [kind(entry) for entry in entries]
    except ValueError:
        raise ValueError(f"--{name} must be numbers such as {example}, got {text!r}") from None


def separator_of(text: str | None) -> str | None:
    """A mark between columns; a tab may be written as a word.

    >>> separator_of(";"), separator_of("tab").isspace()
    (';', True)
    """
    return {"\\t": "\t", "tab": "\t"}.get(text or "", text)
