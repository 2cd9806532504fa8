"""Two checkouts, this one and that of the commit before a change, say: the same steps, taking turns.

    git worktree add /tmp/before HEAD~1
    python benchmarks/versions.py --other /tmp/before

Each version has a process of its own; in every round each takes one step, and which is first changes.
The compiled kernels are those that are installed, for both, unless each is given its own build: run
`python hatch_build.py build/own` in both, then pass `--kernels build/own/_mixdim_avx2.so` and
`--other-kernels /tmp/before/build/own/_mixdim_avx2.so`. The ids are synthetic.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import IO, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import mixdim
import mixdim.data
from mixdim.models import DLRM, MatrixFactorization, NeuralCollaborativeFiltering
from mixdim.training import preset

try:
    from mixdim.lab.synthetic.planted import CRITEO_KAGGLE_ROWS
except ModuleNotFoundError:  # the other checkout may be from before lab/
    from mixdim.data.planted import CRITEO_KAGGLE_ROWS  # type: ignore[import-not-found, no-redef]

RATINGS = {"user": 280_000, "item": 58_000}
NUM_BATCHES, WARM_UP = 8, 3
DATA = "MIXDIM_VERSIONS_DATA"  # where the data for "train" is
Step = Callable[[Tensor], object]


def make_ids(rows: dict[str, int], batch_size: int) -> list[Tensor]:
    """Batches of ids whose popularity falls as 1/rank."""
    generator = torch.Generator().manual_seed(0)

    def column(num_rows: int) -> Tensor:
        uniform = torch.rand(batch_size, generator=generator, dtype=torch.float64)
        return (num_rows**uniform - 1).to(torch.int64).clamp(0, num_rows - 1)

    return [torch.stack([column(n) for n in rows.values()], 1) for _ in range(NUM_BATCHES)]


def criteo_layer(base_dim: int = 32, temperature: float = 0.3) -> mixdim.FeatureEmbeddings:
    plan = mixdim.plan(CRITEO_KAGGLE_ROWS, temperature=temperature, base_dim=base_dim)
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


def dlrm_step(base_dim: int, temperature: float) -> tuple[Step, list[Tensor]]:
    model = DLRM(criteo_layer(base_dim, temperature), num_dense=13)
    optimizer = mixdim.SparseAMSGrad(model.parameters())
    dense, clicks = torch.randn(4096, 13), (torch.rand(4096) < 0.3).float()

    def step(ids: Tensor) -> None:
        logits = model(SimpleNamespace(ids=ids, dense=dense, bags={}))
        F.binary_cross_entropy_with_logits(logits, clicks).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, make_ids(CRITEO_KAGGLE_ROWS, 4096)


def train_step() -> tuple[Step, list[Tensor]]:
    """An epoch of `mixdim.fit` of a small DLRM, on data that both checkouts read."""
    dataset = mixdim.data.open(os.environ[DATA])
    options = replace(preset("paper-ctr"), batch_size=2048, evaluations_per_epoch=1)
    plan = mixdim.plan(dataset, temperature=0.3, base_dim=32)

    def step(_: Tensor) -> None:
        layer = mixdim.FeatureEmbeddings(plan, sparse=True)
        mixdim.fit(DLRM(layer, num_dense=13, bottom=(64,), top=(64,)), dataset, options=options)

    return step, [torch.zeros(0)] * NUM_BATCHES


def rating_tables(temperature: float, base_dim: int) -> list[mixdim.MixedDimEmbedding]:
    counts = {name: (1e6 / np.arange(1, n + 1)).astype(np.int64) for name, n in RATINGS.items()}
    plan = mixdim.plan(RATINGS, counts=counts, bands=8, temperature=temperature, base_dim=base_dim)
    return [mixdim.MixedDimEmbedding(plan[name], sparse=True) for name in plan]


def rating_step(model: nn.Module) -> tuple[Step, list[Tensor]]:
    optimizer, ratings = mixdim.SparseAMSGrad(model.parameters()), torch.rand(2**15) * 4 + 1

    def step(ids: Tensor) -> None:
        F.mse_loss(model(SimpleNamespace(ids=ids)), ratings).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, make_ids(RATINGS, 2**15)


def mf_step() -> tuple[Step, list[Tensor]]:
    return rating_step(MatrixFactorization(*rating_tables(0.3, 64), mean=3.5, biases=True))


def ncf_step(base_dim: int) -> tuple[Step, list[Tensor]]:
    return rating_step(NeuralCollaborativeFiltering(*rating_tables(0.4, base_dim), mean=3.5))


def bags_step(base_dim: int) -> tuple[Step, list[Tensor]]:
    """A user and an item as bags of one, and 0 to 9 tags, as a DLRM with bags looks them up."""
    rows, batch_size = {**RATINGS, "tag": 1000}, 8192
    layer = mixdim.FeatureEmbeddings(mixdim.plan(rows, temperature=0.2, base_dim=base_dim), sparse=True)
    optimizer, upstream = mixdim.SparseAMSGrad(layer.parameters()), torch.randn(batch_size, 3, base_dim)
    lengths = torch.ones(3, batch_size, dtype=torch.int64)
    lengths[2] = torch.arange(batch_size) % 10
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.flatten().cumsum(0)])
    tags = make_ids({"tag": rows["tag"]}, int(lengths[2].sum()))
    single = make_ids(RATINGS, batch_size)

    def step(values: Tensor) -> None:
        layer.bags(values, offsets).backward(upstream)
        optimizer.step()
        optimizer.zero_grad()

    both = zip(single, tags, strict=True)
    return step, [torch.cat([ids.t().flatten(), more.flatten()]) for ids, more in both]


STEPS: dict[str, Callable[[], tuple[Step, list[Tensor]]]] = {
    "layer": layer_step,
    "one-sample": one_sample,
    "plain": plain_layer,
    "dlrm": partial(dlrm_step, 32, 0.3),
    "dlrm-128": partial(dlrm_step, 128, 0.3),
    "dlrm-578": partial(dlrm_step, 578, 0.4),
    "train": train_step,
    "mf": mf_step,
    "ncf-64": partial(ncf_step, 64),
    "ncf-256": partial(ncf_step, 256),
    "ncf-512": partial(ncf_step, 512),
    "bags-32": partial(bags_step, 32),
    "bags-256": partial(bags_step, 256),
}


def work(name: str, clock: Callable[[], float]) -> None:
    """Take a step for each line of standard input, and print its seconds."""
    warnings.simplefilter("ignore")
    step, batches = STEPS[name]()
    for ids in batches[:WARM_UP]:
        step(ids)
    print("ready", flush=True)
    for number, _ in enumerate(sys.stdin):
        start = clock()
        step(batches[number % NUM_BATCHES])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(clock() - start, peak, flush=True)


def ask(worker: subprocess.Popen[str]) -> str:
    ends: tuple[IO[str] | None, IO[str] | None] = (worker.stdin, worker.stdout)
    assert ends[0] is not None
    assert ends[1] is not None
    ends[0].write("go\n")
    ends[0].flush()
    return ends[1].readline()


class Version(NamedTuple):
    """A checkout, and its build of the kernels if it is not the installed one."""

    name: str
    root: Path
    kernels: Path | None

    def environment(self) -> dict[str, str]:
        """Of its process."""
        # Idle threads that spin would slow the one whose turn it is.
        mine = {"PYTHONPATH": str(self.root / "src"), "OMP_WAIT_POLICY": "PASSIVE"}
        if self.kernels is not None:
            mine["MIXDIM_KERNELS"] = str(self.kernels.resolve())
        return {**os.environ, **mine}


def compare(name: str, versions: Sequence[Version], rounds: int, *, cpu: bool) -> list[str]:
    """One line: the median of each, and of the ratio of a round, with its quartiles."""
    workers = {}
    for version in versions:
        workers[version.name] = subprocess.Popen(
            [sys.executable, __file__, "--work", name, *(["--cpu"] if cpu else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=version.environment(),
        )
    try:
        for version, worker in zip(versions, workers.values(), strict=True):
            assert worker.stdout is not None
            if worker.stdout.readline() != "ready\n":
                raise SystemExit(f"the process of the {version.name} version did not start: see above")
        seconds: dict[str, list[float]] = {version.name: [] for version in versions}
        peaks: dict[str, str] = {}
        for number in range(rounds):
            turns = list(workers.items())
            for turn, worker in turns if number % 2 else reversed(turns):
                taken, peak = ask(worker).split()
                seconds[turn].append(float(taken))
                peaks[turn] = f"{float(peak):.0f}"
    finally:
        for worker in workers.values():
            worker.kill()
    ratios = [this / other for this, other in zip(seconds["this"], seconds["other"], strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    medians = [f"{1e3 * statistics.median(times):.2f}" for times in seconds.values()]
    ratio = f"{statistics.median(ratios):.3f}"
    return [name, *medians, ratio, f"{low:.3f}-{high:.3f}", peaks["this"], peaks["other"]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--other", type=Path, help="the other checkout")
    parser.add_argument("--kernels", type=Path, help="a build of this one, in place of the installed")
    parser.add_argument("--other-kernels", type=Path, help="a build of the other one")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--steps", default=",".join(STEPS), help="default: all of them")
    parser.add_argument("--cpu", action="store_true", help="CPU time, where others use the machine too")
    parser.add_argument("--work", choices=STEPS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, time.process_time if options.cpu else time.perf_counter)
        return
    if options.other is None or not (options.other / "src" / "mixdim").is_dir():
        parser.error("--other must be a checkout of mixdim")
    for path in (options.kernels, options.other_kernels):
        if path is not None and not path.is_file():
            parser.error(f"there are no kernels at {path}")
    if options.rounds < 2:
        parser.error(f"--rounds must be at least 2, got {options.rounds}")
    for name in options.steps.split(","):
        if name not in STEPS:
            parser.error(f"--steps must be some of {','.join(STEPS)}, got {name!r}")
    versions = [
        Version("this", Path(__file__).parents[1], options.kernels),
        Version("other", options.other, options.other_kernels),
    ]
    heads = [
        "step",
        "this, ms",
        "other, ms",
        "this / other",
        "quartiles",
        "this, peak MB",
        "other, peak MB",
    ]
    print(" | ".join(heads))
    with TemporaryDirectory() as folder:
        os.environ[DATA] = f"{folder}/clicks"
        if "train" in options.steps.split(","):
            command = [
                "generate",
                "criteo-like",
                "--rows",
                "60000",
                "--scale",
                "0.05",
                "--out",
                os.environ[DATA],
            ]
            subprocess.run([sys.executable, "-m", "mixdim", *command], check=True, capture_output=True)
        for name in options.steps.split(","):
            print(" | ".join(compare(name, versions, options.rounds, cpu=options.cpu)), flush=True)


if __name__ == "__main__":
    main()
