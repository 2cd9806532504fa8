"""How wide each block should be if its spectrum is a power law. Knows nothing about measured spectra.

With sigma_ij(k) = rho_ij k^(-beta), g^2(d) = lambda (n + m) n m / Pi of Thm. 4.2 is solved by
d = (rho^2 Pi / (lambda (n + m) n m))^(1 / (2 beta)): popularity to a fractional power.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import brentq

from mixdim._util.arguments import positive_number
from mixdim.lab.theory.structure import block_areas, checked_matrix, checked_probs, checked_sizes


def closed_form_dims(
    row_sizes: Any, col_sizes: Any, block_probs: Any, scales: Any, decay: float, *, budget: float
) -> np.ndarray:
    """Return the widths that spend the budget exactly, for one decay and without limits on widths.

    d_ij = lambda' zeta_ij Pi_ij^(1/2 beta), zeta_ij = ((n_i + m_j) n_i m_j / rho_ij^2)^(-1/2 beta),
    lambda' = B / sum_ij (n_i + m_j) zeta_ij Pi_ij^(1/2 beta). (The corollary in App. C prints mu for
    rho^2, and a lambda without Pi and with the power -2 beta: it does not meet the budget.)

    - `scales`: rho_ij, (row blocks, column blocks); `decay`: beta.

    >>> dims = closed_form_dims([4, 4], [4], [[0.8], [0.2]], [[1.0], [1.0]], 0.5, budget=80)
    >>> dims.ravel().tolist()
    [8.0, 2.0]
    """
    unit_cost, weights = _unit_cost_and_weights(row_sizes, col_sizes, block_probs, scales)
    decay = _checked_decays(decay, (1, 1)).item()
    shares = (weights / unit_cost) ** (1 / (2 * decay))  # zeta Pi^(1 / 2 beta)
    return positive_number(budget, "budget") / (unit_cost * shares).sum() * shares


def water_filling_dims(
    row_sizes: Any,
    col_sizes: Any,
    block_probs: Any,
    scales: Any,
    decays: Any,
    *,
    budget: float,
    least: float = 0.0,
    most: Any = None,
) -> np.ndarray:
    """Return the best widths with a decay for each block and widths kept within [least, most].

    d_ij(lambda) = clip((rho^2 Pi / (lambda (n + m) n m))^(1 / (2 beta)), least, most), and lambda is the
    root of cost(lambda) = B. `most` is min(n_i, m_j) unless given; what a budget has beyond the cost of
    `most` is not spent.

    >>> arguments = ([4, 4], [4], [[0.8], [0.2]], [[1.0], [1.0]], 0.5)
    >>> water_filling_dims(*arguments, budget=40).ravel().round(6).tolist()
    [4.0, 1.0]
    >>> water_filling_dims(*arguments, budget=48).ravel().round(6).tolist()
    [4.0, 2.0]
    """
    unit_cost, weights = _unit_cost_and_weights(row_sizes, col_sizes, block_probs, scales)
    decays = np.broadcast_to(_checked_decays(decays, weights.shape), weights.shape)
    budget = positive_number(budget, "budget")
    sides = np.minimum.outer(np.asarray(row_sizes), np.asarray(col_sizes)).astype(np.float64)
    most = sides if most is None else np.broadcast_to(np.asarray(most, dtype=np.float64), sides.shape)
    if not (most >= least).all():
        raise ValueError(f"most must be at least {least} for every block, got {most.min()}")
    smallest = float((unit_cost * least).sum())
    if budget < smallest:
        raise ValueError(
            f"budget must be at least {smallest:g}, the cost of the least widths, got {budget:g}"
        )

    with np.errstate(divide="ignore"):  # a block without probability has weight 0, and gets `least`
        log_gain = np.log(weights / unit_cost)

    def dims(log_multiplier: float) -> np.ndarray:
        exponent = (log_gain - log_multiplier) / (2 * decays)
        return np.clip(np.exp(np.minimum(exponent, 700.0)), least, most)  # exp(700) is still finite

    def overspent(log_multiplier: float) -> float:
        return float((unit_cost * dims(log_multiplier)).sum()) - budget

    alive = np.isfinite(log_gain) & (most > 0)
    # Below `low` every block is at `most`, above `high` all are at `least` or spend next to nothing.
    low = float((log_gain - 2 * decays * np.log(np.where(alive, most, 1.0)))[alive].min()) - 1.0
    if overspent(low) <= 0:
        return dims(low)
    floor = max(least, 0.25 * budget / float(unit_cost.sum()))
    high = float((log_gain - 2 * decays * np.log(floor))[alive].max()) + 1.0
    while overspent(high) > 0:
        # Only when the budget is the cost of the least widths to the last digit.
        high += 1.0
        if (dims(high) <= least).all():
            break
    if overspent(high) >= 0:
        return dims(high)
    return dims(brentq(overspent, low, high, xtol=1e-13, rtol=1e-14))


def _unit_cost_and_weights(
    row_sizes: Any, col_sizes: Any, block_probs: Any, scales: Any
) -> tuple[np.ndarray, np.ndarray]:
    """n_i + m_j, and rho_ij^2 Pi_ij / (n_i m_j)."""
    rows, columns = checked_sizes(row_sizes, "row_sizes"), checked_sizes(col_sizes, "col_sizes")
    probs = checked_probs(block_probs, rows, columns)
    scales = checked_matrix(scales, "scales", probs.shape)
    if not (scales > 0).all():
        raise ValueError(f"scales must be above 0, got {scales.min()}")
    return np.add.outer(rows, columns), scales**2 * probs / block_areas(rows, columns)


def _checked_decays(decays: Any, shape: tuple[int, ...]) -> np.ndarray:
    values = checked_matrix(np.atleast_2d(decays), "decays")
    if values.shape not in ((1, 1), shape):
        raise ValueError(f"decays must be one number or have shape {shape}, got {values.shape}")
    if not (values > 0).all():
        raise ValueError(f"decays must be above 0, got {values.min()}")
    return values
