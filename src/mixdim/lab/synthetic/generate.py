"""Synthetic data with a planted truth, written as a prepared folder. Knows nothing about raw files.

Everything is drawn twice, chunk by chunk: once to count the training split, which gives the ids, and
once to write. So memory depends on the cardinalities and not on the number of rows.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import polars as pl

from mixdim._util.arguments import whole_number
from mixdim.data.folder import FeatureMeta, Meta
from mixdim.data.folder_writer import FolderWriter
from mixdim.lab.synthetic import planted, realistic, realistic_values
from mixdim.lab.synthetic.realistic_values import Features, checked_unseen
from mixdim.lab.synthetic.sampling import Drawing

CHUNK = 1 << 14  # rows drawn at a time; another number would be another data set

Progress = Callable[[str, int, int], None]


class Truth(Protocol):
    """What decides the target."""

    def draw(
        self, rng: np.random.Generator, values: Sequence[np.ndarray], dense: np.ndarray
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Targets of some rows, and per row what is averaged over each split for `meta.truth`."""

    def describe(self) -> dict[str, Any]:
        """The truth in words and numbers."""


def generate_criteo_like(
    out: str | Path,
    *,
    rows: int,
    seed: int = 0,
    scale: float = 0.01,
    skew: float = planted.CRITEO_SKEW,
    decay: float = planted.DECAY,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Meta:
    """Write clicks on 26 categorical and 13 dense features to the folder `out`; see docs/synthetic.md.

    The cardinalities are those of Criteo Kaggle times `scale`; inside a feature, popularity falls as
    (rank + 1)^-skew; the spectrum of the planted interactions falls as k^-decay. The first 6/7 of the
    rows are for training, half of the rest for validation. `progress(stage, rows_done, rows_total)` is
    called after each chunk. The files depend on `rows`, `seed`, `scale`, `skew` and `decay` alone.
    """
    seed, scale, skew, decay = planted.checked_arguments(seed, scale, skew, decay)
    rows = whole_number(rows, "rows", at_least=14)
    cardinalities = planted.scaled_cardinalities(planted.CRITEO_KAGGLE_ROWS, scale)
    laws = (planted.popularity(values, skew) for values in cardinalities.values())
    plan = _Plan(
        generator="criteo-like",
        task="binary",
        cardinalities=cardinalities,
        dense=planted.CRITEO_DENSE,
        splits=_splits(rows, rows * 6 // 7),
        draw=lambda: Drawing(seed, laws, num_dense=len(planted.CRITEO_DENSE)),
        plant=partial(planted.criteo_like_truth, seed=seed, scale=scale, skew=skew, decay=decay),
        options={"rows": rows, "seed": seed, "scale": scale, "skew": skew, "decay": decay},
    )
    return _generate(out, plan, overwrite=overwrite, progress=progress)


def generate_realistic_clicks(
    out: str | Path,
    *,
    rows: int,
    seed: int = 0,
    scale: float = 0.01,
    skew: float = realistic_values.SKEW,
    unseen: float = realistic_values.UNSEEN,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Meta:
    """Write clicks on which methods of compression rank as on real data to the folder `out`.

    As `generate_criteo_like`, with another truth: see docs/synthetic.md. `unseen` is the share of the
    test lookups of C3, the largest feature, whose value the training split does not contain: it decides
    how long the tails of rare values are that the largest features have.
    """
    seed, scale, skew, _ = planted.checked_arguments(seed, scale, skew)
    rows = whole_number(rows, "rows", at_least=14)
    unseen = checked_unseen(unseen)
    splits = _splits(rows, rows * 6 // 7)
    train = splits["train"][1]
    features = Features(train, seed, scale=scale, skew=skew, unseen=unseen)
    plan = _Plan(
        generator=f"criteo-like-realistic-{realistic.VERSION}",
        task="binary",
        cardinalities=features.cardinalities,
        dense=planted.CRITEO_DENSE,
        splits=splits,
        draw=features.drawing,
        plant=partial(realistic.plant, features),
        options={"rows": rows, "seed": seed, "scale": scale, "skew": skew, "unseen": unseen},
    )
    return _generate(out, plan, overwrite=overwrite, progress=progress)


def generate_movielens_like(
    out: str | Path,
    *,
    rows: int,
    seed: int = 0,
    scale: float = 0.01,
    skew: float = planted.MOVIELENS_SKEW,
    decay: float = planted.DECAY,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Meta:
    """Write ratings of items by users to the folder `out`; see docs/synthetic.md.

    As `generate_criteo_like`, with the cardinalities of MovieLens 27M. The split is 80/10/10 by
    position, which is random, since the rows are independent of each other.
    """
    seed, scale, skew, decay = planted.checked_arguments(seed, scale, skew, decay)
    rows = whole_number(rows, "rows", at_least=10)
    cardinalities = planted.scaled_cardinalities(planted.MOVIELENS_27M_ROWS, scale)
    laws = (planted.popularity(values, skew) for values in cardinalities.values())
    plan = _Plan(
        generator="movielens-like",
        task="rating",
        cardinalities=cardinalities,
        dense=(),
        splits=_splits(rows, rows * 4 // 5),
        draw=lambda: Drawing(seed, laws, num_dense=0),
        plant=partial(planted.movielens_like_truth, seed=seed, scale=scale, skew=skew, decay=decay),
        options={"rows": rows, "seed": seed, "scale": scale, "skew": skew, "decay": decay},
    )
    return _generate(out, plan, overwrite=overwrite, progress=progress)


def _splits(rows: int, train: int) -> dict[str, tuple[int, int]]:
    middle = train + (rows - train) // 2
    return {"train": (0, train), "validation": (train, middle), "test": (middle, rows)}


@dataclass(frozen=True)
class _Plan:
    """What to generate."""

    generator: str
    task: str
    cardinalities: dict[str, int]
    dense: tuple[str, ...]
    splits: dict[str, tuple[int, int]]
    draw: Callable[[], Drawing]
    plant: Callable[[], Truth]
    options: dict[str, Any]

    @property
    def rows(self) -> int:
        return self.splits["test"][1]


def _generate(out: str | Path, plan: _Plan, *, overwrite: bool, progress: Progress | None) -> Meta:
    progress = progress or (lambda stage, rows_done, rows_total: None)
    with FolderWriter(out, overwrite=overwrite) as writer:
        _check_disk(writer, plan)
        draw = plan.draw()
        features, ranks = _rank(writer.path / "vocabulary", plan, _count(plan, draw, progress))
        truth = plan.plant()
        measured = _write(writer.path, plan, draw, ranks, truth, progress)
        meta = Meta(
            task=plan.task,
            features=features,
            dense=plan.dense,
            splits=plan.splits,
            source={"generator": plan.generator, "planted_values": plan.cardinalities},
            options=plan.options,
            rows={"read": plan.rows, "kept": plan.rows, "rejected": {}},
            truth=truth.describe() | measured,
        )
        writer.finish(meta)
    return meta


def _check_disk(writer: FolderWriter, plan: _Plan) -> None:
    """Raise before hours of work if the arrays can never fit the disk."""
    needed = 4 * plan.rows * (len(plan.cardinalities) + len(plan.dense) + 1)
    free = shutil.disk_usage(writer.path).free
    if needed > free:
        raise ValueError(
            f"rows must fit the disk: {plan.rows:,} rows need {needed / 1e9:,.0f} GB, and "
            f"{writer.out.parent} has {free / 1e9:,.0f} GB free"
        )


def _chunks(plan: _Plan, stage: str, progress: Progress) -> Iterator[tuple[int, int, int]]:
    """Number, first row and length of each chunk."""
    for chunk, start in enumerate(range(0, plan.rows, CHUNK)):
        length = min(CHUNK, plan.rows - start)
        yield chunk, start, length
        progress(stage, start + length, plan.rows)


def _count(plan: _Plan, draw: Drawing, progress: Progress) -> list[tuple[np.ndarray, np.ndarray]]:
    """Per feature, how often each value occurs in the training split, and whether it does elsewhere."""
    tallies = [(np.zeros(n, np.int64), np.zeros(n, np.bool_)) for n in plan.cardinalities.values()]
    train = plan.splits["train"][1]
    for chunk, start, length in _chunks(plan, "counting", progress):
        training = min(max(train - start, 0), length)
        drawn = draw.values(chunk, length)
        for values, (counts, elsewhere) in zip(drawn, tallies, strict=True):
            np.add.at(counts, values[:training], 1)
            elsewhere[values[training:]] = True
    return tallies


def _rank(
    folder: Path, plan: _Plan, tallies: list[tuple[np.ndarray, np.ndarray]]
) -> tuple[tuple[FeatureMeta, ...], list[np.ndarray]]:
    """Write the vocabularies; returns the features, and for each the id of every planted value."""
    features, ranks = [], []
    for n, (name, (counts, elsewhere)) in enumerate(zip(plan.cardinalities, tallies, strict=True)):
        vocabulary = _by_popularity(counts)
        _write_vocabulary(folder / f"{n}.parquet", vocabulary, counts)
        # No training row is out of vocabulary, so that row has count 0 and comes last.
        unseen = len(vocabulary)
        rank = np.full(len(counts), unseen, np.int32)
        rank[vocabulary] = np.arange(unseen)
        ranks.append(rank)
        source_values = int(((counts > 0) | elsewhere).sum())
        features.append(FeatureMeta(name, unseen + 1, unseen, source_values))
    return tuple(features), ranks


def _by_popularity(counts: np.ndarray) -> np.ndarray:
    """The values that occur, the most frequent first, ties by value.

    >>> _by_popularity(np.array([2, 0, 5, 2])).tolist()
    [2, 0, 3]
    """
    seen = np.flatnonzero(counts)
    return seen[np.argsort(-counts[seen], kind="stable")]


def _write_vocabulary(path: Path, values: np.ndarray, counts: np.ndarray) -> None:
    ids = pl.Series("id", np.arange(len(values) + 1, dtype=np.int32))
    table = pl.DataFrame({"value": values.astype(np.int64), "count": counts[values]})
    table = table.select("value", pl.lit("value").alias("kind"), "count")
    unseen = pl.DataFrame({"value": [None], "kind": ["out_of_vocabulary"], "count": [0]}, table.schema)
    table.vstack(unseen).insert_column(0, ids).write_parquet(path, row_group_size=1 << 20)


def _write(
    folder: Path, plan: _Plan, draw: Drawing, ranks: list[np.ndarray], truth: Truth, progress: Progress
) -> dict[str, dict[str, float]]:
    """Write the arrays; returns the mean over each split of what the truth measures."""
    sums: dict[str, dict[str, float]] = {}
    with ExitStack() as files:
        append = {
            name: files.enter_context(_growing(folder / f"{name}.npy", (plan.rows, *width), dtype))
            for name, width, dtype in (
                ("ids", (len(ranks),), np.int32),
                ("dense", (len(plan.dense),), np.float32),
                ("target", (), np.float32),
            )
            if plan.dense or name != "dense"
        }
        for chunk, start, length in _chunks(plan, "writing", progress):
            values = draw.values(chunk, length)
            arrays = {
                "ids": np.empty((length, len(ranks)), np.int32),
                "dense": draw.dense(chunk, length),
            }
            for n, rank in enumerate(ranks):
                arrays["ids"][:, n] = rank[values[n]]
            rng = planted.stream(plan.options["seed"], planted.TARGET, chunk)
            arrays["target"], measures = truth.draw(rng, values, arrays["dense"])
            for name, write in append.items():
                write(arrays[name])
            for name, per_row in measures.items():
                of_splits = sums.setdefault(name, dict.fromkeys(plan.splits, 0.0))
                for split, (first, last) in plan.splits.items():
                    inside = per_row[max(first - start, 0) : max(last - start, 0)]
                    of_splits[split] += float(inside.sum())
    sizes = {split: last - first for split, (first, last) in plan.splits.items()}
    return {name: {split: s[split] / sizes[split] for split in s} for name, s in sums.items()}


@contextmanager
def _growing(
    path: Path, shape: tuple[int, ...], dtype: type[np.generic]
) -> Iterator[Callable[[np.ndarray], None]]:
    """An `.npy` file of known shape, written from its beginning to its end.

    Not through a memory map: its pages would count as memory, and a full disk would kill the process.
    """
    with path.open("wb") as file:
        header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)

        def append(rows: np.ndarray) -> None:
            file.write(np.ascontiguousarray(rows, dtype=dtype).data)

        yield append
