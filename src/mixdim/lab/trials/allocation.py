"""What error does a memory budget buy, by how widths are chosen? Runs in, records out. Draws nothing.

The spectra of all blocks are known power laws: errors are sums (Thm. 4.2) and nothing is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from mixdim._util.arguments import real_number, unit_interval, whole_number
from mixdim.lab.theory.allocation import (
    SpectralBlocks,
    best_dims,
    integer_dims,
    relaxed_dims,
    spectral_blocks,
)
from mixdim.lab.theory.spectra import power_law_spectrum
from mixdim.lab.theory.structure import checked_sizes
from mixdim.lab.trials.records import Record

OPTIMUM, WHOLE, POWERS_OF_TWO = "optimum", "whole widths", "powers of two"
POPULARITY_DECAY = 0.2  # a block of n rows gets n ** -0.2 of the queries: fewer the larger it is
LONGEST_SPECTRUM = 256
LARGEST_DECAY, LARGEST_SPREAD = 10, 5  # beyond, float64 loses the smallest errors

Progress = Callable[..., None]  # shows stage, done, total


@dataclass(frozen=True)
class AllocationOptions:
    """What to run: every decay, seed and budget, with every way to choose widths.

    - `decays`: beta in sigma(k) = rho k^(-beta).
    - `spread`: standard deviation of log rho, over blocks: what popularity alone does not tell.
    - `budgets`: shares of the parameters with which nothing is left out.
    """

    row_sizes: tuple[int, ...] = (50, 100, 400, 1600, 6400)
    col_sizes: tuple[int, ...] = (200, 800, 3200)
    decays: tuple[float, ...] = (0.5, 0.8, 1.2)
    temperatures: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 1.0)
    budgets: tuple[float, ...] = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3)
    spread: float = 0.5
    seeds: int = 10

    def check(self) -> None:
        """Refuse what cannot be run."""
        checked_sizes(self.row_sizes, "row_sizes")
        checked_sizes(self.col_sizes, "col_sizes")
        whole_number(self.seeds, "seeds")
        for name in ("decays", "temperatures", "budgets"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{name} must be one or more, all different, got {list(values)}")
        for temperature in self.temperatures:
            unit_interval(temperature, "temperatures")
        for decay in self.decays:
            if not 0 < real_number(decay, "decays") <= LARGEST_DECAY:
                raise ValueError(f"decays must be above 0 and at most {LARGEST_DECAY}, got {decay:g}")
        for share in self.budgets:
            # With everything there is no error left to compare with.
            if not 0 < real_number(share, "budgets") < 1:
                raise ValueError(f"budgets must be shares above 0 and below 1, got {share:g}")
        if not 0 <= real_number(self.spread, "spread") <= LARGEST_SPREAD:
            raise ValueError(f"spread must be from 0 to {LARGEST_SPREAD}, got {self.spread:g}")


def allocation_records(options: AllocationOptions, progress: Progress) -> Iterator[Record]:
    """Yield one record for each decay, seed, budget and `policy`: its popularity-weighted MSE, `error`.

    Policies: the power law at each temperature ("temperature 0" is uniform), which knows popularity
    only; the optimum of Thm. 4.2, which knows the spectra. Both may take fractions of a dimension, so
    that each spends its budget wholly. Then the optimum among whole numbers (greedy) and among powers
    of two, 0 included.
    """
    options.check()
    total = len(options.decays) * options.seeds
    for done, (decay, seed) in enumerate((d, s) for d in options.decays for s in range(options.seeds)):
        progress("allocation", done, total, f"decay {decay:g}")
        blocks, entry_probs = _random_blocks(options, decay, seed)
        for share in options.budgets:
            budget = share * blocks.full_cost
            settings = {
                **{"row_sizes": options.row_sizes, "col_sizes": options.col_sizes},
                **{"spread": options.spread, "decay": decay, "seed": seed},
                **{"budget_share": share, "budget": budget},
            }
            errors = _errors(blocks, entry_probs, budget, options.temperatures)
            for policy, error in errors.items():
                over_optimum = error / errors[OPTIMUM]
                yield {**settings, "policy": policy, "error": error, "over_optimum": over_optimum}
    progress("allocation", total, total, "")


def power_law_dims(
    blocks: SpectralBlocks, entry_probs: np.ndarray, temperature: float, budget: float
) -> np.ndarray:
    """Return widths proportional to p^temperature, p a block's probability of one entry, for a budget.

    No width exceeds its block's rank, where more gains nothing; fractions are allowed, so that the
    budget is spent wholly. Temperature 0 is uniform.

    >>> blocks = spectral_blocks([3, 3], [2], [[0.8], [0.2]], [[[4.0, 1.0]], [[4.0, 1.0]]])
    >>> power_law_dims(blocks, np.array([[0.4], [0.1]]), 0.5, budget=7.5).round(6).tolist()
    [[1.0], [0.5]]
    """
    weights = (entry_probs / entry_probs.max()) ** temperature

    def dims(scale: float) -> np.ndarray:
        return np.minimum(scale * weights, blocks.ranks)

    most = float((blocks.ranks / weights).max())  # with it every block has its rank
    scale = brentq(lambda scale: blocks.cost(dims(scale)) - budget, 0.0, most, xtol=1e-12 * most)
    return dims(scale)


def _errors(
    blocks: SpectralBlocks, entry_probs: np.ndarray, budget: float, temperatures: tuple[float, ...]
) -> dict[str, float]:
    """The error of each policy."""
    powers = [0, *(2**k for k in range(LONGEST_SPECTRUM.bit_length()))]
    by_policy: dict[str, np.ndarray] = {
        OPTIMUM: relaxed_dims(blocks, budget),
        WHOLE: integer_dims(blocks, budget),
        POWERS_OF_TWO: best_dims(blocks, budget, choices=powers),
        **{f"temperature {t:g}": power_law_dims(blocks, entry_probs, t, budget) for t in temperatures},
    }
    return {policy: blocks.error(dims) for policy, dims in by_policy.items()}


def _random_blocks(
    options: AllocationOptions, decay: float, seed: int
) -> tuple[SpectralBlocks, np.ndarray]:
    """The blocks, and the probability of one entry of each: (row blocks, column blocks)."""
    rows, columns = np.array(options.row_sizes), np.array(options.col_sizes)
    areas = np.outer(rows, columns)
    popularity = areas**-POPULARITY_DECAY
    block_probs = popularity / popularity.sum()
    noise = np.random.default_rng(seed).standard_normal(areas.shape)
    scales = np.sqrt(areas) * np.exp(options.spread * noise)  # entries of size about 1 in every block
    spectra = [
        [
            power_law_spectrum(min(n, m, LONGEST_SPECTRUM), scale=scales[i, j], decay=decay)
            for j, m in enumerate(columns)
        ]
        for i, n in enumerate(rows)
    ]
    return spectral_blocks(rows, columns, block_probs, spectra), block_probs / areas
