"""How fast batches stream from a prepared folder: rows of 26 ids and 13 numbers, on a warm cache.

Each step is one pass over all rows: rows per second = rows / time. The rival is DataLoader over
the same arrays in memory, shuffled, with whole batches as indices. With --dropout, what unknown dropout
adds to a shuffled pass, and to an epoch of DLRM over a tenth of the rows: the rival is without it.
"""

from __future__ import annotations

import tempfile
from argparse import Namespace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import torch
import torch.nn.functional as F
from torch.autograd import backward
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

import mixdim
import mixdim.data
from interleaved import Contest, Step, arguments, run
from mixdim.data.folder import FeatureMeta, Meta
from mixdim.data.folder_writer import FolderWriter
from mixdim.models import DLRM

FEATURES, DENSE = 26, 13
MLPS = {"small": ((64, 32), (64, 32)), "paper": ((512, 256, 64), (512, 256))}  # bottom and top
RIVAL, WITHOUT = "DataLoader, shuffled", "without"


def make_folder(rows: int, values: int, directory: str) -> Path:
    """Write random rows; once, for all contenders."""
    out = Path(directory) / f"{rows}-rows"
    if out.exists():
        return out
    rng = np.random.default_rng(0)
    with FolderWriter(out) as writer:
        writer.array("ids.npy", (rows, FEATURES), np.int32)[:] = rng.integers(
            values, size=(rows, FEATURES)
        )
        writer.array("dense.npy", (rows, DENSE), np.float32)[:] = rng.random((rows, DENSE))
        writer.array("target.npy", (rows,), np.float32)[:] = 0
        for number in range(FEATURES):
            count = np.full(values, -(-rows // values))
            columns = {"id": np.arange(values, dtype=np.int32), "count": count}
            pl.DataFrame(columns).write_parquet(writer.path / "vocabulary" / f"{number}.parquet")
        features = tuple(FeatureMeta(f"C{n}", values, values - 1, values) for n in range(FEATURES))
        splits = {"train": (0, rows), "validation": (rows, rows), "test": (rows, rows)}
        writer.finish(Meta("binary", features, tuple(f"I{n}" for n in range(DENSE)), splits))
    return out


def mixdim_pass(shuffle: bool, dropout: bool, batch_size: int, folder: Path) -> Step:
    dataset = mixdim.data.open(folder)

    def everything() -> int:
        stream = dataset.batches(
            "train", batch_size=batch_size, shuffle=shuffle, unknown_dropout=dropout
        )
        return sum(len(batch.target) for batch in stream)

    return everything


def dlrm_epoch(dropout: bool, batch_size: int, mlps: str, folder: Path) -> Step:
    dataset = mixdim.data.open(folder)
    plan = mixdim.plan(dataset, temperature=0, base_dim=16)
    layer = mixdim.FeatureEmbeddings(plan, sparse=True)
    bottom, top = MLPS[mlps]
    model = DLRM(layer, num_dense=DENSE, bottom=bottom, top=top)
    optimizer = mixdim.SparseAMSGrad(model.parameters(), lr=1e-3)

    def epoch() -> None:
        stream = dataset.batches("train", batch_size=batch_size, shuffle=True, unknown_dropout=dropout)
        for batch in stream:
            backward([F.binary_cross_entropy_with_logits(model(batch), batch.target)])
            optimizer.step()
            optimizer.zero_grad()

    return epoch


def loader_pass(batch_size: int, folder: Path) -> Step:
    arrays = [torch.from_numpy(np.load(folder / f"{name}.npy")) for name in ("ids", "dense", "target")]
    table = TensorDataset(*arrays)
    sampler = BatchSampler(RandomSampler(table), batch_size, drop_last=False)
    loader = DataLoader(table, sampler=sampler, batch_size=None)
    return lambda: sum(len(target) for _, _, target in loader)


def main() -> None:
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--rows", type=int, help="default 2 million, or 200,000 with --quick")
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--values", type=int, default=1000, help="ids of each feature")
    parser.add_argument("--dropout", action="store_true", help="compare with unknown dropout instead")
    parser.add_argument("--mlps", choices=MLPS, default="paper", help="of DLRM's epoch")
    options = parser.parse_args()
    rows = options.rows or (200_000 if options.quick else 2_000_000)
    with tempfile.TemporaryDirectory() as directory:
        contests = with_dropout if options.dropout else against_loader
        run(contests(rows, directory, options), options)


def against_loader(rows: int, directory: str, options: Namespace) -> list[Contest[Path]]:
    title = f"a pass over {rows:,} rows, batch {options.batch_size}"
    contenders = {
        "mixdim, in order": partial(mixdim_pass, False, False, options.batch_size),
        "mixdim, shuffled": partial(mixdim_pass, True, False, options.batch_size),
        RIVAL: partial(loader_pass, options.batch_size),
    }
    return [Contest(title, partial(make_folder, rows, options.values, directory), contenders, RIVAL)]


def with_dropout(rows: int, directory: str, options: Namespace) -> list[Contest[Path]]:
    batch_size, mlps, few = options.batch_size, options.mlps, rows // 10
    passes = {
        name: partial(mixdim_pass, True, dropout, batch_size)
        for name, dropout in ((WITHOUT, False), ("unknown dropout", True))
    }
    epochs = {
        name: partial(dlrm_epoch, dropout, batch_size, mlps)
        for name, dropout in ((WITHOUT, False), ("unknown dropout", True))
    }
    title = f"batch {batch_size}, {options.values:,} ids a feature"
    return [
        Contest(
            f"a shuffled pass over {rows:,} rows, {title}",
            partial(make_folder, rows, options.values, directory),
            passes,
            WITHOUT,
        ),
        Contest(
            f"an epoch of DLRM with the {mlps} MLPs over {few:,} rows, {title}",
            partial(make_folder, few, options.values, directory),
            epochs,
            WITHOUT,
        ),
    ]


if __name__ == "__main__":
    main()
