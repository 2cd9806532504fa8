"""Widths from temperature, base_dim and budget, all three: the scale is solved. Knows no tables.

Beyond the paper: there, the most popular block has base_dim. Here base_dim bounds the widths, so that a
small one can be combined with any temperature, and all of a budget is spent.
"""

from __future__ import annotations

import math

import numpy as np

from mixdim.planning.sizing import Rounding, relative_popularity, too_small
from mixdim.storages.rows import rows_cost


def scaled_dims(
    block_sizes: np.ndarray,
    row_probs: np.ndarray,
    *,
    temperature: float,
    base_dim: int,
    budget: int,
    rounding: Rounding,
    min_dim: int = 1,
    held_bytes: int = 0,
) -> np.ndarray:
    """Return the width of each block: min(base_dim, scale * p ** temperature), rounded.

    The scale is the largest whose rounded widths cost at most `budget`. What is left is spent by
    doubling widths (0 becomes 1) from the most popular block down, as long as a doubling fits.

    >>> sizes, probs = np.array([10, 1000]), np.array([0.05, 0.0005])
    >>> options = {"temperature": 0.5, "base_dim": 8, "rounding": "power_of_two"}
    >>> [scaled_dims(sizes, probs, budget=b, min_dim=0, **options).tolist() for b in (88, 1200, 9000)]
    [[8, 0], [8, 1], [8, 8]]
    """
    levels, thresholds = _levels(base_dim, rounding, min_dim)
    weights = relative_popularity(row_probs) ** temperature
    # Block b reaches level k where the scale does thresholds[k] / weights[b]: a step of its cost.
    sizes, (blocks, steps) = block_sizes[:, None], (len(block_sizes), len(levels))
    costs = rows_cost(np.broadcast_to(sizes, (blocks, steps)), levels[None, :], base_dim).parameters
    with np.errstate(divide="ignore"):
        scales = np.where(weights[:, None] > 0, thresholds[None, 1:] / weights[:, None], np.inf)
    order = np.argsort(scales, axis=None, kind="stable")
    at = scales.ravel()[order]
    after = costs[:, 0].sum() + np.cumsum(np.diff(costs, axis=1).ravel()[order])
    is_last = np.append(at[1:] > at[:-1], True)[: len(at)]  # blocks as popular as each other go together
    stops = np.concatenate([[0.0], at[is_last & (at < np.inf)]])
    totals = np.concatenate([[costs[:, 0].sum()], after[is_last & (at < np.inf)]])
    fitting = np.flatnonzero(totals <= budget)
    if not len(fitting):
        what = f"the cheapest plan with base_dim {base_dim} and temperature {temperature:g}"
        raise too_small(budget, int(totals.min()), what, held_bytes)
    reached = (scales <= stops[fitting[-1]]).sum(axis=1)
    return _spend(levels[reached], block_sizes, row_probs, base_dim=base_dim, budget=budget)


def _levels(base_dim: int, rounding: Rounding, min_dim: int) -> tuple[np.ndarray, np.ndarray]:
    """The widths that rounding knows, from the least one, and from which exact width on each is taken.

    As `round_dims` has it: to the nearest power of two in log2, or to the nearest integer; below 1/2 to
    0 if that is allowed; and what reaches base_dim has it.
    """
    octaves = math.ceil(math.log2(base_dim))
    if rounding == "integer":
        widths = np.arange(1, base_dim + 1)
        thresholds = widths - 0.5
    else:
        widths = np.append(2 ** np.arange(octaves), base_dim)
        thresholds = np.append(2.0 ** (np.arange(octaves) - 0.5), min(base_dim, 2.0 ** (octaves - 0.5)))
        thresholds[0] = 0.5
    if min_dim == 0:
        widths, thresholds = np.append(0, widths), np.append(0.0, thresholds)
    return widths, thresholds


def _spend(
    dims: np.ndarray, block_sizes: np.ndarray, row_probs: np.ndarray, *, base_dim: int, budget: int
) -> np.ndarray:
    """Double widths from the most popular block down, while that fits."""
    dims, by_popularity = dims.copy(), np.argsort(-row_probs, kind="stable")
    own = rows_cost(block_sizes, dims, base_dim).parameters
    left, has_grown = budget - own.sum(), True
    while has_grown:
        has_grown = False
        wider = np.minimum(np.where(dims > 0, 2 * dims, 1), base_dim)
        more = rows_cost(block_sizes, wider, base_dim).parameters - own
        for block in by_popularity.tolist():
            if wider[block] > dims[block] and more[block] <= left:
                dims[block], left, has_grown = wider[block], left - more[block], True
                own[block] += more[block]
    return dims
