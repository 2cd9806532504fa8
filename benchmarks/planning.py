"""How long plans take: 33.7 million rows by feature, and 30 million rows cut into bands."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import mixdim
from interleaved import Contest, Step, arguments, run
from mixdim.lab.synthetic.planted import CRITEO_KAGGLE_ROWS

BUDGET = 2 * sum(CRITEO_KAGGLE_ROWS.values())
RIVAL = "numpy sort of the counts"


def make_counts(rows: int) -> np.ndarray:
    return np.random.default_rng(0).zipf(1.2, rows).clip(max=10**7)


def sort(counts: np.ndarray) -> Step:
    return lambda: np.sort(counts)


def criteo_plan(counts: np.ndarray, **given: Any) -> Step:
    return lambda: mixdim.plan(CRITEO_KAGGLE_ROWS, budget=BUDGET, **given)


def bands(counts: np.ndarray) -> Step:
    return lambda: mixdim.equal_mass_bands(counts, 16)


def bands_of_ranked(counts: np.ndarray) -> Step:
    return bands(np.sort(counts)[::-1].copy())


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--rows", type=int, help="default 30 million, or 3 million with --quick")
    options = parser.parse_args()
    rows = options.rows or (3_000_000 if options.quick else 30_000_000)
    contenders: dict[str, Callable[[np.ndarray], Step]] = {
        RIVAL: sort,
        "Criteo: base_dim from a budget": partial(criteo_plan, temperature=0.3),
        "Criteo: temperature from a budget": partial(criteo_plan, base_dim=128),
        "counts in 16 bands": bands,
        "the same, ids already ranked": bands_of_ranked,
    }
    run([Contest(f"plans, {rows:,} counts", partial(make_counts, rows), contenders, RIVAL)], options)


if __name__ == "__main__":
    main()
