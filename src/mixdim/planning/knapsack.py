"""One option for every block, with the least total error within a budget. Knows nothing about spectra.

A multiple-choice knapsack: option o of block b costs `costs[b, o]` and leaves the error `errors[b, o]`.
`best_choice` solves it for given blocks. With `best_cuts` it has a second storey: a field takes one of
its cuts, each with blocks of its own. Both start from one price for all.

Solved here rather than with scipy's `milp`, which is slower and writes lines of its own to stdout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import chain, islice
from typing import NamedTuple

import numpy as np

BISECTIONS = 100  # of the price's logarithm: beyond float64's resolution
SAME = 1e-12  # relatively: errors closer than this are equal but for what float64 rounds
MOST_PARTS = 5_000  # partial choices that are kept: with more, the search may end above the gap
MOST_TRIALS = 64  # of cuts other than those that the price asks for, in each of two ways


class Solution(NamedTuple):
    """The option of each block, the price that led to it, and an error that no choice gets below."""

    options: np.ndarray  # (blocks,)
    price: float
    bound: float


@dataclass(frozen=True, eq=False)
class Cut:
    """A way to cut a field into blocks: what their options cost and lose, and what the cut costs."""

    costs: np.ndarray  # (blocks, options)
    errors: np.ndarray  # (blocks, options)
    held: int = 0


class CutSolution(NamedTuple):
    """The cut of each field, the options of its blocks, and an error that no choice gets below."""

    cuts: list[int]
    options: list[np.ndarray]
    error: float
    bound: float


def lagrangian_choice(costs: np.ndarray, errors: np.ndarray, budget: float) -> Solution:
    """Choose by a price per unit of cost: every block takes the option of least error + price * cost.

    The price (the paper's lambda) is the lowest at which the total cost keeps within the budget. Fast,
    and close to the optimum if no single option is a large part of the budget.

    >>> costs, errors = np.array([[1, 2, 3], [1, 2, 3]]), np.array([[9.0, 4, 3], [6.0, 4, 0]])
    >>> found = lagrangian_choice(costs, errors, budget=4)
    >>> found.options.tolist(), round(found.bound, 9)
    ([1, 0], 7.0)
    """
    least = costs.min(axis=1).sum()
    if least > budget:
        raise ValueError(f"budget must be at least {least}, with the cheapest options, got {budget}")
    kept, bounding = _Stacked.of([[Cut(costs, errors)]]).lowest_price(budget)
    return Solution(kept.options, bounding.price, bounding.bound)


def best_choice(
    costs: np.ndarray,
    errors: np.ndarray,
    budget: float,
    *,
    relative_gap: float = 0.0,
    below: float = np.inf,
) -> Solution:
    """Choose so that the error is least, or at most `relative_gap` above it; only errors `below` count.

    Goes through the blocks and keeps every partial choice that may still win: one that no other beats
    in both cost and error, and whose bound is below the best choice known. The bound is that of
    `lagrangian_choice`: with its price, a choice leaves at least `bound` + the sum over blocks of how
    far its option's error + price * cost is above the block's lowest.

    >>> costs, errors = np.array([[1, 2, 3], [1, 2, 3]]), np.array([[9.0, 4, 3], [6.0, 4, 0]])
    >>> best_choice(costs, errors, budget=4).options.tolist()
    [1, 1]
    """
    start = lagrangian_choice(costs, errors, budget)
    totals = errors + start.price * costs
    excess = totals - totals.min(axis=1, keepdims=True)  # (block, option)
    usual = excess.argmin(axis=1)
    best, least = start.options, min(float(_pick(errors, start.options).sum()), below)

    # Blocks whose second best option is close come first: the rest can then be filled in as usual.
    order = np.argsort(np.sort(excess, axis=1)[:, :2].sum(axis=1), kind="stable")
    rest_least = np.append(np.cumsum(costs.min(axis=1)[order][::-1])[::-1], 0)[1:]
    rest_cost = np.append(np.cumsum(_pick(costs, usual)[order][::-1])[::-1], 0)[1:]
    rest_error = np.append(np.cumsum(_pick(errors, usual)[order][::-1])[::-1], 0)[1:]

    cost, error, over = np.zeros(1), np.zeros(1), np.zeros(1)  # of each partial choice
    trail: list[tuple[np.ndarray, np.ndarray]] = []  # for each block: the choices extended, and how
    for step, block in enumerate(order):
        options = np.flatnonzero(start.bound + excess[block] < least * (1 - relative_gap))
        cost = np.add.outer(cost, costs[block, options]).ravel()
        error = np.add.outer(error, errors[block, options]).ravel()
        over = np.add.outer(over, excess[block, options]).ravel()
        kept = np.flatnonzero(
            (cost + rest_least[step] <= budget) & (start.bound + over < least * (1 - relative_gap))
        )
        kept = kept[np.lexsort((error[kept], cost[kept]))]
        if len(kept) == 0:
            break
        lowest = np.minimum.accumulate(error[kept])
        kept = kept[np.append(True, error[kept][1:] < lowest[:-1])]
        if len(kept) > MOST_PARTS:
            kept = kept[np.argpartition(over[kept], MOST_PARTS)[:MOST_PARTS]]
        parents, chosen = np.divmod(kept, len(options))
        trail.append((parents, options[chosen]))
        cost, error, over = cost[kept], error[kept], over[kept]

        filled = np.where(cost + rest_cost[step] <= budget, error + rest_error[step], np.inf)
        if filled.min() < least:
            least, best = float(filled.min()), usual.copy()
            best[order[: step + 1]] = _retrace(trail, int(filled.argmin()))
    no_worse = errors <= _pick(errors, best)[:, None]
    return Solution(np.where(no_worse, costs, np.inf).argmin(axis=1), start.price, start.bound)


def best_cuts(
    fields: Sequence[Sequence[Cut]], budget: float, *, relative_gap: float = 1e-3
) -> CutSolution:
    """Choose a cut for every field and an option for every block of it, with little error.

    At a price per unit of cost, every field takes the cut of least error + price * cost, and options
    likewise; the price is the lowest at which that keeps within the budget. Then the rest is spent: with
    these cuts, by the options of least error, and with other cuts that could still do better, first of
    one field, then of all together. The search ends `relative_gap` above the bound, or after MOST_TRIALS
    of each. With one cut for each field this is `best_choice`.
    """
    stacked = _Stacked.of(fields)
    kept, bounding = stacked.lowest_price(budget)
    totals = stacked.by_field(bounding.of_cuts)
    nothing = CutSolution([], [], np.inf, bounding.bound)
    best = _with_options(fields, stacked.chosen(kept), budget, nothing, relative_gap)
    together = islice(_rising(totals), MOST_TRIALS)
    for over, changed in chain(_one_at_a_time(totals), together):
        if bounding.bound + over >= best.error * (1 - relative_gap):
            continue  # whatever the options
        cuts = [changed.get(field, cut) for field, cut in enumerate(best.cuts)]
        least = sum(_least(of_field[cut]) for of_field, cut in zip(fields, cuts, strict=True))
        if cuts != best.cuts and least <= budget:
            tried = _with_options(fields, cuts, budget, best, relative_gap)
            best = tried if tried.error < best.error * (1 - SAME) else best
    return best


def lower_bound(fields: Sequence[Sequence[Cut]], budget: float) -> float:
    """An error that no choice of cuts and options gets below; faster than `best_cuts`."""
    return _Stacked.of(fields).lowest_price(budget)[1].bound


def smallest(fields: Sequence[Sequence[Cut]]) -> int:
    """The least cost that any choice has."""
    return sum(min(_least(cut) for cut in cuts) for cuts in fields)


class _AtPrice(NamedTuple):
    price: float
    options: np.ndarray  # (blocks,) of all cuts
    of_cuts: np.ndarray  # (cuts,) least error + price * cost
    costs: np.ndarray  # (cuts,)
    cost: float
    bound: float


@dataclass(frozen=True, eq=False)
class _Stacked:
    """The blocks of all cuts of all fields, one below the other, all with as many options."""

    costs: np.ndarray  # (blocks, options)
    errors: np.ndarray  # (blocks, options)
    held: np.ndarray  # (cuts,)
    first_blocks: np.ndarray  # of each cut
    first_cuts: np.ndarray  # of each field

    @classmethod
    def of(cls, fields: Sequence[Sequence[Cut]]) -> _Stacked:
        cuts = [cut for of_field in fields for cut in of_field]
        costs, errors = _padded([cut.costs for cut in cuts]), _padded([cut.errors for cut in cuts])
        held = np.array([cut.held for cut in cuts])
        return cls(
            costs, errors, held, _starts([len(cut.costs) for cut in cuts]), _starts(map(len, fields))
        )

    def by_field(self, of_cuts: np.ndarray) -> list[np.ndarray]:
        """Numbers of cuts, field by field."""
        return np.split(of_cuts, self.first_cuts[1:])

    def chosen(self, at: _AtPrice) -> list[int]:
        """The cut that each field takes at a price; of those alike in total the cheapest, or first."""
        chosen = []
        for totals, costs in zip(self.by_field(at.of_cuts), self.by_field(at.costs), strict=True):
            cheapest = costs[totals <= totals.min() * (1 + SAME)].min()
            # The price ends where that begins to hold: of cuts that are alike, for some of them only.
            alike = (totals <= totals.min() * (1 + 2 * SAME)) & (costs <= cheapest)
            chosen.append(int(alike.argmax()))
        return chosen

    def lowest_price(self, budget: float) -> tuple[_AtPrice, _AtPrice]:
        """What is taken at the lowest price that keeps the budget, and at the price of best bound."""
        kept = bounding = self._at(0.0, budget)
        if kept.cost <= budget:
            return kept, bounding
        # One unit saved is dearer than all the error there is: everything takes what is cheapest.
        most = np.add.reduceat(self.errors.max(axis=1), self.first_blocks)
        high = 2.0 * float(np.maximum.reduceat(most, self.first_cuts).sum())
        low = high * 1e-18
        kept = bounding = self._at(high, budget)
        for _ in range(BISECTIONS):
            middle = float(np.sqrt(low * high))
            tried = self._at(middle, budget)
            if tried.bound > bounding.bound:
                bounding = tried
            if tried.cost <= budget:
                kept, high = tried, middle
            else:
                low = middle
        return kept, bounding

    def _at(self, price: float, budget: float) -> _AtPrice:
        totals = self.errors + price * self.costs
        lowest = totals.min(axis=1)
        # Of options alike in total the cheapest, or even the highest price might not meet the budget.
        cheapest = np.where(totals <= lowest[:, None], self.costs, np.inf)
        of_cuts = np.add.reduceat(lowest, self.first_blocks) + price * self.held
        costs = np.add.reduceat(cheapest.min(axis=1), self.first_blocks) + self.held
        of_fields = np.minimum.reduceat(of_cuts, self.first_cuts)
        cuts_each = np.diff(self.first_cuts, append=len(of_cuts))
        is_least = of_cuts <= np.repeat(of_fields, cuts_each) * (1 + SAME)
        cost = np.minimum.reduceat(np.where(is_least, costs, np.inf), self.first_cuts).sum()
        bound = float(of_fields.sum()) - price * budget
        return _AtPrice(price, cheapest.argmin(axis=1), of_cuts, costs, float(cost), bound)


def _one_at_a_time(totals: list[np.ndarray]) -> list[tuple[float, dict[int, int]]]:
    """The cut of one field, and how far that is above its lowest total: the nearest first."""
    excess = sorted(
        (float(of_cuts[cut] - of_cuts.min()), field, cut)
        for field, of_cuts in enumerate(totals)
        for cut in range(len(of_cuts))
    )
    return [(over, {field: cut}) for over, field, cut in excess[: MOST_TRIALS + len(totals)]]


def _rising(totals: list[np.ndarray]) -> Iterator[tuple[float, dict[int, int]]]:
    """Cuts of all fields, and how far these are above their lowest totals: the nearest first."""
    orders = [np.argsort(of_cuts, kind="stable") for of_cuts in totals]
    waiting = [(0.0, (0,) * len(totals), 0)]  # excess, places in the orders, the first that may rise
    while waiting:
        over, places, first = heappop(waiting)
        yield over, {field: int(orders[field][place]) for field, place in enumerate(places)}
        for field in range(first, len(totals)):
            if (place := places[field] + 1) < len(orders[field]):
                now, then = totals[field][orders[field][[place - 1, place]]]
                risen = (*places[:field], place, *places[field + 1 :])
                heappush(waiting, (over + float(then - now), risen, field))


def _with_options(
    fields: Sequence[Sequence[Cut]],
    cuts: list[int],
    budget: float,
    best: CutSolution,
    relative_gap: float,
) -> CutSolution:
    """The best options of given cuts; of cuts that cannot be better than the best known, some."""
    chosen = [of_field[cut] for of_field, cut in zip(fields, cuts, strict=True)]
    costs, errors = _padded([cut.costs for cut in chosen]), _padded([cut.errors for cut in chosen])
    left = budget - sum(cut.held for cut in chosen)
    options = best_choice(costs, errors, left, relative_gap=relative_gap, below=best.error).options
    options = _swapped(costs, errors, options, left)
    error = float(_pick(errors, options).sum())
    by_field = np.split(options, _starts([len(cut.costs) for cut in chosen])[1:])
    return CutSolution(cuts, by_field, error, best.bound)


def _swapped(costs: np.ndarray, errors: np.ndarray, options: np.ndarray, budget: float) -> np.ndarray:
    """Change one option after another while that alone lowers the error within the budget."""
    options = options.copy()
    while True:
        left = budget - _pick(costs, options).sum()
        fits = costs - _pick(costs, options)[:, None] <= left
        saved = np.where(fits, _pick(errors, options)[:, None] - errors, 0.0)
        block, option = np.unravel_index(saved.argmax(), saved.shape)
        if saved[block, option] <= SAME * errors.max():
            return options
        options[block] = option


def _padded(parts: list[np.ndarray]) -> np.ndarray:
    """Blocks one below the other; where there are fewer options, the last is there again."""
    most = max(part.shape[1] for part in parts)
    return np.concatenate(
        [np.pad(part, ((0, 0), (0, most - part.shape[1])), mode="edge") for part in parts]
    )


def _starts(lengths: Iterator[int] | Sequence[int]) -> np.ndarray:
    ends = np.cumsum(list(lengths))
    return np.concatenate([[0], ends[:-1]]).astype(np.int64)


def _least(cut: Cut) -> int:
    return int(cut.costs.min(axis=1).sum()) + cut.held


def _retrace(trail: list[tuple[np.ndarray, np.ndarray]], last: int) -> list[int]:
    """The options that led to a partial choice, first block first."""
    options = []
    for parents, chosen in reversed(trail):
        options.append(int(chosen[last]))
        last = int(parents[last])
    return options[::-1]


def _pick(values: np.ndarray, options: np.ndarray) -> np.ndarray:
    return values[np.arange(len(values)), options]
