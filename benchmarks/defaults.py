"""What the default options reach: `python benchmarks/defaults.py RAW OUT [CASE ...] [--seeds 3]`.

RAW holds ml-1m.zip, criteo_kaggle_17583.tsv, gowalla.csv.gz and online_retail2.csv.gz; data and the
records of all runs go to OUT, so that the same command goes on after a stop. Of each case, at base_dim
16 and temperature 0.3: the baseline, the default of before (`paper-cf`, or `clicks`), that of now
(`auto`), with several seeds, and of ratings the best in validation of the latter with other penalties,
with the first seed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from mixdim._util.text import align
from mixdim.data import Dataset
from mixdim.data.public.criteo import prepare_criteo
from mixdim.data.public.movielens import prepare_movielens
from mixdim.data.table import prepare_table
from mixdim.lab.synthetic.generate import generate_movielens_like
from mixdim.runs.baseline_report import baseline_losses
from mixdim.runs.config import RunConfig
from mixdim.runs.sweeps.frame import with_deviation
from mixdim.runs.sweeps.records import Record
from mixdim.runs.sweeps.sweep import RunRequest, run_sweep
from mixdim.runs.sweeps.tune import TRIED

MOVIELENS, CRITEO = "ml-1m.zip", "criteo_kaggle_17583.tsv"
CASES: dict[str, Callable[[Path, Path], Any]] = {
    "ml-1m": lambda raw, out: prepare_movielens(raw / MOVIELENS, out),
    "generated-100k": lambda raw, out: generate_movielens_like(out, rows=100_000, scale=0.01),
    "generated-1m": lambda raw, out: generate_movielens_like(out, rows=1_000_000, scale=0.03),
    "criteo-sample": lambda raw, out: prepare_criteo([raw / CRITEO], out),
    "gowalla": lambda raw, out: prepare_table(
        [raw / "gowalla.csv.gz"],
        out,
        categorical=["user", "item"],
        negatives=4,
        negatives_of="item",
        split="column:split",
    ),
    "online-retail": lambda raw, out: prepare_table(
        [raw / "online_retail2.csv.gz"],
        out,
        categorical=["customer", "item", "country"],
        negatives=4,
        negatives_of="item",
        split="time:ts",
    ),
    "ml-1m-clicks": lambda raw, out: prepare_movielens(raw / MOVIELENS, out, form="clicks", every=4),
}
OLD = {"binary": "clicks", "rating": "paper-cf"}


def summaries(records: list[Record]) -> list[dict[str, Any]]:
    for record in records:
        if record.summary is None:
            raise SystemExit(f"a run failed: {record.error}")
    return [record.summary for record in records if record.summary is not None]


def loss(summary: dict[str, Any], split: str) -> float:
    best = summary[split]["best"]
    return float(best["mse"] if "mse" in best else best["log_loss"])


def main() -> None:
    """Prepare, train and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("raw", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--seeds", type=int, default=3)
    told = parser.parse_args()
    told.out.mkdir(parents=True, exist_ok=True)
    lines = [["data", "", "validation", "test", "seeds", "seconds"]]
    for case in told.cases or CASES:
        folder = told.out / case
        if not folder.exists():
            CASES[case](told.raw, folder)
        lines += _measured(case, folder, told.out / f"{case}.jsonl", told.seeds)
        print("\n".join(align(lines)), flush=True)


def _measured(case: str, folder: Path, records: Path, seeds: int) -> list[list[str]]:
    task = Dataset(folder).task
    usual = RunConfig(data=str(folder), base_dim=16)

    def trained(config: RunConfig, number: int) -> list[dict[str, Any]]:
        runs = [RunRequest(replace(config, seed=seed)) for seed in range(number)]
        return summaries(run_sweep(runs, records))

    new = trained(usual, seeds)
    named = {f"before ({OLD[task]})": trained(replace(usual, preset=OLD[task]), seeds), "now": new}
    if task == "rating":
        tried = {one: trained(replace(usual, penalty=one), 1)[0] for one in TRIED["penalty"]}
        best = min(tried, key=lambda penalty: loss(tried[penalty], "validation"))
        named[f"best of {len(tried)} penalties: {best:g}"] = [tried[best]]
    baselines = {split: baseline_losses(new[0], split) for split in ("validation", "test")}
    name = list(baselines["test"])[-1]
    rows = [[case, name, *(f"{of[name]:.4f}" for of in baselines.values()), "", ""]]
    for label, found in named.items():
        seconds = sum(summary["seconds"] for summary in found) / len(found)
        losses = [[loss(s, split) for s in found] for split in ("validation", "test")]
        measured = [with_deviation(mean(one), stdev(one) if one[1:] else None) for one in losses]
        rows.append([case, label, *measured, str(len(found)), f"{seconds:.0f}"])
    return rows


if __name__ == "__main__":
    main()
