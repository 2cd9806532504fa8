"""What compressing trained tables loses, and how long it takes.

`python benchmarks/compress.py DATA ...`: of each prepared folder of clicks a DLRM of uniform width 16 is
trained for each seed, its tables are compressed by 4x to 128x in eight ways, and the log loss of the
test split is printed, right after compression. Ids are shuffled before, as somebody's own would be, so
ranks of ids are counted.

`python benchmarks/compress.py --rows 10000000 --width 64`: the seconds and the peak of memory of one
large table at 8x.

`python benchmarks/compress.py --criteo`: the seconds of the choice for 26 tables of width 16 with as
many rows as the features of Criteo Kaggle have values.
"""

from __future__ import annotations

import argparse
import copy
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F

import mixdim.data
from mixdim._util.text import align
from mixdim.compression.compress import small_table
from mixdim.lab.synthetic.planted import CRITEO_KAGGLE_ROWS
from mixdim.layer.interaction import dot_interaction
from mixdim.layer.rank_code import rank_code_nbytes
from mixdim.models import DLRM
from mixdim.models.samples import join_bags
from mixdim.planning.budget import BudgetTooSmallError
from mixdim.planning.from_tables import choose
from mixdim.planning.trained_table import TrainedTable
from mixdim.runs.config import RunConfig
from mixdim.runs.run import Run
from mixdim.training import evaluate

FACTORS = (4, 8, 16, 32, 64, 128)
WIDTH, BATCH, METRIC_BATCHES = 16, 1024, 50
STATUS = Path("/proc/self/status")
chosen_for = partial(choose, id_map_bytes=rank_code_nbytes)
Tables = dict[str, torch.Tensor]


def trained(data: str, seed: int, epochs: int) -> DLRM:
    """A DLRM of uniform width with small MLPs, by the paper's preset; the best weights in validation."""
    known: dict[str, Any] = {mixdim.data.open(data).fingerprint: {}}  # no baselines are wanted
    config = RunConfig.of(
        data=data,
        temperature=0.0,
        base_dim=WIDTH,
        preset="paper-ctr",
        batch_size=BATCH,
        epochs=epochs,
        evaluations_per_epoch=2,
        bottom=(64,),
        top=(64,),
        seed=seed,
    )
    with TemporaryDirectory() as folder:
        run = Run.create(Path(folder) / "run", config)
        run.train(known_baselines=known)
        model = run.model()
    assert isinstance(model, DLRM)
    return model


def metrics(model: DLRM, layer: mixdim.FeatureEmbeddings, dataset: mixdim.data.Dataset) -> Tables:
    """By feature, the mean of g g^T over gradients g of the loss at its vectors, in training samples."""
    totals = torch.zeros(layer.num_features, WIDTH, WIDTH, dtype=torch.float64)
    for batch in islice(dataset.batches("train", batch_size=BATCH, shuffle=True), METRIC_BATCHES):
        with torch.no_grad():
            found = layer.bags(*join_bags(batch.ids, batch.bags, layer.feature_names))
        vectors = found.detach().requires_grad_()
        logits = model.top(dot_interaction(model.bottom(batch.dense), vectors)).squeeze(1)
        whole = F.binary_cross_entropy_with_logits(logits, batch.target, reduction="sum")
        (slopes,) = torch.autograd.grad(whole, vectors)  # (batch, feature, width)
        totals += torch.einsum("bfd,bfe->fde", slopes, slopes)
    return dict(zip(layer.feature_names, totals / (METRIC_BATCHES * BATCH), strict=True))


def plain_svd(tables: list[TrainedTable], budget: int) -> Tables | None:
    """The nearest tables of one rank for all, rows alike; a table stays as it is where that is less."""
    for rank in range(WIDTH, 0, -1):
        sizes = [4 * min(s.rows * rank + rank * WIDTH, s.rows * WIDTH) for s in tables]
        if sum(sizes) <= budget:
            return {s.name: _of_rank(s.weight, rank) for s in tables}
    return None


def _of_rank(weight: torch.Tensor, rank: int) -> torch.Tensor:
    if len(weight) * WIDTH <= len(weight) * rank + rank * WIDTH:
        return weight
    u, s, v = torch.linalg.svd(weight.double(), full_matrices=False)
    return ((u[:, :rank] * s[:rank]) @ v[:rank]).float()


def mixed(
    tables: list[TrainedTable], budget: int, *, min_dim: int = 0, bits: int | Literal["auto"] = 32
) -> Tables | None:
    """Tables of mixed dimensions, by popularity; None if the budget is too small."""
    offered: Any = bits if bits == "auto" else [bits]
    try:
        chosen = chosen_for(tables, budget, dims=range(min_dim, WIDTH + 1), bits=offered)
    except BudgetTooSmallError:
        return None
    small = [small_table(*pair) for pair in zip(tables, chosen, strict=True)]
    assert sum(table.nbytes for table in small) <= budget
    return {t.name: own.dense_weight().detach() for t, own in zip(tables, small, strict=True)}


WAYS: dict[str, Callable[[list[TrainedTable], int], Tables | None]] = {
    "plain SVD": plain_svd,
    "mixed, width 1 and more": partial(mixed, min_dim=1),
    "mixed with width 0": mixed,
    "mixed with width 0, 8 bits": partial(mixed, bits=8),
    "bits by direction": partial(mixed, bits="auto"),
    "by the loss's metric": mixed,
    "by the loss's metric, 8 bits": partial(mixed, bits=8),
    "by the loss's metric, bits by direction": partial(mixed, bits="auto"),
}


def losses(data: str, seed: int, epochs: int) -> dict[tuple[str, int], float | None]:
    """Log losses on the test split: of each way and factor, as trained, and in 8 bits alone."""
    dataset = mixdim.data.open(data)
    model = trained(data, seed, epochs)
    layer = model.get_submodule("embeddings")
    assert isinstance(layer, mixdim.FeatureEmbeddings)
    seen = metrics(model, layer, dataset)
    rng = np.random.default_rng(seed)
    orders = {name: rng.permutation(rows) for name, rows in dataset.cardinalities.items()}
    trained_tables = [
        TrainedTable(name, layer.dense_weight(name).detach()[order], dataset.counts[name][order])
        for name, order in orders.items()
    ]
    by_gradient = [replace(table, metric=seen[table.name]) for table in trained_tables]
    whole = sum(table.nbytes for table in trained_tables)

    def loss(tables: Mapping[str, torch.Tensor] | None) -> float | None:
        if tables is None:
            return None
        other = copy.deepcopy(model)
        for name, table in tables.items():
            back = torch.from_numpy(np.argsort(orders[name]))
            own = other.get_submodule("embeddings")
            assert isinstance(own, mixdim.FeatureEmbeddings)
            own.load_blocks(name, [table[back]], [None])
        return float(evaluate(other, dataset, "test", batch_size=8192)["log_loss"])

    found = {("as trained", 1): loss({s.name: s.weight for s in trained_tables})}
    in_8_bits = chosen_for(trained_tables, whole, bands=1, dims=[WIDTH], bits=[8])
    tables = [small_table(*pair) for pair in zip(trained_tables, in_8_bits, strict=True)]
    found["8 bits alone", round(10 * whole / sum(table.nbytes for table in tables))] = loss(
        {s.name: table.dense_weight().detach() for s, table in zip(trained_tables, tables, strict=True)}
    )
    for name, way in WAYS.items():
        for factor in FACTORS:
            known = by_gradient if "metric" in name else trained_tables
            found[name, factor] = loss(way(known, whole // factor))
    return found


def compare(data: str, seeds: int, epochs: int) -> None:
    """Train and compress for each seed, and print what was found."""
    dataset = mixdim.data.open(data)
    rows = sum(dataset.cardinalities.values())
    print(f"{dataset}: {rows:,} rows of width {WIDTH}, {4 * rows * WIDTH:,} bytes")
    runs = []
    for seed in range(seeds):
        runs.append(losses(data, seed, epochs))
        print(f"  seed {seed}: {runs[-1]}", flush=True)
    print("\n".join(f"  {line}" for line in summary(runs)), flush=True)


def summary(runs: list[dict[tuple[str, int], float | None]]) -> list[str]:
    """What each way adds to the log loss of its own model: mean and standard deviation over seeds."""

    def cell(name: str, factor: int) -> str:
        every = [run[name, factor] for run in runs]
        if any(loss is None for loss in every):
            return "infeasible"
        added = np.array(every, dtype=np.float64) - np.array(trained, dtype=np.float64)
        return f"{added.mean():+.4f} ± {added.std(ddof=1) if len(runs) > 1 else 0:.4f}"

    trained = [run["as trained", 1] for run in runs]
    (in_8_bits,) = {key for key in runs[0] if key[0] == "8 bits alone"}
    lines = [["", *(f"{factor}x" for factor in FACTORS)]]
    lines += [[name, *(cell(name, factor) for factor in FACTORS)] for name in WAYS]
    return [
        f"as trained: {', '.join(f'{loss:.4f}' for loss in trained)}; "
        f"8 bits alone, {in_8_bits[1] / 10}x: {cell(*in_8_bits)}",
        *align(lines),
    ]


def peak() -> int:
    """The most memory that the process has had, in bytes."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def large(rows: int, width: int) -> None:
    """Print the seconds and the memory of one large table at 8x."""
    weight = torch.randn(rows, width, generator=torch.Generator().manual_seed(0))
    weight *= 0.95 ** torch.arange(width)
    counts = np.random.default_rng(0).zipf(1.6, rows).clip(max=10**6)
    before, start, cpu = peak(), time.perf_counter(), time.process_time()
    table = TrainedTable("table", weight, counts)
    chosen = chosen_for([table], table.nbytes // 8, bits="auto")[0]
    chose = time.perf_counter() - start
    small = small_table(table, chosen)
    seconds, cpu, above = time.perf_counter() - start, time.process_time() - cpu, peak() - before
    print(
        f"{rows:,} rows x {width}: {table.nbytes / small.nbytes:.1f}x in {seconds:.1f} s "
        f"({chose:.1f} s to choose; {cpu:.1f} s of CPU, load {os.getloadavg()[0]:.1f}), "
        f"{above / 1e9:.2f} GB above the model: {above / table.nbytes:.2f}x the table\n{chosen.plan}"
    )


def criteo() -> None:
    """Print the seconds of the choice for tables as large as Criteo Kaggle's, with ids in no order."""
    rng, tables = np.random.default_rng(0), []
    for number, rows in enumerate(CRITEO_KAGGLE_ROWS.values()):
        counts = rng.zipf(1.5, rows).clip(max=10**7)
        weight = torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(number))
        weight *= torch.from_numpy(0.8 ** np.arange(WIDTH) * np.sqrt(counts.clip(max=100))[:, None])
        tables.append(TrainedTable(str(number), weight, counts))
    whole = sum(table.nbytes for table in tables)
    print(f"26 tables, {sum(CRITEO_KAGGLE_ROWS.values()):,} rows x {WIDTH}, {whole / 1e9:.1f} GB")
    for factor in FACTORS[1:]:
        start, cpu = time.perf_counter(), time.process_time()
        chosen = chosen_for(tables, whole // factor, bits="auto")
        spent = sum(choice.nbytes for choice in chosen) / (whole // factor)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        print(
            f"{factor}x: {seconds:.1f} s ({cpu:.1f} s of CPU), {spent:.2%} of the budget, "
            f"{sum(len(choice.plan.blocks) for choice in chosen)} bands",
            flush=True,
        )


def main() -> None:
    """Read the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", help="prepared folders of clicks")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--threads", type=int, help="of PyTorch")
    parser.add_argument("--rows", type=int, help="of one large table")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--criteo", action="store_true", help="only the choice, for large tables")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.criteo:
        criteo()
    if options.rows:
        large(options.rows, options.width)
    for data in options.data:
        compare(data, options.seeds, options.epochs)


if __name__ == "__main__":
    main()
