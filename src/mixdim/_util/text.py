"""How names and tables look in a terminal. Knows nothing about what they are about."""

from __future__ import annotations

import re

CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Show what a line cannot hold, such as a line break in a feature's name, as Python writes it.

    >>> print(printable("two\nlines, \x1b[31mred"))
    two\nlines, \x1b[31mred
    """
    return CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


def align(lines: list[list[str]]) -> list[str]:
    """Write cells in columns: the first to the left, the others to the right.

    >>> align([["a", "1"], ["bcd", "234"]])
    ['a      1', 'bcd  234']
    """
    lines = [[printable(cell) for cell in line] for line in lines]
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    return [
        "  ".join([
            line[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
        ]).rstrip()
        for line in lines
    ]  # fmt: skip


class Note(str):
    """What stands behind a bar, such as a loss; `seconds_left` is what all the work will still take.

    It is None while nobody knows.

    >>> Note("epoch 1/3", 90.0), Note("epoch 1/3", 90.0).seconds_left
    ('epoch 1/3', 90.0)
    """

    seconds_left: float | None

    def __new__(cls, text: str, seconds_left: float | None) -> Note:
        """Make a text that also says how long the work will take."""
        note = super().__new__(cls, text)
        note.seconds_left = seconds_left
        return note
