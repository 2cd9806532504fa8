"""Which raw rows were malformed, why and where. Knows nothing about what makes a row malformed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

SHOWN = 5  # places in the message
WRONG_FIELDS = "wrong number of fields"
BAD_ENCODING = "bad encoding"


class Rejects:
    """Counts malformed rows by reason and remembers the first few places."""

    def __init__(self, max_bad: int = 0) -> None:
        if max_bad < 0:
            raise ValueError(f"max_bad must be >= 0, got {max_bad}")
        self.max_bad = max_bad
        self.reasons: Counter[str] = Counter()
        self.places: list[tuple[str, int, str]] = []  # file, line, reason

    @property
    def total(self) -> int:
        """Malformed rows so far."""
        return self.reasons.total()

    @property
    def too_many(self) -> bool:
        """More than are allowed."""
        return self.total > self.max_bad

    def add(self, reason: str, file: str, lines: Sequence[int] | np.ndarray) -> None:
        """Reject the rows at these lines, in ascending order, of a file."""
        if not len(lines):
            return
        self.reasons[reason] += len(lines)
        new = [(file, int(line), reason) for line in lines[:SHOWN]]
        # One block is checked reason by reason, so its places arrive out of order.
        here = sorted([place for place in self.places if place[0] == file] + new, key=lambda p: p[1])
        self.places = ([place for place in self.places if place[0] != file] + here)[:SHOWN]

    def passing(
        self, file: str, lines: np.ndarray, checks: Iterable[tuple[str, np.ndarray]]
    ) -> np.ndarray:
        """Which rows pass all checks, given as reasons and what passed; the first failed one rejects."""
        good = np.ones(len(lines), bool)
        for reason, passed in checks:
            self.add(reason, file, lines[good & ~passed])
            good &= passed
        return good

    def check(self, read: int) -> None:
        """Raise if more of the rows read are malformed than are allowed."""
        if not self.too_many:
            return
        counts = ", ".join(f"{count:,} {reason}" for reason, count in sorted(self.reasons.items()))
        places = "; ".join(f"{file} line {line:,}: {reason}" for file, line, reason in self.places)
        more = "; ..." if self.total > len(self.places) else ""
        raise ValueError(
            f"{self.total:,} of {read:,} rows read are malformed ({counts}), more than "
            f"max_bad = {self.max_bad:,}: {places}{more}"
        )
