"""Two checkouts, this one and that of the commit before a change, say: the same steps, taking turns.

    git worktree add /tmp/before HEAD~1
    python benchmarks/versions.py --other /tmp/before

Each version has a process of its own; in every round each takes one step, and which is first changes.
The compiled kernels are those that are installed, for both. The ids are synthetic.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import mixdim
from mixdim.data.planted import CRITEO_KAGGLE_ROWS
from mixdim.models import DLRM, MatrixFactorization

RATINGS = {"user": 280_000, "item": 58_000}
NUM_BATCHES, WARM_UP = 8, 3
Step = Callable[[Tensor], object]


def make_ids(rows: dict[str, int], batch_size: int) -> list[Tensor]:
    """Batches of ids whose popularity falls as 1/rank."""
    generator = torch.Generator().manual_seed(0)

    def column(num_rows: int) -> Tensor:
        uniform = torch.rand(batch_size, generator=generator, dtype=torch.float64)
        return (num_rows**uniform - 1).to(torch.int64).clamp(0, num_rows - 1)

    return [torch.stack([column(n) for n in rows.values()], 1) for _ in range(NUM_BATCHES)]


def criteo_layer() -> mixdim.FeatureEmbeddings:
    plan = mixdim.plan(CRITEO_KAGGLE_ROWS, temperature=0.3, base_dim=32)
    return mixdim.FeatureEmbeddings(plan, sparse=True)


def layer_step() -> tuple[Step, list[Tensor]]:
    layer, upstream = criteo_layer(), torch.randn(4096, 26, 32)
    optimizer = mixdim.SparseAMSGrad(layer.parameters())

    def step(ids: Tensor) -> None:
        layer(ids).backward(upstream)
        optimizer.step()
        optimizer.zero_grad()

    return step, make_ids(CRITEO_KAGGLE_ROWS, 4096)


def one_sample() -> tuple[Step, list[Tensor]]:
    """Fifty lookups of one sample: what Python costs."""
    layer = criteo_layer()

    @torch.no_grad()
    def step(ids: Tensor) -> None:
        for _ in range(50):
            layer(ids)

    return step, make_ids(CRITEO_KAGGLE_ROWS, 1)


def plain_layer() -> tuple[Step, list[Tensor]]:
    """Forward and backward in plain PyTorch."""
    os.environ["MIXDIM_KERNELS"] = "off"
    layer, upstream = criteo_layer(), torch.randn(4096, 26, 32)

    def step(ids: Tensor) -> None:
        layer(ids).backward(upstream)
        layer.zero_grad()

    return step, make_ids(CRITEO_KAGGLE_ROWS, 4096)


def dlrm_step() -> tuple[Step, list[Tensor]]:
    model = DLRM(criteo_layer(), num_dense=13)
    optimizer = mixdim.SparseAMSGrad(model.parameters())
    dense, clicks = torch.randn(4096, 13), (torch.rand(4096) < 0.3).float()

    def step(ids: Tensor) -> None:
        logits = model(SimpleNamespace(ids=ids, dense=dense, bags={}))
        F.binary_cross_entropy_with_logits(logits, clicks).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, make_ids(CRITEO_KAGGLE_ROWS, 4096)


def mf_step() -> tuple[Step, list[Tensor]]:
    counts = {name: (1e6 / np.arange(1, n + 1)).astype(np.int64) for name, n in RATINGS.items()}
    plan = mixdim.plan(RATINGS, counts=counts, bands=8, temperature=0.3, base_dim=64)
    users, items = (mixdim.MixedDimEmbedding(plan[name], sparse=True) for name in plan)
    model = MatrixFactorization(users, items, mean=3.5, biases=True)
    optimizer, ratings = mixdim.SparseAMSGrad(model.parameters()), torch.rand(2**15) * 4 + 1

    def step(ids: Tensor) -> None:
        F.mse_loss(model(SimpleNamespace(ids=ids)), ratings).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, make_ids(RATINGS, 2**15)


STEPS = {
    "layer": layer_step,
    "one-sample": one_sample,
    "plain": plain_layer,
    "dlrm": dlrm_step,
    "mf": mf_step,
}


def work(name: str) -> None:
    """Take a step for each line of standard input, and print its seconds."""
    warnings.simplefilter("ignore")
    step, batches = STEPS[name]()
    for ids in batches[:WARM_UP]:
        step(ids)
    print("ready", flush=True)
    for number, _ in enumerate(sys.stdin):
        start = time.perf_counter()
        step(batches[number % NUM_BATCHES])
        print(time.perf_counter() - start, flush=True)


def ask(worker: subprocess.Popen[str]) -> str:
    ends: tuple[IO[str] | None, IO[str] | None] = (worker.stdin, worker.stdout)
    assert ends[0] is not None
    assert ends[1] is not None
    ends[0].write("go\n")
    ends[0].flush()
    return ends[1].readline()


def compare(name: str, other: Path, rounds: int) -> list[str]:
    """One line: the median of each, and of the ratio of a round, with its quartiles."""
    workers = {}
    for version, root in (("this", Path(__file__).parents[1]), ("other", other)):
        # Idle threads that spin would slow the one whose turn it is.
        environment = {**os.environ, "PYTHONPATH": str(root / "src"), "OMP_WAIT_POLICY": "PASSIVE"}
        workers[version] = subprocess.Popen(
            [sys.executable, __file__, "--work", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
    try:
        for version, worker in workers.items():
            assert worker.stdout is not None
            if worker.stdout.readline() != "ready\n":
                raise SystemExit(f"the process of the {version} version did not start: see above")
        seconds: dict[str, list[float]] = {version: [] for version in workers}
        for number in range(rounds):
            turns = list(workers.items())
            for version, worker in turns if number % 2 else reversed(turns):
                seconds[version].append(float(ask(worker)))
    finally:
        for worker in workers.values():
            worker.kill()
    ratios = [this / other for this, other in zip(seconds["this"], seconds["other"], strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    medians = [f"{1e3 * statistics.median(seconds[version]):.2f}" for version in ("this", "other")]
    return [name, *medians, f"{statistics.median(ratios):.3f}", f"{low:.3f}-{high:.3f}"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--other", type=Path, help="the other checkout")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--steps", default=",".join(STEPS), help="default: all of them")
    parser.add_argument("--work", choices=STEPS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work)
        return
    if options.other is None or not (options.other / "src" / "mixdim").is_dir():
        parser.error("--other must be a checkout of mixdim")
    if options.rounds < 2:
        parser.error(f"--rounds must be at least 2, got {options.rounds}")
    for name in options.steps.split(","):
        if name not in STEPS:
            parser.error(f"--steps must be some of {','.join(STEPS)}, got {name!r}")
    print(" | ".join(["step", "this, ms", "other, ms", "this / other", "quartiles"]))
    for name in options.steps.split(","):
        print(" | ".join(compare(name, options.other, options.rounds)), flush=True)


if __name__ == "__main__":
    main()
