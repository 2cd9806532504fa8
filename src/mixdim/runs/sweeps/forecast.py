"""How long a sweep will still take: each run as long as the most similar ones that were measured.

Knows no clock: it is told how long things took.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from mixdim.runs.config import RunConfig, canonical, comparable
from mixdim.runs.sweeps.records import Record

DRAWN = {"seed", "data"}  # which differ between the runs of one configuration
# Options that the time of a run depends on; two runs that agree in an earlier one are more similar.
OF_TIME = ("model", "data", "epochs", "batch_size", "base_dim", "method", "bits", "temperature")

Kinds = tuple[str, ...]  # values of OF_TIME, and all options together


class Forecast:
    """The seconds of runs: the mean over runs of the same options or, without any, over similar ones.

    Records say how long training took, perhaps on another machine. `slower` is how long runs take in
    this sweep, the start of their process and all, as a multiple of that.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self._measured: dict[Kinds, list[float]] = defaultdict(list)
        self._found: dict[RunConfig, float] = {}
        self._took, self._trained = 0.0, 0.0
        for record in records:
            self._keep(record)

    def add(self, record: Record, seconds: float) -> None:
        """Take in a run of this sweep that has ended, and how long it took in all."""
        if trained := self._keep(record):
            self._took += seconds
            self._trained += trained

    @property
    def slower(self) -> float:
        """1 before the first run of this sweep has ended."""
        return self._took / self._trained if self._trained else 1.0

    def seconds_of(self, config: RunConfig) -> float:
        """What a run will take; 0 if nothing was measured."""
        if config not in self._found:
            mine = _kinds(config.to_dict())
            similar = {kinds: _similarity(mine, kinds) for kinds in self._measured}
            most = max(similar.values(), default=0)
            alike = [s for kinds in similar if similar[kinds] == most for s in self._measured[kinds]]
            self._found[config] = fmean(alike) if alike else 0.0
        return self.slower * self._found[config]

    def seconds_left(
        self,
        waiting: Sequence[RunConfig],
        working: Sequence[tuple[RunConfig, float]],
        *,
        jobs: int = 1,
        later: int = 0,
        like: Sequence[RunConfig] = (),
    ) -> float | None:
        """The time until all runs are done; None while nothing was measured.

        There are runs that wait, runs at work for so many seconds, and so many `later` ones of which
        only is known what they are `like`.
        """
        if not self._measured:
            return None
        at_work = [max(self.seconds_of(config) - seconds, 0.0) for config, seconds in working]
        work = sum(at_work) + sum(map(self.seconds_of, waiting))
        if later and like:
            work += later * fmean(map(self.seconds_of, like))
        return max(work / jobs, *at_work, 0.0)

    def _keep(self, record: Record) -> float:
        """Note a run if it was trained; returns for how many seconds."""
        seconds = record.summary["seconds"] if record.summary else 0.0
        if seconds > 0:
            self._measured[_kinds(record.config)].append(seconds)
            self._found.clear()
        return max(seconds, 0.0)


def _kinds(config: dict[str, Any]) -> Kinds:
    options = comparable(config)
    whole = {name: value for name, value in options.items() if name not in DRAWN | {"model_budget"}}
    return (*(canonical(options.get(name)) for name in OF_TIME), canonical(whole))


def _similarity(mine: Kinds, theirs: Kinds) -> int:
    """The options that two runs agree in, as bits: an earlier one outweighs all that follow it."""
    if mine[-1] == theirs[-1]:
        return 2 ** len(OF_TIME)
    return int("".join(str(int(a == b)) for a, b in zip(mine[:-1], theirs[:-1], strict=True)), 2)
