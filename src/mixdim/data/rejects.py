"""Which raw rows were malformed, why and where. Knows nothing about what makes a row malformed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

SHOWN = 5  # places in the message
LONGEST_VALUE = 40  # characters of a value in the message
WRONG_FIELDS = "wrong number of fields"
BAD_ENCODING = "bad encoding"


class Column(Protocol):
    """Values by the number of their row."""

    def __getitem__(self, row: int, /) -> Any: ...


class Rejects:
    """Counts malformed rows by reason and remembers the first few places.

    `advice` has for a reason what might help. `left_out` counts the well-formed rows that a filter does
    not want; it is None without a filter.
    """

    def __init__(self, max_bad: int = 0, *, advice: Mapping[str, str] | None = None) -> None:
        if max_bad < 0:
            raise ValueError(f"max_bad must be >= 0, got {max_bad}")
        self.max_bad = max_bad
        self.reasons: Counter[str] = Counter()
        self.places: list[tuple[str, int, str]] = []  # file, line, reason with the value
        self.lines: defaultdict[str, list[np.ndarray]] = defaultdict(list)  # by file, all of them
        self.advice = dict(advice or {})
        self.left_out: int | None = None

    @property
    def total(self) -> int:
        """Malformed rows so far."""
        return self.reasons.total()

    @property
    def too_many(self) -> bool:
        """More than are allowed."""
        return self.total > self.max_bad

    def add(
        self,
        reason: str,
        file: str,
        lines: Sequence[int] | np.ndarray,
        values: Sequence[object] | None = None,
    ) -> None:
        """Reject the rows at these lines, in ascending order, of a file, for their (first) values."""
        if not len(lines):
            return
        self.reasons[reason] += len(lines)
        self.lines[file].append(np.asarray(lines, np.int64))
        reasons = [reason] * SHOWN if values is None else [f"{reason}: {_shown(v)}" for v in values]
        new = [(file, int(line), why) for line, why in zip(lines[:SHOWN], reasons, strict=False)]
        # One block is checked reason by reason, so its places arrive out of order.
        here = sorted([place for place in self.places if place[0] == file] + new, key=lambda p: p[1])
        self.places = ([place for place in self.places if place[0] != file] + here)[:SHOWN]

    def passing(
        self,
        file: str,
        lines: np.ndarray,
        checks: Iterable[tuple[str, np.ndarray] | tuple[str, np.ndarray, Column | None]],
    ) -> np.ndarray:
        """Which rows pass all checks; the first failed one rejects.

        A check is a reason, the rows that passed and, to show them, the values that it is about.
        """
        good = np.ones(len(lines), bool)
        for reason, passed, *about in checks:
            failed = np.flatnonzero(good & ~passed)
            values = about[0] if about else None
            first = None if values is None else [values[int(row)] for row in failed[:SHOWN]]
            self.add(reason, file, lines[failed], first)
            good &= passed
        return good

    def check(self, read: int) -> None:
        """Raise if more of the rows read are malformed than are allowed."""
        if not self.too_many:
            return
        counts = ", ".join(f"{count:,} {reason}" for reason, count in sorted(self.reasons.items()))
        shown = self.places
        if self.reasons.keys() <= self.advice.keys():  # one place will do, with what helps
            shown = [(Path(file).name, line, reason) for file, line, reason in shown[:1]]
        places = "; ".join(f"{file} line {line:,}: {reason}" for file, line, reason in shown)
        more = "; ..." if self.total > len(shown) else ""
        hints = "".join(f"; {hint}" for reason, hint in self.advice.items() if reason in self.reasons)
        raise ValueError(
            f"{self.total:,} of {read:,} rows read are malformed ({counts}), more than "
            f"max_bad = {self.max_bad:,}: {places}{more}{hints}"
        )


def _shown(value: object) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."
