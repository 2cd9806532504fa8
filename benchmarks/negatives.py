"""Preparing positives with drawn negatives against preparing as many plain rows, in interleaved rounds.

The rows of both have a user, an item, a country and a price; the plain ones have a label too.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import polars as pl

from mixdim.data.table import prepare_table

COLUMNS: dict[str, Any] = {"categorical": ["user", "item", "country"], "dense": ["price"]}


def write(path: Path, rows: int, *, labels: bool) -> Path:
    rng = np.random.default_rng(0)
    columns = {
        "user": (100_000 * rng.random(rows) ** 1.5).astype(int),
        "item": (50_000 * rng.random(rows) ** 2.5).astype(int),
        "country": pl.Series((200 * rng.random(rows) ** 2).astype(int)).cast(pl.String) + "xx",
        "price": np.round(rng.gamma(2, 10, rows), 2),
    }
    label = {"y": rng.integers(0, 2, rows)} if labels else {}
    pl.DataFrame({**label, **columns}).write_csv(path)
    return path


def measure(raw: Path, out: Path, given: dict[str, Any]) -> tuple[float, float]:
    """Seconds and peak memory in MB; runs in a process of its own, so that the peak is its own."""
    start = time.perf_counter()
    prepare_table([raw], out, overwrite=True, **COLUMNS, **given)
    seconds = time.perf_counter() - start
    status = Path("/proc/self/status").read_text()
    return seconds, int(status.split("VmHWM:")[1].split()[0]) / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--positives", type=int, default=1_000_000)
    parser.add_argument("--negatives", type=int, default=4, help="for each positive")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    drawn = {"negatives": options.negatives, "negatives_of": "item"}
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        rows = options.positives * (1 + options.negatives)
        ways = {
            f"{rows:,} plain rows": (write(place / "plain.csv", rows, labels=True), {"target": "y"}),
            f"{options.positives:,} positives": (
                write(place / "positives.csv", options.positives, labels=False),
                drawn,
            ),
            f"{4 * options.positives:,} positives": (
                write(place / "four.csv", 4 * options.positives, labels=False),
                drawn,
            ),
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(options.rounds):
            for name, (raw, given) in ways.items():
                with ProcessPoolExecutor(1, get_context("spawn")) as process:
                    found[name].append(process.submit(measure, raw, place / "out", given).result())
    for name, results in found.items():
        seconds, peaks = zip(*results, strict=True)
        print(f"{name:24} {median(seconds):6.1f} s   peak {max(peaks):5.0f} MB")
    plain, positives, _ = (median(s for s, _ in results) for results in found.values())
    print(f"{options.positives:,} positives with negatives take {positives / plain:.2f} of the time")


if __name__ == "__main__":
    main()
