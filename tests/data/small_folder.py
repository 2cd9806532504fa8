"""A small prepared folder, made by hand, whose content is known."""

import json

import numpy as np
import polars as pl

from mixdim.data.folder import FeatureMeta, Meta, fingerprint
from mixdim.data.folder_writer import FolderWriter

SPLITS = {"train": (0, 70), "validation": (70, 85), "test": (85, 100)}


def write_small_folder(out, *, bags=False, overwrite=False, seed=0):
    """100 rows, features "user" (9 rows) and "item" (5 rows), two dense columns, perhaps bags "tags"."""
    rng = np.random.default_rng(seed)
    ids = np.stack([np.minimum(rng.geometric(0.4, 100) - 1, n - 1) for n in (9, 5)], axis=1)
    features = [FeatureMeta("user", 9, 8, 8), FeatureMeta("item", 5, 4, 4)]
    counts = [np.bincount(column[:70], minlength=n) for column, n in zip(ids.T, (9, 5), strict=True)]
    with FolderWriter(out, overwrite=overwrite) as writer:
        writer.array("ids.npy", (100, 2), np.int32)[:] = ids
        writer.array("dense.npy", (100, 2), np.float32)[:] = rng.random((100, 2))
        writer.array("target.npy", (100,), np.float32)[:] = np.arange(100) % 2
        if bags:
            lengths = rng.integers(0, 4, 100)
            offsets = np.concatenate([[0], np.cumsum(lengths)])
            values = rng.integers(0, 6, offsets[-1])
            writer.array("bags/tags.values.npy", values.shape, np.int32)[:] = values
            writer.array("bags/tags.offsets.npy", offsets.shape, np.int64)[:] = offsets
            features.append(FeatureMeta("tags", 6, 5, 5, bag=True))
            counts.append(np.bincount(values[: offsets[70]], minlength=6))
        for n, count in enumerate(counts):
            vocabulary = {
                "id": np.arange(len(count), dtype=np.int32),
                "value": np.arange(len(count)),
                "kind": ["value"] * (len(count) - 1) + ["out_of_vocabulary"],
                "count": count.astype(np.int64),
            }
            pl.DataFrame(vocabulary).write_parquet(writer.path / "vocabulary" / f"{n}.parquet")
        writer.finish(
            Meta("binary", tuple(features), ("x", "y"), SPLITS, rows={"read": 100, "kept": 100})
        )
    return out


def change_page(folder, change):
    """Change what the folder says of itself."""
    document = json.loads((folder / "meta.json").read_text())
    change(document)
    (folder / "meta.json").write_text(json.dumps(document))


def sign_again(folder, name):
    """Make a changed file the one that the page speaks of."""
    path = folder / name
    entry = {"bytes": path.stat().st_size, "fingerprint": fingerprint(path)}
    change_page(folder, lambda document: document["files"].update({name: entry}))
