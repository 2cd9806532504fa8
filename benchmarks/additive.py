"""The defaults where nothing beats a baseline: `python benchmarks/additive.py OUT [--seeds 3]`.

Two synthetic files in which users, books and numbers only add up: ratings of which most are of
strangers, and clicks with numbers that are missing, constant or huge. So shrunken biases and logistic
regression are all that can be learnt, and the rest of a model is what it costs. OUT gets files, data and
the records of all runs; the same command goes on after a stop.
"""

from __future__ import annotations

import argparse
import csv
import math
import random
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from mixdim._util.text import align
from mixdim.data.table import prepare_table
from mixdim.runs.baseline_report import baseline_losses
from mixdim.runs.config import RunConfig
from mixdim.runs.sweeps.frame import with_deviation
from mixdim.runs.sweeps.sweep import RunRequest, run_sweep

SPLITS = ("validation", "test")


def taste(kind: str, number: int) -> float:
    """What a user or a book adds to its ratings."""
    return random.Random(f"{kind} {number}").gauss(0, 1)


def write_ratings(path: Path) -> None:
    """12,000 ratings from 1 to 10 by users and of books of whom most are there once."""
    rng = random.Random(5)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["user", "book", "rating"])
        for _ in range(12_000):
            user, book = int(200_000 * rng.random() ** 4), int(30_000 * rng.random() ** 3)
            rating = 7.5 + taste("user", user) + taste("book", book) + rng.gauss(0, 1.2)
            table.writerow([user, book, max(1, min(10, round(rating)))])


def write_clicks(path: Path) -> None:
    """20,000 clicks: two features, and numbers, some of which say nothing."""
    rng = random.Random(6)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["site", "place", "price", "temperature", "constant", "huge", "clicked"])
        for _ in range(20_000):
            site, place = int(500 * rng.random() ** 2), rng.choice(["x", "y", "z", ""])
            price, temperature = math.exp(rng.gauss(2, 1.5)), rng.gauss(-5, 10)
            huge = rng.gauss(0, 1) if rng.random() > 0.001 else 1e30
            odds = 1.5 * (site % 5 == 0) + (place == "x") + temperature / 20 + 0.3 * math.log(price) - 1
            clicked = rng.random() < 1 / (1 + math.exp(-odds))
            shown = f"{price:.3f}" if rng.random() > 0.1 else ""
            table.writerow([site, place, shown, f"{temperature:.2f}", 7, huge, clicked])


CASES: dict[str, tuple[Any, dict[str, Any], list[dict[str, Any]]]] = {
    "ratings": (
        write_ratings,
        {"target": "rating", "task": "rating", "categorical": ["user", "book"]},
        [{}, {"from_baseline": False}, {"preset": "paper-cf"}],
    ),
    "clicks": (
        write_clicks,
        {
            "target": "clicked",
            "categorical": ["site", "place"],
            "dense": ["price", "temperature", "constant", "huge"],
        },
        [{}, {"from_baseline": False}, {"preset": "clicks"}],
    ),
}


def main() -> None:
    """Write, prepare, train and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    told = parser.parse_args()
    told.out.mkdir(parents=True, exist_ok=True)
    lines = [["data", "", "validation", "test"]]
    for case, (write, columns, variants) in CASES.items():
        raw, folder = told.out / f"{case}.csv", told.out / case
        if not folder.exists():
            write(raw)
            prepare_table([raw], folder, **columns)
        for variant in variants:
            usual = RunConfig.of(data=str(folder), base_dim=8, **variant)
            runs = [RunRequest(replace(usual, seed=seed)) for seed in range(told.seeds)]
            found = [record.summary for record in run_sweep(runs, told.out / f"{case}.jsonl")]
            summaries = [summary for summary in found if summary is not None]
            metric = "mse" if case == "ratings" else "log_loss"
            if variant == {}:
                best = {
                    split: list(baseline_losses(summaries[0], split).items())[-1] for split in SPLITS
                }
                lines.append([case, best["test"][0], *(f"{best[split][1]:.4f}" for split in SPLITS)])
            losses = [[s[split]["best"][metric] for s in summaries] for split in SPLITS]
            measured = [with_deviation(mean(one), stdev(one) if one[1:] else None) for one in losses]
            label = ", ".join(f"{name} {value}" for name, value in variant.items()) or "default"
            lines.append([case, label, *measured])
    print("\n".join(align(lines)))


if __name__ == "__main__":
    main()
