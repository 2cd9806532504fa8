"""Mixed against uniform in numbers: ratios at equal loss, differences by seed, intervals.

Records in, numbers out. Draws and trains nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from scipy import stats

from mixdim.lab.paper.curves import (
    Measure,
    by_line,
    by_setting,
    num_parameters,
    objective,
    on_test,
    on_validation,
    seed_of,
)
from mixdim.runs.sweeps.records import Record

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """A mean over seeds and its 95 % interval; the interval of one seed is unknown: not a number."""

    mean: float
    low: float
    high: float
    seeds: int

    def through(self, function: Callable[[float], float]) -> Interval:
        """The interval of a rising function of the value."""
        return Interval(function(self.mean), function(self.low), function(self.high), self.seeds)


class Reached(NamedTuple):
    """What a line pays for a loss; `at_most` if its cheapest point is already there."""

    cost: float
    at_most: bool


class Saving(NamedTuple):
    """How many times less a line pays than uniform at equal loss, over the seeds that got there."""

    ratio: Interval | None  # None: it never got there
    at_least: bool  # its cheapest point got there in some seed, so less might do
    seeds: int
    uniform_at_most: bool  # so did uniform's, which leaves open what either would need

    def __str__(self) -> str:
        return self.of("")

    def of(self, what: str) -> str:
        """The saving in words; `what` says what is saved, such as " in embeddings"."""
        if self.ratio is None:
            return f"never reaches it{what} ({_seeds(self.seeds)})"
        missed = self.seeds - self.ratio.seeds
        but = f", and does not reach it in {missed} of {self.seeds}" if missed else ""
        at_least = "at least " if self.at_least else ""
        open_end = ", which uniform's smallest model reaches too" if self.uniform_at_most else ""
        times = f"{at_least}{self.ratio.mean:.3g}x{what}"
        return f"{times} ({_range(self.ratio, '.3g', 'x')}){but}{open_end}"


def interval(values: Sequence[float]) -> Interval:
    """Student's interval of a mean.

    >>> interval([1.0, 2.0, 3.0])  # 2 -+ 4.303 * 1 / sqrt(3)
    Interval(mean=2.0, low=-0.484..., high=4.484..., seeds=3)
    """
    if not values:
        raise ValueError("values must not be empty")
    mean = statistics.fmean(values)
    if len(values) == 1:
        return Interval(mean, math.nan, math.nan, 1)
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
    half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half, len(values))


def cost_of_reaching(target: float, line: Sequence[tuple[float, float]]) -> Reached | None:
    """The least cost at which a line of (cost, loss) reaches a loss; None if it never does.

    Between measured points the loss is taken to be linear in the logarithm of the cost.

    >>> cost_of_reaching(0.5, [(100.0, 0.6), (400.0, 0.4)])
    Reached(cost=200.0, at_most=False)
    >>> cost_of_reaching(0.3, [(100.0, 0.6), (400.0, 0.4)])
    """
    before: tuple[float, float] | None = None
    for cost, loss in sorted(line):
        if loss <= target:
            if before is None:
                return Reached(cost, at_most=True)
            share = (before[1] - target) / (before[1] - loss)
            return Reached(before[0] * (cost / before[0]) ** share, at_most=False)
        before = (cost, loss)
    return None


def best_uniform(records: Sequence[Record]) -> list[Record]:
    """The runs of the uniform width with the lowest mean validation loss."""
    return best_setting(by_line(records)["uniform"])


def best_setting(records: Sequence[Record]) -> list[Record]:
    """The runs of the setting with the lowest mean validation loss; test has no say in it."""
    measure = on_validation(objective(records))
    return min(by_setting(records), key=lambda same: statistics.fmean(map(measure, same)))


def savings(
    records: Sequence[Record], cost: Measure = num_parameters, loss: Measure | None = None
) -> dict[str, Saving]:
    """How many times less each other line pays than uniform, at the test loss of the best uniform width.

    Per seed: the least that uniform pays for that loss over the least that the line pays; over the seeds
    the geometric mean, with Student's interval of the logarithms. `loss` is the objective on test, or
    another measure of which less is better.
    """
    loss = loss or on_test(objective(records))
    lines = by_line(records)
    reference = best_uniform(records)
    found = {}
    for label, runs in lines.items():
        if label == "uniform":
            continue
        ratios, at_least, uniform_at_most = [], False, False
        for of_uniform in reference:
            seed, target = seed_of(of_uniform), loss(of_uniform)
            paid = cost_of_reaching(target, _line(lines["uniform"], seed, cost, loss))
            mine = cost_of_reaching(target, _line(runs, seed, cost, loss))
            assert paid is not None  # the reference is on that line
            if mine is not None:
                ratios.append(math.log(paid.cost / mine.cost))
                at_least |= mine.at_most and not paid.at_most
                uniform_at_most |= paid.at_most
        ratio = interval(ratios).through(math.exp) if ratios else None
        found[label] = Saving(ratio, at_least, len(reference), uniform_at_most)
    return found


def paired(ours: Sequence[Record], theirs: Sequence[Record], measure: Measure) -> Interval:
    """Our measure minus theirs, over the seeds that both have."""
    other = {seed_of(record): measure(record) for record in theirs}
    return interval([
        measure(record) - other[seed_of(record)] for record in ours if seed_of(record) in other
    ])  # fmt: skip


def reproduces(found: Interval, at_least: float) -> str:
    """What an interval says about a claim that the true value is at least so much.

    >>> reproduces(Interval(2.0, 1.5, 2.5, 3), 1.0)
    'reproduced'
    >>> reproduces(Interval(2.0, 0.5, 3.5, 3), 1.0)
    'left open'
    >>> reproduces(Interval(0.4, 0.3, 0.5, 3), 1.0)
    'did not reproduce'
    """
    if found.low >= at_least:
        return "reproduced"
    highest = found.mean if found.seeds == 1 else found.high
    return "left open" if highest >= at_least else "did not reproduce"


def in_loss(found: Interval) -> str:
    """A difference of losses.

    >>> in_loss(Interval(-0.001, -0.0015, -0.0005, 3))
    '-0.0010 (95 % interval -0.0015 to -0.0005, 3 seeds)'
    """
    return f"{found.mean:+.4f} ({_range(found, '+.4f')})"


def in_percent(found: Interval) -> str:
    """A difference of accuracies, in percentage points.

    >>> in_percent(Interval(0.001, 0.0005, 0.0015, 3))
    '+0.100 % (95 % interval +0.050 to +0.150, 3 seeds)'
    """
    hundredfold = found.through(lambda share: 100 * share)
    return f"{hundredfold.mean:+.3f} % ({_range(hundredfold, '+.3f')})"


def _line(runs: Sequence[Record], seed: int, cost: Measure, loss: Measure) -> list[tuple[float, float]]:
    return [(cost(record), loss(record)) for record in runs if seed_of(record) == seed]


def _range(found: Interval, digits: str, unit: str = "") -> str:
    if found.seeds == 1:
        return "1 seed, no interval"
    ends = f"{found.low:{digits}}{unit} to {found.high:{digits}}{unit}"
    return f"{CONFIDENCE:.0%} interval {ends}, {_seeds(found.seeds)}".replace("95%", "95 %")


def _seeds(number: int) -> str:
    return "1 seed" if number == 1 else f"{number} seeds"
