"""Quality against size: train at several temperatures within the same budgets, with several seeds.

For each budget and temperature: mean and standard deviation over the seeds of the test loss, at the best
validation, and of its difference to the uniform run of the same seed. The budget is what the embeddings
cost at a uniform width; mixed dimensions get at most that. A run that is in the records already is not
trained again.

    python benchmarks/quality.py --data ml-1m-0,ml-1m-1,ml-1m-2 --model mf --widths 2,4,8,16
"""

from __future__ import annotations

import argparse
import json
import statistics
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import mixdim
import mixdim.data
from mixdim.experiments.run_config import RunConfig
from mixdim.experiments.training_run import train_run
from mixdim.plan_table import align
from mixdim.training.metrics import objective


def train_once(config: RunConfig, key: str, threads: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore", mixdim.FloorWarning)  # part of what is compared
    with TemporaryDirectory() as folder:
        return {"key": key, **train_run(config, Path(folder) / "run")}


def table(runs: dict[tuple[int, float], list[dict[str, Any]]], metric: str) -> str:
    head = ["width", "temperature", "base_dim", "embeddings", "model", metric, "std"]
    lines = [[*head, "minus uniform", "std", "seeds", "s"]]
    for (width, temperature), same in runs.items():
        losses = [run["test"]["best"][metric] for run in same]
        uniform = [run["test"]["best"][metric] for run in runs.get((width, 0.0), same)]
        gains = [mine - theirs for mine, theirs in zip(losses, uniform, strict=True)]
        lines.append([
            str(width),
            f"{temperature:g}",
            str(same[0]["base_dim"]),
            f"{same[0]['embedding_parameters']:,}",
            f"{same[0]['num_parameters']:,}",
            f"{statistics.fmean(losses):.4f}",
            spread(losses),
            f"{statistics.fmean(gains):+.4f}" if temperature else "",
            spread(gains) if temperature else "",
            str(len(same)),
            f"{statistics.fmean(run['seconds'] for run in same):.0f}",
        ])  # fmt: skip
    return "\n".join(align(lines))


def spread(numbers: list[float]) -> str:
    return f"{statistics.stdev(numbers):.4f}" if len(numbers) > 1 else "-"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="prepared folders; seed i trains on folder i")
    parser.add_argument("--model", required=True, choices=["dlrm", "mf", "ncf"])
    parser.add_argument("--biases", action="store_true")
    parser.add_argument("--widths", default="2,4,8,16", help="uniform widths that give the budgets")
    parser.add_argument("--temperatures", default="0,0.2,0.3,0.4")
    parser.add_argument("--records", type=Path, default=Path("quality.jsonl"))
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time; threads are divided")
    options = parser.parse_args()
    datasets = [mixdim.data.open(path) for path in options.data.split(",")]
    cells = list(
        product(map(int, options.widths.split(",")), map(float, options.temperatures.split(",")))
    )
    wanted: dict[str, RunConfig] = {}
    keys: dict[tuple[int, float], list[str]] = {cell: [] for cell in cells}
    for (width, temperature), (seed, dataset) in product(cells, enumerate(datasets)):
        config = RunConfig(
            data=str(dataset.path),
            model=options.model,
            temperature=temperature,
            budget=str(width * sum(dataset.cardinalities.values())),
            seed=seed,
            biases=options.biases if options.model == "mf" else None,
        )
        key = f"{dataset.fingerprint} {config.to_toml()}"
        wanted[key] = config
        keys[width, temperature].append(key)
    lines = options.records.read_text().splitlines() if options.records.exists() else []
    done = {record["key"]: record for record in map(json.loads, lines)}
    todo = {key: config for key, config in wanted.items() if key not in done}
    threads = max(1, torch.get_num_threads() // options.jobs)
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("forkserver")) as pool:
        futures = [pool.submit(train_once, config, key, threads) for key, config in todo.items()]
        for number, future in enumerate(as_completed(futures), start=1):
            record = future.result()
            done[record["key"]] = record
            with options.records.open("a") as file:
                file.write(json.dumps(record) + "\n")
            print(f"{number}/{len(futures)}", end="\r", flush=True)
    runs = {cell: [done[key] for key in keys[cell]] for cell in cells}
    print(table(runs, objective(datasets[0].task)))


if __name__ == "__main__":
    main()
