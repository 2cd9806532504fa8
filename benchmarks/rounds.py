"""Interleaved timing: every contender once a round, so that a noisy machine is noisy for all."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from mixdim.files import write_atomically
from mixdim.plan_table import align


def measure(contenders: Mapping[str, Callable[[], object]], *, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each contender in each round, after one round that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, work in contenders.items():
            start = time.perf_counter()
            work()
            if number:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def summary(seconds: Mapping[str, list[float]], *, rival: str) -> list[dict[str, float | str]]:
    """Median and quartiles of each, and how many times faster than the rival, round by round."""
    rows: list[dict[str, float | str]] = []
    for name, times in seconds.items():
        low, median, high = statistics.quantiles(times, n=4)
        ratios = [theirs / mine for theirs, mine in zip(seconds[rival], times, strict=True)]
        ratio_low, ratio, ratio_high = statistics.quantiles(ratios, n=4)
        rows.append({
            "name": name,
            "median_ms": 1e3 * median,
            "quartile_low_ms": 1e3 * low,
            "quartile_high_ms": 1e3 * high,
            "times_faster": ratio,
            "times_faster_low": ratio_low,
            "times_faster_high": ratio_high,
        })  # fmt: skip
    return rows


def report(rows: list[dict[str, float | str]], *, rival: str, save: Path | None) -> None:
    """Print a table and, if asked, write it as JSON."""
    lines = [["", "median ms", "quartiles", f"times faster than {rival}", "quartiles"]]
    for row in rows:
        lines.append([
            str(row["name"]),
            f"{row['median_ms']:.2f}",
            f"{row['quartile_low_ms']:.2f}-{row['quartile_high_ms']:.2f}",
            f"{row['times_faster']:.2f}",
            f"{row['times_faster_low']:.2f}-{row['times_faster_high']:.2f}",
        ])  # fmt: skip
    print("\n".join(align(lines)) + "\n")
    if save is not None:
        write_atomically(save, json.dumps(rows, indent=2) + "\n")
