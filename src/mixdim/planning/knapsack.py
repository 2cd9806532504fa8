"""One option for every block, with the least total error within a budget. Knows nothing about spectra.

A multiple-choice knapsack: option o of block b costs `costs[b, o]` and leaves the error `errors[b, o]`.
Solved here rather than with scipy's `milp`, which is slower and writes lines of its own to stdout.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

BISECTIONS = 100  # of the price's logarithm: beyond float64's resolution


class Choice(NamedTuple):
    """The option of each block, the price that led to it, and an error that no choice gets below."""

    options: np.ndarray  # (blocks,)
    price: float
    bound: float


def lagrangian_choice(costs: np.ndarray, errors: np.ndarray, budget: float) -> Choice:
    """Choose by a price per parameter: every block takes the option of least error + price * cost.

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

    def at(price: float) -> Choice:
        totals = errors + price * costs
        lowest = totals.min(axis=1, keepdims=True)
        # Of options alike in total the cheapest, or even the highest price might not meet the budget.
        options = np.where(totals <= lowest, costs, np.inf).argmin(axis=1)
        return Choice(options, price, float(lowest.sum()) - price * budget)

    best = at(0.0)
    if _pick(costs, best.options).sum() <= budget:
        return best
    # One parameter saved is dearer than all the error there is: every block takes its cheapest option.
    high = 2.0 * float((errors.max(axis=1) - errors.min(axis=1)).sum())
    low = high * 1e-18
    best = bounding = at(high)
    for _ in range(BISECTIONS):
        middle = float(np.sqrt(low * high))
        tried = at(middle)
        if tried.bound > bounding.bound:
            bounding = tried
        if _pick(costs, tried.options).sum() <= budget:
            best, high = tried, middle
        else:
            low = middle
    return Choice(best.options, bounding.price, bounding.bound)


def best_choice(
    costs: np.ndarray, errors: np.ndarray, budget: float, *, relative_gap: float = 0.0
) -> Choice:
    """Choose so that the error is least, or at most `relative_gap` above it.

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
    best, least = start.options, float(_pick(errors, start.options).sum())

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
        parents, chosen = np.divmod(kept, len(options))
        trail.append((parents, options[chosen]))
        cost, error, over = cost[kept], error[kept], over[kept]

        filled = np.where(cost + rest_cost[step] <= budget, error + rest_error[step], np.inf)
        if filled.min() < least:
            least, best = float(filled.min()), usual.copy()
            best[order[: step + 1]] = _retrace(trail, int(filled.argmin()))
    no_worse = errors <= _pick(errors, best)[:, None]
    return Choice(np.where(no_worse, costs, np.inf).argmin(axis=1), start.price, start.bound)


def _retrace(trail: list[tuple[np.ndarray, np.ndarray]], last: int) -> list[int]:
    """The options that led to a partial choice, first block first."""
    options = []
    for parents, chosen in reversed(trail):
        options.append(int(chosen[last]))
        last = int(parents[last])
    return options[::-1]


def _pick(values: np.ndarray, options: np.ndarray) -> np.ndarray:
    return values[np.arange(len(values)), options]
