"""What share of their budgets recorded runs left unspent: by model, rounding and temperature or method.

Reads records, such as results/records.jsonl; trains nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import polars as pl

from mixdim._util.text import align
from mixdim.runs.sweeps.frame import run_frame
from mixdim.runs.sweeps.methods import method_of
from mixdim.runs.sweeps.records import read_records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", nargs="+", type=Path)
    records = read_records(parser.parse_args().records)
    runs = run_frame(records)
    said = [records[number] for number in runs["number"]]
    groups = (
        runs.select(
            "model",
            rounding=pl.Series([record.config.get("rounding") or "-" for record in said]),
            widths=pl.Series([method_of(record) for record in said]),
            unspent=1 - pl.col("spent"),
        )
        .drop_nulls("unspent")
        .group_by("model", "rounding", "widths")
        .agg(
            runs=pl.len(),
            least=pl.col("unspent").min(),
            mean=pl.col("unspent").mean(),
            most=pl.col("unspent").max(),
        )
        .sort("model", "rounding", "widths")
    )
    lines = [["model", "rounding", "widths", "runs", "least unspent", "mean", "most"]]
    for *names, count, least, mean, most in groups.iter_rows():
        lines.append([*names, f"{count}", *(f"{number:.1%}" for number in (least, mean, most))])
    print("\n".join(align(lines)))


if __name__ == "__main__":
    main()
