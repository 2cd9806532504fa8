"""What baselines cost beside the run they are compared with: `python benchmarks/baselines.py DATA ...`.

Of each prepared folder: a run with the preset `paper-cf` or `clicks` at base_dim 16, its seconds,
and the seconds of the baselines of the same data, both of this process's CPU time as well. Then, of
clicks without bags, what logistic regression with an L2 penalty reaches, by L-BFGS to the end and with
the best of three penalties in validation: how much the few epochs of the baseline leave.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import backward

import mixdim.data
from mixdim.data import Batch
from mixdim.runs.baseline_report import baselines_line
from mixdim.runs.config import RunConfig
from mixdim.runs.run import Run
from mixdim.training.baselines import baselines_of
from mixdim.training.first_order import moments

PENALTIES = (1.0, 3.0, 10.0)
T = TypeVar("T")


def timed(work: Callable[[], T]) -> tuple[T, float, float]:
    start, cpu = time.perf_counter(), time.process_time()
    return work(), time.perf_counter() - start, time.process_time() - cpu


def converged_losses(dataset: mixdim.data.Dataset) -> tuple[float, float]:
    """Log losses in validation and test of the best penalty in validation."""
    rows = {split: dataset.rows(slice(*ends)) for split, ends in dataset.splits.items()}
    means, deviations = moments(dataset)
    sizes = torch.tensor(list(dataset.cardinalities.values()))
    starts = sizes.cumsum(0) - sizes
    return min(_losses(rows, starts, int(sizes.sum()), means, deviations, p) for p in PENALTIES)


def _losses(
    rows: dict[str, Batch], starts: Tensor, size: int, means: Tensor, deviations: Tensor, penalty: float
) -> tuple[float, float]:
    weights = [torch.zeros(n, requires_grad=True) for n in ((size, 1), (len(means),), ())]
    of_ids, of_dense, shift = weights

    def loss(split: str) -> Tensor:
        batch = rows[split]
        logits = F.embedding(batch.ids + starts, of_ids).sum((1, 2)) + shift
        logits = logits + ((batch.dense - means) / deviations) @ of_dense
        return F.binary_cross_entropy_with_logits(logits, batch.target)

    def step() -> float:
        optimizer.zero_grad()
        squares = of_ids.square().sum() + of_dense.square().sum()
        whole = len(rows["train"].target) * loss("train") + penalty / 2 * squares
        backward([whole])
        return whole.item()

    optimizer = torch.optim.LBFGS(weights, max_iter=60, line_search_fn="strong_wolfe")
    optimizer.step(step)
    return loss("validation").item(), loss("test").item()


def main() -> None:
    """Print a few lines a folder."""
    for path in sys.argv[1:]:
        dataset = mixdim.data.open(path)
        preset = "clicks" if dataset.task == "binary" else "paper-cf"
        config = RunConfig(data=path, preset=preset, temperature=0.3, base_dim=16)
        with TemporaryDirectory() as folder:
            out, known = Path(folder) / "run", {dataset.fingerprint: dict[str, Any]()}
            run = Run.create(out, config)
            summary, seconds, cpu = timed(partial(run.train, known_baselines=known))
        found, own_seconds, own_cpu = timed(partial(baselines_of, dataset))
        print(f"{path}: {dataset}")
        print(f"  run {seconds:.1f} s ({cpu:.1f} s of CPU), {summary['epochs_run']} epochs")
        print(
            f"  baselines {own_seconds:.1f} s ({own_cpu:.1f} s of CPU), {own_cpu / cpu:.1%} of the run"
        )
        print(f"  {baselines_line([{**summary, 'baselines': found}])}")
        if dataset.task == "binary" and len(dataset.single_valued) == len(dataset.feature_names):
            print(f"  logistic regression to the end: {converged_losses(dataset)[1]:.4f}", flush=True)


if __name__ == "__main__":
    main()
