"""Which cut and which widths, at one price over all fields. Knows nothing about tables.

A multiple-choice knapsack in two storeys: a field takes one of its cuts, and each band of it one of its
widths. `theory.choice` solves the lower storey; here is the upper one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import chain, islice
from typing import NamedTuple

import numpy as np

from mixdim.planning.knapsack import BISECTIONS, best_choice

RELATIVE_GAP = 1e-3  # where the search for a better choice ends
MOST_TRIALS = 64  # of cuts other than those that the price asks for, in each of two ways


@dataclass(frozen=True, eq=False)
class Cut:
    """A way to cut a field: what the widths of its bands cost and lose, and the bytes of its ranks."""

    costs: np.ndarray  # (bands, widths)
    errors: np.ndarray  # (bands, widths)
    held: int


class Picked(NamedTuple):
    """The cut of each field, the widths of its bands, and an error that no choice gets below."""

    cuts: list[int]
    widths: list[np.ndarray]
    error: float
    bound: float


class _AtPrice(NamedTuple):
    totals: list[np.ndarray]  # by field and cut: least error + price * bytes
    cuts: list[int]
    cost: float
    bound: float


def pick(fields: list[list[Cut]], budget: int) -> Picked:
    """Choose a cut for every field and a width for every band, with little error within a budget.

    At a price a byte, every field takes the cut of least error + price * bytes, widths likewise; the
    price is the lowest at which that keeps within the budget. Then the rest is spent: with these cuts,
    by the widths of least error, and with other cuts that could still do better, first of one field,
    then of all together. The search ends RELATIVE_GAP above the bound, or after MOST_TRIALS of each.
    """
    found, bounding = _cuts_at_price(fields, budget)
    best = _with_widths(fields, found.cuts, budget, bounding.bound)
    together = islice(_rising(bounding.totals), MOST_TRIALS)
    for over, changed in chain(_one_at_a_time(bounding.totals), together):
        if bounding.bound + over >= best.error * (1 - RELATIVE_GAP):
            continue  # whatever the widths
        cuts = [changed.get(field, cut) for field, cut in enumerate(best.cuts)]
        if cuts != best.cuts and _smallest(fields, cuts) <= budget:
            tried = _with_widths(fields, cuts, budget, bounding.bound)
            best = min(best, tried, key=lambda picked: picked.error)
    return best


def smallest(fields: list[list[Cut]]) -> int:
    """The least bytes that any choice has."""
    return sum(min(_least(cut) for cut in cuts) for cuts in fields)


def _cuts_at_price(fields: list[list[Cut]], budget: int) -> tuple[_AtPrice, _AtPrice]:
    """The cuts at the lowest price that keeps within the budget, and all at the price of best bound."""
    best = bounding = _at_price(fields, budget, 0.0)
    if best.cost <= budget:
        return best, bounding
    # One byte saved is dearer than all the error there is: every field takes its cheapest cut.
    high = 2.0 * sum(max(float(cut.errors.max(axis=1).sum()) for cut in cuts) for cuts in fields)
    low = high * 1e-18
    best = bounding = _at_price(fields, budget, high)
    for _ in range(BISECTIONS):
        middle = float(np.sqrt(low * high))
        tried = _at_price(fields, budget, middle)
        bounding = max(bounding, tried, key=lambda at: at.bound)
        if tried.cost <= budget:
            best, high = tried, middle
        else:
            low = middle
    return best, bounding


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


def _at_price(fields: list[list[Cut]], budget: int, price: float) -> _AtPrice:
    totals, chosen, cost, bound = [], [], 0.0, -price * budget
    for cuts in fields:
        lowest, bytes_of = np.empty(len(cuts)), np.empty(len(cuts))
        for number, cut in enumerate(cuts):
            of_widths = cut.errors + price * cut.costs
            least = of_widths.min(axis=1, keepdims=True)
            # Of widths alike in total the cheapest, or even the highest price might not do.
            bytes_of[number] = (
                cut.held + np.where(of_widths <= least, cut.costs, np.inf).min(axis=1).sum()
            )
            lowest[number] = least.sum() + price * cut.held
        best = int(np.where(lowest <= lowest.min(), bytes_of, np.inf).argmin())
        totals.append(lowest)
        chosen.append(best)
        cost, bound = cost + bytes_of[best], bound + lowest[best]
    return _AtPrice(totals, chosen, cost, bound)


def _with_widths(fields: list[list[Cut]], cuts: list[int], budget: int, bound: float) -> Picked:
    """The best widths of given cuts."""
    chosen = [of_field[cut] for of_field, cut in zip(fields, cuts, strict=True)]
    most = max(cut.costs.shape[1] for cut in chosen)
    costs, errors = (
        np.concatenate(
            [np.pad(part, ((0, 0), (0, most - part.shape[1])), mode="edge") for part in parts]
        )
        for parts in ([cut.costs for cut in chosen], [cut.errors for cut in chosen])
    )
    held = sum(cut.held for cut in chosen)
    options = best_choice(costs, errors, budget - held, relative_gap=RELATIVE_GAP).options
    error = float(errors[np.arange(len(options)), options].sum())
    edges = np.cumsum([len(cut.costs) for cut in chosen])[:-1]
    return Picked(cuts, np.split(options, edges), error, bound)


def _least(cut: Cut) -> int:
    return int(cut.costs.min(axis=1).sum()) + cut.held


def _smallest(fields: list[list[Cut]], cuts: list[int]) -> int:
    return sum(_least(of_field[cut]) for of_field, cut in zip(fields, cuts, strict=True))
