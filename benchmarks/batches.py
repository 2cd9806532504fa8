"""How fast batches stream from a prepared folder: rows of 26 ids and 13 numbers, on a warm cache.

Each step is one pass over all rows: rows per second = rows / time. The rival is DataLoader over
the same arrays in memory, shuffled, with whole batches as indices.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

import mixdim.data
from mixdim.data.folder import FeatureMeta, Meta
from mixdim.data.folder_writer import FolderWriter
from rounds import Contest, Step, arguments, run

FEATURES, DENSE, VALUES = 26, 13, 1000
RIVAL = "DataLoader, shuffled"


def make_folder(rows: int, directory: str) -> Path:
    """Write random rows; once, for all contenders."""
    out = Path(directory) / "rows"
    if out.exists():
        return out
    rng = np.random.default_rng(0)
    with FolderWriter(out) as writer:
        writer.array("ids.npy", (rows, FEATURES), np.int32)[:] = rng.integers(
            VALUES, size=(rows, FEATURES)
        )
        writer.array("dense.npy", (rows, DENSE), np.float32)[:] = rng.random((rows, DENSE))
        writer.array("target.npy", (rows,), np.float32)[:] = 0
        for number in range(FEATURES):
            columns = {"id": np.arange(VALUES, dtype=np.int32), "count": np.zeros(VALUES, np.int64)}
            pl.DataFrame(columns).write_parquet(writer.path / "vocabulary" / f"{number}.parquet")
        features = tuple(FeatureMeta(f"C{n}", VALUES, VALUES - 1, VALUES) for n in range(FEATURES))
        splits = {"train": (0, rows), "validation": (rows, rows), "test": (rows, rows)}
        writer.finish(Meta("binary", features, tuple(f"I{n}" for n in range(DENSE)), splits))
    return out


def mixdim_pass(shuffle: bool, batch_size: int, folder: Path) -> Step:
    dataset = mixdim.data.open(folder)
    return lambda: sum(
        len(b.target) for b in dataset.batches("train", batch_size=batch_size, shuffle=shuffle)
    )


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
    options = parser.parse_args()
    rows = options.rows or (200_000 if options.quick else 2_000_000)
    with tempfile.TemporaryDirectory() as directory:
        contenders = {
            "mixdim, in order": partial(mixdim_pass, False, options.batch_size),
            "mixdim, shuffled": partial(mixdim_pass, True, options.batch_size),
            RIVAL: partial(loader_pass, options.batch_size),
        }
        title = f"a pass over {rows:,} rows, batch {options.batch_size}"
        run([Contest(title, partial(make_folder, rows, directory), contenders, RIVAL)], options)


if __name__ == "__main__":
    main()
