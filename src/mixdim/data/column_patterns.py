"""Which columns of a header are meant by names and patterns such as `C*`. Knows nothing about files."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import translate
from re import compile as compile_pattern

SIGNS = "*?["


def match_columns(
    given: Mapping[str, Sequence[str]], header: Sequence[str], taken: Collection[str] = ()
) -> dict[str, list[str]]:
    """The columns of each option; a pattern stands for those it matches, in the header's order.

    What is itself a column is that column. A pattern passes over the columns that are `taken`, and over
    those that any option names.

    >>> match_columns({"categorical": ["C*"], "dense": ["C2", "?"]}, ["C1", "C2", "x", "y"], ["y"])
    {'categorical': ['C1'], 'dense': ['C2', 'x']}
    """
    known = set(header)
    named = {item for items in given.values() for item in items if item in known}
    free = [name for name in header if name not in named and name not in taken]
    owner: dict[str, str] = {}  # option and pattern that a column was matched by
    found: dict[str, list[str]] = {}
    for option, items in given.items():
        found[option] = []
        for item in items:
            if item in known or not any(sign in item for sign in SIGNS):
                found[option].append(item)
                continue
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


def listed(header: Sequence[str]) -> str:
    """The names of a header, as far as a message has room."""
    return ", ".join(header)[:200]
