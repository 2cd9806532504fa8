"""The arrays of a prepared folder, mapped from disk and checked against its page.

Knows nothing about batches or what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from mixdim.data.folder import Meta, bag_file, vocabulary_file

CHUNK = 1 << 22  # numbers of an array that are looked at together


@dataclass(frozen=True, eq=False)
class Arrays:
    """What a folder holds beside its vocabularies; nothing of it is read before it is asked for."""

    ids: np.ndarray  # int32 (rows, single-valued features)
    target: np.ndarray  # float32 (rows,)
    dense: np.ndarray | None  # float32 (rows, dense columns)
    bags: dict[str, tuple[np.ndarray, np.ndarray]]  # int32 (values,) and int64 (rows + 1,), by feature


def map_arrays(folder: Path, meta: Meta) -> Arrays:
    """Map the arrays, or say which of them is not what the page speaks of.

    Only shapes, types and the ends of bags are looked at: a wrong id is refused by the layer that is
    asked for it.
    """
    rows, num_dense = meta.num_rows, len(meta.dense)
    single_valued = sum(not feature.bag for feature in meta.features)
    return Arrays(
        ids=_mapped(folder / "ids.npy", np.int32, (rows, single_valued)),
        target=_mapped(folder / "target.npy", np.float32, (rows,)),
        dense=_mapped(folder / "dense.npy", np.float32, (rows, num_dense)) if num_dense else None,
        bags={f.name: _mapped_bags(folder, f.name, rows) for f in meta.features if f.bag},
    )


def read_counts(folder: Path, meta: Meta, number: int) -> np.ndarray:
    """How often each id of a feature, given by its place, occurs in the training split: int64."""
    path, feature = folder / vocabulary_file(number), meta.features[number]
    try:
        counts = pl.read_parquet(path, columns=["count"], glob=False).to_series().to_numpy()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise ValueError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None
    if len(counts) != feature.rows:
        raise ValueError(
            f"{path} has {len(counts):,} values, and feature {feature.name!r} has {feature.rows:,} rows"
        )
    return counts


def chunks_of(path: Path, start: int, stop: int) -> Iterator[np.ndarray]:
    """Views of the rows of an array from `start` to `stop`, one after the other.

    Each is mapped anew, so that the pages of the ones before do not add up.
    """
    shape = np.load(path, mmap_mode="r", allow_pickle=False).shape
    rows = max(1, CHUNK // max(1, int(np.prod(shape[1:]))))
    for first in range(start, stop, rows):
        yield np.load(path, mmap_mode="r", allow_pickle=False)[first : min(first + rows, stop)]


def _mapped_bags(folder: Path, name: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
    offsets = _mapped(folder / bag_file(name, "offsets"), np.int64, (rows + 1,))
    values = _mapped(folder / bag_file(name, "values"), np.int32)
    if (int(offsets[0]), int(offsets[-1])) != (0, len(values)):
        raise ValueError(
            f"{folder / bag_file(name, 'offsets')} must rise from 0 to the {len(values):,} values there "
            f"are, got {offsets[0]:,} to {offsets[-1]:,}"
        )
    return values, offsets


def _mapped(path: Path, dtype: Any, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """An array of this type and shape; if that is not known, a vector."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    shape = (array.size,) if shape is None else shape
    if array.shape != shape:
        raise ValueError(f"{path} has shape {array.shape} instead of {shape}")
    if array.dtype != dtype:
        raise ValueError(f"{path} holds {array.dtype} instead of {np.dtype(dtype)}")
    # A plain view of the mapped memory: indexing a memmap costs a wrapper each time.
    return array.view(np.ndarray)
