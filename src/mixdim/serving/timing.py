"""How long an answer takes: every contender once a round, so that a noisy machine is noisy for all.

Knows nothing about what is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch

ROUNDS = (10, 500)  # at least, at most
SECONDS = 1.0  # for each contender, if the rounds allow


class Timing(NamedTuple):
    """Milliseconds of one call: the median, and the quartiles."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} ms ({self.low:.3f} to {self.high:.3f})"


def measure(
    contenders: Mapping[str, Callable[[], object]], *, threads: int = 1, seconds: float = SECONDS
) -> dict[str, Timing]:
    """Time contenders, one after the other, round by round.

    With one thread it is the time of the processor, which does not count what other processes take;
    with more, that of the clock.
    """
    clock = time.process_time if threads == 1 else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for call in contenders.values():
        call()  # what is done only once is not counted
    for done in range(ROUNDS[1]):
        if done >= ROUNDS[0] and sum(map(sum, times.values())) > seconds * len(times):
            break
        for name, call in contenders.items():
            start = clock()
            call()
            times[name].append(clock() - start)
    return {
        name: Timing(*(1000 * float(q) for q in np.quantile(found, [0.5, 0.25, 0.75])))
        for name, found in times.items()
    }


@contextmanager
def threads(number: int) -> Iterator[None]:
    """While it is entered, PyTorch works with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
