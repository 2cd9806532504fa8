"""How long a run has taken. Knows nothing about what it does with the time."""

from __future__ import annotations

import time


class Clock:
    """The seconds of a run, those before a resumption included, and since its last checkpoint."""

    def __init__(self, seconds_before: float) -> None:
        self._start = time.perf_counter() - seconds_before
        self._saved = time.perf_counter()

    def seconds(self) -> float:
        """The whole run."""
        return time.perf_counter() - self._start

    def since_checkpoint(self) -> float:
        """Since the last checkpoint or, without one, since this process began."""
        return time.perf_counter() - self._saved

    def checkpoint_written(self) -> None:
        """Count from now."""
        self._saved = time.perf_counter()
