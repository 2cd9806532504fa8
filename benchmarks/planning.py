"""How long plans take: 33.7 million rows by feature, and 30 million rows cut into bands."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from rounds import measure, report, summary

import mixdim
from mixdim.experiments.criteo import CRITEO_KAGGLE_ROWS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=30_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    counts = np.random.default_rng(0).zipf(1.2, options.rows).clip(max=10**7)
    ranked = np.sort(counts)[::-1].copy()
    budget = 2 * sum(CRITEO_KAGGLE_ROWS.values())
    rival = f"numpy sort of {options.rows:,} counts"
    contenders = {
        rival: lambda: np.sort(counts),
        "Criteo: base_dim from a budget": lambda: mixdim.plan(
            CRITEO_KAGGLE_ROWS, temperature=0.3, budget=budget
        ),
        "Criteo: temperature from a budget": lambda: mixdim.plan(
            CRITEO_KAGGLE_ROWS, base_dim=128, budget=budget
        ),
        f"{options.rows:,} rows in 16 bands": lambda: mixdim.equal_mass_bands(counts, 16),
        "the same, ids already ranked": lambda: mixdim.equal_mass_bands(ranked, 16),
    }
    report(
        summary(measure(contenders, rounds=options.rounds), rival=rival),
        rival="the sort",
        save=options.json,
    )


if __name__ == "__main__":
    main()
