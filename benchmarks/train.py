"""What `mixdim train` adds to the bare training step: data, progress bar, journal, checks, checkpoints.

DLRM at the cardinalities of Criteo Kaggle times 0.1, batch 4096, synthetic data. In each round an epoch
of bare steps (model, loss, optimizer; batches already in memory) and an epoch of `mixdim.fit` on the
prepared folder, with everything that the command has. Samples per second of training; of `fit` also with
evaluations and checkpoints counted.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import redirect_stderr
from io import StringIO
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.nn.functional as F
from torch.autograd import backward

import mixdim
import mixdim.data
from interleaved import MOST_OTHERS, arguments, cpu_seconds_of_others, machine_facts
from mixdim._util.text import align
from mixdim.lab.synthetic.generate import generate_criteo_like
from mixdim.lab.synthetic.planted import CRITEO_KAGGLE_ROWS, scaled_cardinalities
from mixdim.models import DLRM
from mixdim.runs.progress import progress_bars
from mixdim.training import preset

SCALE, BATCH_SIZE, BATCHES_IN_MEMORY = 0.1, 4096, 8


def new_model(plan: mixdim.Plan) -> DLRM:
    generator = torch.Generator().manual_seed(0)
    layer = mixdim.FeatureEmbeddings(plan, sparse=True, generator=generator)
    return DLRM(layer, num_dense=13, generator=generator)


def bare(plan: mixdim.Plan, dataset: mixdim.data.Dataset, steps: int) -> float:
    """Samples per second of nothing but the steps."""
    model = new_model(plan)
    optimizer = mixdim.SparseAMSGrad(model.parameters(), lr=1e-3)
    batches = list(islice(dataset.batches("train", batch_size=BATCH_SIZE), BATCHES_IN_MEMORY))
    start = time.perf_counter()
    for batch in islice(cycle(batches), steps):
        backward([F.binary_cross_entropy_with_logits(model(batch), batch.target)])
        optimizer.step()
        optimizer.zero_grad()
    return steps * BATCH_SIZE / (time.perf_counter() - start)


def whole(plan: mixdim.Plan, dataset: mixdim.data.Dataset, out: Path) -> tuple[float, float]:
    """Samples per second of `fit`: in training, and with all else."""
    with redirect_stderr(StringIO()), progress_bars(unit="samples") as progress:
        fitted = mixdim.fit(
            new_model(plan), dataset, options=preset("paper-ctr"), out=out, progress=progress
        )
    start, stop = dataset.splits["train"]
    return fitted.samples_per_second, (stop - start) / fitted.seconds


def quartiles(numbers: Sequence[float], form: str) -> str:
    low, median, high = statistics.quantiles(numbers, n=4, method="inclusive")
    return f"{median:{form}} ({low:{form}}-{high:{form}})"


def main() -> None:
    parser = arguments(__doc__, rounds=7)
    parser.add_argument("--temperature", type=float, default=0.3)
    parser.add_argument("--base-dim", type=int, default=64)
    options = parser.parse_args()
    rounds, rows = (3, 200_000) if options.quick else (options.rounds or 7, 600_000)
    print(", ".join(f"{name} {fact}" for name, fact in machine_facts().items()) + "\n")
    cardinalities = scaled_cardinalities(CRITEO_KAGGLE_ROWS, SCALE)
    # Not of the data's vocabulary: that has only the values which so few rows happened to draw.
    rows_of = {name: rows_ + 1 for name, rows_ in cardinalities.items()}
    plan = mixdim.plan(rows_of, temperature=options.temperature, base_dim=options.base_dim)
    with TemporaryDirectory() as folder:
        generate_criteo_like(f"{folder}/data", rows=rows, scale=SCALE)
        dataset = mixdim.data.open(f"{folder}/data")
        start, stop = dataset.splits["train"]
        steps = (stop - start) // BATCH_SIZE
        speeds: dict[str, list[float]] = {"bare steps": [], "mixdim.fit, training": []}
        speeds["mixdim.fit, everything"] = []
        begun, others = time.perf_counter(), cpu_seconds_of_others()
        for number in range(rounds):
            speeds["bare steps"].append(bare(plan, dataset, steps))
            training, everything = whole(plan, dataset, Path(folder) / f"run-{number}")
            speeds["mixdim.fit, training"].append(training)
            speeds["mixdim.fit, everything"].append(everything)
        others = (cpu_seconds_of_others() - others) / (time.perf_counter() - begun)
    print(
        f"{plan.num_rows:,} rows, {plan.num_parameters:,} parameters; {rounds} rounds of {steps} steps"
    )
    lines = [["", "samples/s (quartiles)", "of the bare step"]]
    for name, values in speeds.items():
        ratios = [mine / theirs for mine, theirs in zip(values, speeds["bare steps"], strict=True)]
        lines.append([name, quartiles(values, ",.0f"), quartiles(ratios, ".2f")])
    print("\n".join(align(lines)))
    if others > MOST_OTHERS:
        print(f"DO NOT USE: other processes took {others:.1f} cores")


if __name__ == "__main__":
    main()
