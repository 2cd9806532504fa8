"""How fast Criteo-format rows are prepared, and in how much memory: generated files of several lengths.

Memory should grow with the vocabulary, not with the rows: `--scale` makes the vocabulary small enough
that longer files do not bring new values. See also `--rows 2000000,4000000,8000000`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from mixdim.data.public.criteo import prepare_criteo
from mixdim.lab.synthetic.planted import CRITEO_KAGGLE_ROWS

CHUNK = 250_000
# Shares of empty fields, near those of the Kaggle file.
MISSING_INTEGERS = [0.45, 0, 0.21, 0.22, 0.03, 0.22, 0.04, 0, 0.04, 0.45, 0.04, 0.77, 0.22]
MISSING_CATEGORIES = {"C3": 0.03, "C4": 0.03, "C6": 0.12, "C12": 0.03, "C16": 0.03, "C19": 0.44}
MISSING_CATEGORIES |= {"C20": 0.44, "C21": 0.03, "C22": 0.76, "C24": 0.03, "C25": 0.44, "C26": 0.44}


def chunks(rows: int, scale: float, rng: np.random.Generator) -> Iterator[pl.DataFrame]:
    """Rows as text: categories of Zipf popularity (exponent 1), integers that are mostly small."""
    digits = pl.Series([f"{i:04x}" for i in range(1 << 16)])
    for start in range(0, rows, CHUNK):
        size = min(CHUNK, rows - start)
        columns = {"label": pl.Series(rng.integers(0, 4, size) == 0).cast(pl.Int8)}
        for index, missing in enumerate(MISSING_INTEGERS):
            integers = np.floor(rng.lognormal(1 + index % 4, 1.5, size)).astype(np.int64) - (index == 1)
            columns[f"I{index}"] = _with_missing(pl.Series(integers), missing, rng)
        for index, (name, values) in enumerate(CRITEO_KAGGLE_ROWS.items()):
            ranks = np.power(max(3, values * scale), rng.random(size)).astype(np.uint64)
            hashes = (ranks * 2654435761 + index * 40503) & 0xFFFFFFFF
            text = digits.gather(hashes >> 16) + digits.gather(hashes & 0xFFFF)
            columns[name] = _with_missing(text, MISSING_CATEGORIES.get(name, 0), rng)
        yield pl.DataFrame(columns)


def measure(raw: str, out: str) -> dict[str, Any]:
    """Prepare the file; runs in a process of its own, so that the peak of memory is its own."""
    start = time.perf_counter()
    meta = prepare_criteo([Path(raw)], out)
    seconds = time.perf_counter() - start
    status = Path("/proc/self/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0]) / 1000
    vocabulary = sum(feature.rows for feature in meta.features)
    return {"seconds": seconds, "peak_mb": peak, "vocabulary": vocabulary}


def run(rows: int, scale: float, directory: Path) -> dict[str, Any]:
    raw, out = directory / f"{rows}.tsv", directory / str(rows)
    with raw.open("wb") as file:
        for chunk in chunks(rows, scale, np.random.default_rng(0)):
            chunk.write_csv(file, separator="\t", include_header=False)
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        result = process.submit(measure, str(raw), str(out)).result()
    size = raw.stat().st_size
    raw.unlink()
    return {"rows": rows, "mb": size / 1e6, "rows_per_second": rows / result["seconds"], **result}


def _with_missing(values: pl.Series, share: float, rng: np.random.Generator) -> pl.Series:
    return values.scatter(np.flatnonzero(rng.random(len(values)) < share), None) if share else values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="2000000", help="row counts, separated by commas")
    parser.add_argument("--scale", type=float, default=1.0, help="of the cardinalities of Criteo Kaggle")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    results = []
    print(f"{'rows':>12} {'MB':>7} {'vocabulary':>12} {'seconds':>8} {'rows/s':>9} {'peak MB':>8}")
    for rows in (int(part) for part in options.rows.split(",")):
        with tempfile.TemporaryDirectory() as directory:
            result = run(rows, options.scale, Path(directory))
        results.append({"scale": options.scale, **result})
        print(
            f"{rows:12,} {result['mb']:7.0f} {result['vocabulary']:12,} {result['seconds']:8.1f} "
            f"{result['rows_per_second']:9,.0f} {result['peak_mb']:8,.0f}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
