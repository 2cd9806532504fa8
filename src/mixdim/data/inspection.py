"""What a prepared folder holds: popularity, unknown values, targets. Knows nothing about models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from mixdim.data.folder import SPLITS, FeatureMeta, Meta, read_meta
from mixdim.plan_table import align

CHUNK = 1 << 22  # numbers of an array that are looked at together


@dataclass(frozen=True)
class FeatureInspection:
    """One feature. A share or rate of nothing at all is None.

    `rows` counts the ids, the one for values out of vocabulary included; `in_vocabulary` how many of the
    `source_values` have a row of their own. Rates and shares are of queries: of values, in bags.
    """

    name: str
    bag: bool
    rows: int
    source_values: int
    in_vocabulary: int
    top_1_percent: float | None  # share of the training queries on so many of the ids, at least one
    top_10_percent: float | None
    out_of_vocabulary_validation: float | None
    out_of_vocabulary_test: float | None


@dataclass(frozen=True)
class SplitInspection:
    """One split: its rows and the mean of its targets, None without rows."""

    name: str
    rows: int
    mean_target: float | None


@dataclass(frozen=True)
class Inspection:
    """A prepared folder at a glance; prints as a table."""

    task: str
    splits: tuple[SplitInspection, ...]
    features: tuple[FeatureInspection, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        return json.loads(json.dumps(asdict(self)))

    def __str__(self) -> str:
        rows = sum(split.rows for split in self.splits)
        features = "1 feature" if len(self.features) == 1 else f"{len(self.features)} features"
        head = f"Prepared data: {self.task} task, {rows:,} rows, {features}"
        return "\n".join([head, "", *self._split_table(), "", *self._feature_table()])

    def _split_table(self) -> list[str]:
        lines = [
            [split.name, f"{split.rows:,}", _written(split.mean_target, ".4f")] for split in self.splits
        ]
        return align([["split", "rows", "mean target"], *lines])

    def _feature_table(self) -> list[str]:
        lines = [
            [
                f"{feature.name} (bag)" if feature.bag else feature.name,
                f"{feature.rows:,}",
                f"{feature.source_values:,}",
                f"{feature.in_vocabulary:,}",
                *(_written(share, ".1%") for share in (feature.top_1_percent, feature.top_10_percent)),
                _written(feature.out_of_vocabulary_validation, ".2%"),
                _written(feature.out_of_vocabulary_test, ".2%"),
            ]
            for feature in self.features
        ]
        above = ["", "", "values", "with own", "queries on", "queries on", "unknown in", "unknown"]
        below = ["feature", "rows", "in source", "row", "top 1%", "top 10%", "validation", "in test"]
        return align([above, below, *lines])


def inspect(folder: str | Path) -> Inspection:
    """Inspect a prepared folder, having checked that its files are complete and unchanged.

    Memory is bounded by the rows of the largest vocabulary, not by the rows of the data.
    """
    folder = Path(folder)
    meta = read_meta(folder)
    unknown = _unknown_rates(folder, meta)
    return Inspection(
        task=meta.task,
        splits=tuple(_split(folder, name, *meta.splits[name]) for name in SPLITS),
        features=tuple(
            _feature(folder / "vocabulary" / f"{number}.parquet", feature, unknown[feature.name])
            for number, feature in enumerate(meta.features)
        ),
    )


def _feature(
    vocabulary: Path, feature: FeatureMeta, unknown: dict[str, float | None]
) -> FeatureInspection:
    rows = pl.read_parquet(vocabulary, columns=["count"], glob=False)
    counts = rows["count"].sort(descending=True).to_numpy()
    own_row = (pl.col("kind") != "out_of_vocabulary").sum()
    return FeatureInspection(
        name=feature.name,
        bag=feature.bag,
        rows=feature.rows,
        source_values=feature.source_values,
        in_vocabulary=pl.scan_parquet(vocabulary, glob=False)
        .select(own_row)
        .collect(engine="streaming")
        .item(),
        top_1_percent=_share_of_top(counts, 100),
        top_10_percent=_share_of_top(counts, 10),
        out_of_vocabulary_validation=unknown["validation"],
        out_of_vocabulary_test=unknown["test"],
    )


def _share_of_top(counts: np.ndarray, divisor: int) -> float | None:
    """Share of the queries on the first 1/divisor of the ids, at least one; counts in falling order."""
    top = max(1, len(counts) // divisor)
    return _ratio(int(counts[:top].sum()), int(counts.sum()))


def _split(folder: Path, name: str, start: int, stop: int) -> SplitInspection:
    total = sum(
        float(part.sum(dtype=np.float64)) for part in _chunks(folder / "target.npy", start, stop)
    )
    return SplitInspection(name, stop - start, _ratio(total, stop - start))


def _unknown_rates(folder: Path, meta: Meta) -> dict[str, dict[str, float | None]]:
    """Of each feature and held-out split, the share of queries on the out-of-vocabulary row."""
    rates: dict[str, dict[str, float | None]] = {feature.name: {} for feature in meta.features}
    single = [feature for feature in meta.features if not feature.bag]
    unknown_ids = np.array(
        [feature.out_of_vocabulary for feature in single]
    )  # (single-valued features,)
    for split in SPLITS[1:]:
        start, stop = meta.splits[split]
        found = np.zeros(len(single), dtype=np.int64)
        if single:
            for ids in _chunks(folder / "ids.npy", start, stop):  # (rows, single-valued features)
                found += (ids == unknown_ids).sum(axis=0)
        for feature, count in zip(single, found.tolist(), strict=True):
            rates[feature.name][split] = _ratio(count, stop - start)
        for feature in meta.features:
            if feature.bag:
                rates[feature.name][split] = _unknown_rate_of_bag(folder, feature, start, stop)
    return rates


def _unknown_rate_of_bag(folder: Path, feature: FeatureMeta, start: int, stop: int) -> float | None:
    offsets = np.load(folder / "bags" / f"{feature.name}.offsets.npy", mmap_mode="r", allow_pickle=False)
    first, last = int(offsets[start]), int(offsets[stop])
    parts = _chunks(folder / "bags" / f"{feature.name}.values.npy", first, last)
    found = sum(int((part == feature.out_of_vocabulary).sum()) for part in parts)
    return _ratio(found, last - first)


def _chunks(path: Path, start: int, stop: int) -> Iterator[np.ndarray]:
    """Views of the rows of an array from `start` to `stop`, one after the other.

    Each is mapped anew, so that the pages of the ones before do not add up.
    """
    shape = np.load(path, mmap_mode="r", allow_pickle=False).shape
    rows = max(1, CHUNK // max(1, int(np.prod(shape[1:]))))
    for first in range(start, stop, rows):
        yield np.load(path, mmap_mode="r", allow_pickle=False)[first : min(first + rows, stop)]


def _ratio(part: float, whole: int) -> float | None:
    return part / whole if whole else None


def _written(number: float | None, form: str) -> str:
    return "-" if number is None else format(number, form)
