"""The defaults beside what a person has elsewhere: `python benchmarks/peers.py RAW OUT [SET ...]`.

RAW holds ml-1m.zip, criteo_kaggle_17583.tsv, online_retail2.csv.gz and gowalla.csv.gz; prepared data
and all results go to OUT, so that the same command goes on after a stop. Of each set: tuned biases and
biased ALS (ratings), or tuned logistic regression, a tuned FM and an ordinary network of width 16
(clicks), in NumPy, SciPy and PyTorch (peer_models.py), and `mixdim train` with `--base-dim 16
--temperature 0` alone, which is as wide. Test loss, mean and deviation over the seeds; what was
chosen was chosen by validation with the first seed.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from mixdim import Run
from mixdim._util.text import align
from mixdim.data import Dataset
from mixdim.data.public.criteo import prepare_criteo
from mixdim.data.public.movielens import prepare_movielens
from mixdim.data.table import prepare_table
from mixdim.tasks import task_of
from peer_models import CLICKS, RATINGS, SEEDLESS, Data

DEFAULT = "mixdim train"
NEGATIVES: dict[str, Any] = {"negatives": 4, "negatives_of": "item"}


def gowalla(raw: Path, out: Path) -> Any:
    return prepare_table(
        [raw / "gowalla.csv.gz"], out, categorical=["user", "item"], split="column:split", **NEGATIVES
    )


def retail(raw: Path, out: Path) -> Any:
    columns = ["customer", "item", "country"]
    return prepare_table(
        [raw / "online_retail2.csv.gz"], out, categorical=columns, split="time:ts", **NEGATIVES
    )


SETS: dict[str, Callable[[Path, Path], Any]] = {
    "ml-1m": lambda raw, out: prepare_movielens(raw / "ml-1m.zip", out),
    "ml-1m-clicks": lambda raw, out: prepare_movielens(raw / "ml-1m.zip", out, form="clicks"),
    "criteo-sample": lambda raw, out: prepare_criteo([raw / "criteo_kaggle_17583.tsv"], out),
    "retail": retail,
    "gowalla": gowalla,
}


def main() -> None:
    """Prepare, fit and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("raw", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("sets", nargs="*", metavar="SET")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", help="one model by its name, such as 'mixdim train'")
    told = parser.parse_args()
    told.out.mkdir(parents=True, exist_ok=True)
    lines = [["data", "model", "validation", "test", "±", "settings", "tried", "seeds", "seconds"]]
    for name in told.sets or SETS:
        folder = told.out / name
        if not folder.exists():
            SETS[name](told.raw, folder)
        lines += _compared(name, folder, told.out / f"{name}.jsonl", told.seeds, told.only)
        print("\n".join(align(lines)), flush=True)


def _compared(name: str, folder: Path, records: Path, seeds: int, only: str | None) -> list[list[str]]:
    dataset = Dataset(folder)
    peers = RATINGS if dataset.task == "rating" else CLICKS
    known = [json.loads(line) for line in records.read_text().splitlines()] if records.exists() else []
    lines, data = [], None
    for model in (*peers, DEFAULT):
        if only not in (None, model):
            continue
        wanted = 1 if model in SEEDLESS else seeds
        found = [one for one in known if one["model"] == model and one["seed"] < wanted]
        for seed in range(len(found), wanted):
            start = time.perf_counter()
            if model == DEFAULT:
                result = _default(folder, records.parent / f"{name}-run{seed}", seed)
            else:
                data = data or Data.of(dataset)
                result = asdict(peers[model](data, seed))
            result |= {"model": model, "seed": seed, "seconds": time.perf_counter() - start}
            with records.open("a", encoding="utf-8") as file:
                print(json.dumps(result), file=file)
            found.append(result)
        validation, test = ([one[split] for one in found] for split in ("validation", "test"))
        lines.append([
            *(name, model, f"{mean(validation):.4f}", f"{mean(test):.4f}"),
            f"{stdev(test):.4f}" if len(test) > 1 else "-",
            *(found[0]["settings"], str(found[0]["tried"]), str(len(test))),
            f"{mean(one['seconds'] for one in found):.0f}",
        ])  # fmt: skip
    return lines


def _default(folder: Path, out: Path, seed: int) -> dict[str, Any]:
    """A run with the defaults; what the preset searches is a part of it."""
    run = Run.create(out, data=str(folder), temperature=0.0, base_dim=16, seed=seed, resume=out.exists())
    summary = run.train(resume=out.exists())
    objective = task_of(str(run.dataset().task)).objective
    found = {split: summary[split]["best"][objective] for split in ("validation", "test")}
    return {**found, "settings": f"{summary['model']}, {summary['epochs_run']} epochs", "tried": 1}


if __name__ == "__main__":
    main()
