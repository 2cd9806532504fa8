"""What the dense rules of `prepare table` are worth: a Criteo file as a table, its numbers in four ways.

    python benchmarks/dense_rules.py criteo_kaggle_17583.tsv

DLRM of width 8 (temperature 0.3; hidden widths 64 below, 64 and 32 above), batches of 256, at most 10
epochs with patience 3, best weights by validation; the split is by position, 80/10/10, the same for all.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from mixdim.data.public.criteo import CATEGORICAL, DENSE
from mixdim.data.table import prepare_table
from mixdim.runs.config import RunConfig
from mixdim.runs.run import Run

METRICS = ("log_loss", "auc")


def main() -> None:
    """Prepare, train and print mean and standard deviation over seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("raw", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    names = ["label", *DENSE, *CATEGORICAL]
    frame = pl.read_csv(
        given.raw,
        separator="\t",
        has_header=False,
        new_columns=names,
        schema_overrides=[pl.Int8, *[pl.Int64] * len(DENSE), *[pl.String] * len(CATEGORICAL)],
    )
    logs = frame.with_columns(pl.col(DENSE).clip(lower_bound=0).cast(pl.Float64).log1p())
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        frame.write_parquet(place / "raw.parquet")
        logs.write_parquet(place / "logs.parquet")
        ways: dict[str, tuple[str, dict[str, Any]]] = {
            "no dense columns": ("raw.parquet", {"dense": []}),
            "raw (--dense-as-is)": ("raw.parquet", {"dense": DENSE, "dense_as_is": True}),
            "Criteo's recipe": ("logs.parquet", {"dense": DENSE, "dense_as_is": True}),
            "rules (default)": ("raw.parquet", {"dense": DENSE}),
        }
        for number, (way, (file, options)) in enumerate(ways.items()):
            data = place / str(number)
            prepare_table(
                [place / file],
                data,
                target="label",
                categorical=CATEGORICAL,
                split="position",
                **options,
            )
            known: dict[str, Any] = {}  # what a baseline reaches is the same for all seeds
            found = [_test(data, seed, place / f"{number}-{seed}", known) for seed in range(given.seeds)]
            columns = (
                f"{name} {np.mean(values):.4f} +- {np.std(values, ddof=min(1, len(values) - 1)):.4f}"
                for name, values in zip(METRICS, zip(*found, strict=True), strict=True)
            )
            print(f"{way:20}  test {', '.join(columns)}", flush=True)


def _test(data: Path, seed: int, out: Path, known: dict[str, Any]) -> list[float]:
    config = RunConfig.of(
        data=str(data),
        model="dlrm",
        base_dim=8,
        temperature=0.3,
        bottom=(64,),
        top=(64, 32),
        batch_size=256,
        epochs=10,
        patience=3,
        seed=seed,
    )
    summary = Run.create(out, config).train(known_baselines=known)
    known[summary["data_fingerprint"]] = summary["baselines"]
    return [summary["test"]["best"][name] for name in METRICS]


if __name__ == "__main__":
    main()
