"""How wide each block is: power law, rounding, budget. Knows nothing about tables or training."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np

from mixdim._util.arguments import nonnegative_vector, unit_interval, whole_number
from mixdim.planning.budget import BYTES_PER_PARAMETER, BudgetTooSmallError, format_bytes
from mixdim.storages.rows import rows_cost

Rounding = Literal["power_of_two", "integer"]
RoundingOrFill = Literal["power_of_two", "integer", "fill"]  # what needs a budget: see filling.py

TEMPERATURE_STEPS = 1000  # a solved temperature has three decimals
SAME = 1e-12  # popularities closer than this, relatively, are equal but for rounding


def power_law_dims(row_probs: Any, *, temperature: float, base_dim: int) -> np.ndarray:
    """Return the width of each block before rounding (paper, Alg. 1).

    d = base_dim * (p / max p) ** temperature, where p is the mean query probability of one row of
    the block: temperature (the paper's alpha) 0 is uniform, 1 is proportional to popularity.

    >>> power_law_dims([0.5, 0.125], temperature=0.5, base_dim=16).tolist()
    [16.0, 8.0]
    """
    row_probs = nonnegative_vector(row_probs, "row_probs")
    temperature = unit_interval(temperature, "temperature")
    base_dim = whole_number(base_dim, "base_dim")
    if row_probs.max() == 0:
        raise ValueError("row_probs must not all be 0")
    return base_dim * relative_popularity(row_probs) ** temperature


def relative_popularity(row_probs: np.ndarray) -> np.ndarray:
    """Popularities relative to the largest, equal where they differ by roundings only.

    1 / 5 and 7 * (1 / 35) do, and might else become different widths.
    """
    order = np.argsort(-row_probs, kind="stable")
    falling = row_probs[order]
    is_smaller = np.ones(len(falling), bool)
    is_smaller[1:] = falling[1:] < falling[:-1] * (1 - SAME)
    leaders = np.maximum.accumulate(np.where(is_smaller, np.arange(len(falling)), 0))
    relative = np.empty(len(falling))
    relative[order] = falling[leaders] / falling[0]
    return relative


def round_dims(dims: np.ndarray, *, base_dim: int, rounding: Rounding, min_dim: int = 1) -> np.ndarray:
    """Round widths to the nearest integer, or power of two in log2, then clamp to [1, base_dim].

    A block as popular as the most popular one keeps base_dim even if that is no power of two:
    otherwise temperature 0 would not be uniform. With `min_dim` 0, what is below 1/2 becomes 0.

    >>> round_dims(np.array([48.0, 30.0, 11.0, 0.2]), base_dim=48, rounding="power_of_two").tolist()
    [48, 32, 8, 1]
    >>> round_dims(np.array([4.0, 0.5, 0.49]), base_dim=4, rounding="integer", min_dim=0).tolist()
    [4, 1, 0]
    """
    check_rounding(rounding)
    floored = np.maximum(dims, 1.0)
    rounded = np.rint(floored) if rounding == "integer" else np.exp2(np.rint(np.log2(floored)))
    clamped = np.minimum(rounded, base_dim)
    widths = np.where(dims == base_dim, base_dim, clamped).astype(np.int64)
    return np.where((dims < 0.5) & (min_dim == 0), 0, widths)


def check_rounding(rounding: Any) -> None:
    """Say which roundings there are, if `rounding` is not one of them."""
    if rounding not in get_args(Rounding):
        raise ValueError(f"rounding must be 'power_of_two' or 'integer', got {rounding!r}")


def nearest_rounding(rounding: Any, *, has_budget: bool) -> Rounding:
    """How exact widths become whole numbers before, by "fill", the rest of a budget is spent."""
    if rounding not in get_args(RoundingOrFill):
        raise ValueError(f"rounding must be 'power_of_two', 'integer' or 'fill', got {rounding!r}")
    if rounding == "fill" and not has_budget:
        raise ValueError("rounding 'fill' needs a budget: it is what is filled")
    return "integer" if rounding == "fill" else rounding


def largest_base_dim(
    block_sizes: np.ndarray,
    row_probs: np.ndarray,
    *,
    temperature: float,
    budget: int,
    rounding: Rounding,
    min_dim: int = 1,
    held_bytes: int = 0,
) -> int:
    """Return the largest base_dim whose rounded plan costs at most `budget` parameters.

    The cost of rows stored on their own never falls as base_dim grows, which bounds the search. The
    rest falls only where a block reaches full width and sheds its projection; those turns are listed,
    and between two of them the whole cost rises, so bisection finds the last fit of each stretch.
    """
    shares = power_law_dims(row_probs, temperature=temperature, base_dim=1)

    def dims(base_dim: int) -> np.ndarray:
        return round_dims(base_dim * shares, base_dim=base_dim, rounding=rounding, min_dim=min_dim)

    def cost(base_dim: int) -> float:
        return float(rows_cost(block_sizes, dims(base_dim), base_dim).parameters.sum())

    def tables_fit(base_dim: int) -> bool:
        return float((block_sizes.astype(np.float64) * dims(base_dim)).sum()) <= budget

    def fits(base_dim: int) -> bool:
        return cost(base_dim) <= budget

    if not fits(1):
        what = "one parameter for each row" if min_dim else "the cheapest plan at this temperature"
        raise too_small(budget, int(cost(1)), what, held_bytes)
    highest = 1
    while tables_fit(2 * highest):
        highest *= 2
    highest = last_fit(tables_fit, highest, 2 * highest)

    while not fits(highest):
        turns = _turns(shares, highest)
        start = next((turn for turn in turns if fits(turn)), None)
        if start is not None:
            end = min((turn for turn in turns if turn > start), default=highest)
            return last_fit(fits, start, end)
        highest = turns[-1] - 1
    return highest


def _turns(shares: np.ndarray, highest: int) -> list[int]:
    """Where cost may fall in the octave (2^(m-1), 2^m] that ends at or above `highest`, descending.

    Rounded to a power of two, a block of width share * base_dim reaches full width where that is at
    least 2^(m-1/2), so only shares from sqrt(1/2) up do. The neighbours guard against rounding.
    """
    octave = max(highest - 1, 0).bit_length()
    first = 2 ** (octave - 1) + 1 if octave else 1
    reaching = np.unique(shares[(shares >= 0.7) & (shares < 1)])
    points = np.ceil(2.0 ** (octave - 0.5) / reaching)
    near = np.concatenate([points - 1, points, points + 1, [first]])
    return sorted({int(turn) for turn in near if first <= turn <= highest}, reverse=True)


def last_fit(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The last number in [low, high) that fits, given that `low` fits and fitting ends only once."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def smallest_temperature(
    block_sizes: np.ndarray,
    row_probs: np.ndarray,
    *,
    base_dim: int,
    budget: int,
    rounding: Rounding,
    min_dim: int = 1,
    held_bytes: int = 0,
) -> float:
    """Return the smallest temperature, to three decimals, whose plan costs at most `budget`.

    Narrowing a tiny table can cost more than it saves (it then needs a projection), so cost does not
    fall steadily with temperature and every step is tried in turn.
    """
    cheapest, relative = math.inf, relative_popularity(row_probs)
    for step in range(TEMPERATURE_STEPS + 1):
        temperature = step / TEMPERATURE_STEPS
        exact = base_dim * relative**temperature
        block_dims = round_dims(exact, base_dim=base_dim, rounding=rounding, min_dim=min_dim)
        cost = float(rows_cost(block_sizes, block_dims, base_dim).parameters.sum())
        if cost <= budget:
            return temperature
        cheapest = min(cheapest, cost)
    raise too_small(budget, int(cheapest), f"the cheapest plan with base_dim {base_dim}", held_bytes)


def too_small(budget: int, smallest: int, what: str, held_bytes: int) -> BudgetTooSmallError:
    """Say what a budget would have to be; `held_bytes` come on top, if it is in bytes."""
    size = format_bytes(smallest * BYTES_PER_PARAMETER + held_bytes)
    ranks = f", {format_bytes(held_bytes)} of it for the ranks of ids" if held_bytes else ""
    return BudgetTooSmallError(
        f"budget of {budget:,} parameters is too small: the smallest feasible budget is "
        f"{smallest:,} parameters ({size} in float32{ranks}), {what}"
    )
