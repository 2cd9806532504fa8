"""What a prepared folder holds: popularity, unknown values, targets. Knows nothing about models."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from mixdim._util.arguments import whole_number
from mixdim._util.text import align, printable
from mixdim.data.folder import (
    SPLITS,
    Meta,
    chunks_of,
    map_arrays,
    read_counts,
    read_meta,
    vocabulary_file,
)
from mixdim.data.unknown_values import HELD_OUT, advice, unknown_shares


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
    out_of_vocabulary_train: float | None
    out_of_vocabulary_validation: float | None
    out_of_vocabulary_test: float | None
    out_of_vocabulary_trained: bool  # whether training rows use that row too
    popular: tuple[tuple[str, int], ...] = ()  # the most popular values in training and their counts


@dataclass(frozen=True)
class DenseInspection:
    """One dense column of the source; without a rule it is as the source, or its recipe, has it."""

    name: str
    rule: str | None
    missing_train: float | None  # share of the training rows
    tells_missing: bool  # whether a column of its own has 1 where it is missing


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
    dense: tuple[DenseInspection, ...] = ()
    advice: str | None = None  # if many lookups held out are of rows that are never trained
    features_left_out: int = 0  # that have fewer rows than those above
    dense_left_out: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        return json.loads(json.dumps(asdict(self)))

    def __str__(self) -> str:
        rows = sum(split.rows for split in self.splits)
        number = len(self.features) + self.features_left_out
        features = "1 feature" if number == 1 else f"{number} features"
        head = f"Prepared data: {self.task} task, {rows:,} rows, {features}"
        parts = [[head], self._split_table(), self._feature_table()]
        parts += [self._popular_table()] if any(feature.popular for feature in self.features) else []
        parts += [self._dense_table()] if self.dense else []
        parts += [[self.advice]] if self.advice is not None else []
        return "\n\n".join("\n".join(lines) for lines in parts)

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
                _written(feature.out_of_vocabulary_train, ".2%"),
                _written(feature.out_of_vocabulary_validation, ".2%"),
                _written(feature.out_of_vocabulary_test, ".2%"),
            ]
            for feature in self.features
        ]
        above = ["", "", "values", "with own", "queries on", "queries on", *["unknown in"] * 3]
        below = ["feature", "rows", "in source", "row", "top 1%", "top 10%", *SPLITS]
        more = self.features_left_out
        return [*align([above, below, *lines]), *([f"and {more:,} with fewer rows"] if more else [])]

    def _popular_table(self) -> list[str]:
        lines = ["most popular in training"]
        width = max(len(printable(feature.name)) for feature in self.features)
        for feature in self.features:
            values = ", ".join(f"{printable(value)} {count:,}" for value, count in feature.popular)
            lines.append(f"{printable(feature.name).ljust(width)}  {values}")
        return lines

    def _dense_table(self) -> list[str]:
        lines = [
            [
                column.name,
                column.rule or "x, as it was given",
                _written(column.missing_train, ".2%") + (" (has a column)" * column.tells_missing),
            ]
            for column in self.dense
        ]
        more = [f"and {self.dense_left_out:,} more"] if self.dense_left_out else []
        return [*align([["dense column", "rule", "missing in train"], *lines]), *more]


def inspect(folder: str | Path, *, top: int | None = None) -> Inspection:
    """Inspect a prepared folder, having checked that its files are complete and unchanged.

    With `top`, show only so many features, those with most rows, each with as many of its most popular
    values, and as many dense columns. Memory is bounded by the rows of the largest vocabulary, not by
    the rows of the data.
    """
    folder = Path(folder)
    meta = read_meta(folder)
    map_arrays(folder, meta)  # which checks them
    unknown = unknown_shares(folder, meta, SPLITS if "vocabulary_of" in meta.options else HELD_OUT)
    features = tuple(
        _feature(folder, meta, number, unknown[feature.name])
        for number, feature in enumerate(meta.features)
    )
    lookups = {
        feature.name: {**unknown[feature.name], "trained": feature.out_of_vocabulary_trained}
        for feature in features
    }
    dense, shown = _dense(meta), features
    if top is not None:
        top = whole_number(top, "top")
        largest = sorted(range(len(features)), key=lambda n: (-features[n].rows, n))[:top]
        shown = tuple(replace(features[n], popular=_popular(folder, n, top)) for n in largest)
    return Inspection(
        task=meta.task,
        splits=tuple(_split(folder, name, *meta.splits[name]) for name in SPLITS),
        features=shown,
        dense=dense[:top],
        features_left_out=len(features) - len(shown),
        dense_left_out=len(dense) - len(dense[:top]),
        advice=advice(
            lookups, prepared=not {"generator", "vocabulary_of"} & {*meta.source, *meta.options}
        ),
    )


def _dense(meta: Meta) -> tuple[DenseInspection, ...]:
    if meta.dense_rules is None:
        recipe = "log(1 + max(x, 0)), missing 0" if meta.options.get("format") == "criteo" else None
        return tuple(DenseInspection(name, recipe, None, False) for name in meta.dense)
    return tuple(
        DenseInspection(rule.column, str(rule), rule.missing, rule.tells_missing)
        for rule in meta.dense_rules
    )


def _popular(folder: Path, number: int, top: int) -> tuple[tuple[str, int], ...]:
    """The values with the smallest ids, and how often training has them."""
    path = folder / vocabulary_file(number)
    table = pl.read_parquet(path, columns=["value", "kind", "count"], n_rows=top, glob=False)
    named = {"missing": "(missing)", "out_of_vocabulary": "(unknown)"}
    return tuple(
        (named.get(kind, str(value)), count) for value, kind, count in table.iter_rows() if count
    )


def _feature(
    folder: Path, meta: Meta, number: int, unknown: dict[str, float | None]
) -> FeatureInspection:
    feature = meta.features[number]
    counts = read_counts(folder, meta, number)
    falling = np.sort(counts)[::-1]
    return FeatureInspection(
        name=feature.name,
        bag=feature.bag,
        rows=feature.rows,
        source_values=feature.source_values,
        in_vocabulary=feature.rows - 1,  # all but the row for values out of vocabulary
        top_1_percent=_share_of_top(falling, 100),
        top_10_percent=_share_of_top(falling, 10),
        # Counts are of the folder that made the vocabulary, which may be an earlier one.
        out_of_vocabulary_train=unknown["train"]
        if "train" in unknown
        else _ratio(int(counts[feature.out_of_vocabulary]), int(counts.sum())),
        out_of_vocabulary_validation=unknown["validation"],
        out_of_vocabulary_test=unknown["test"],
        out_of_vocabulary_trained=bool(counts[feature.out_of_vocabulary]),
    )


def _share_of_top(counts: np.ndarray, divisor: int) -> float | None:
    """Share of the queries on the first 1/divisor of the ids, at least one; counts in falling order."""
    top = max(1, len(counts) // divisor)
    return _ratio(int(counts[:top].sum()), int(counts.sum()))


def _split(folder: Path, name: str, start: int, stop: int) -> SplitInspection:
    total = sum(
        float(part.sum(dtype=np.float64)) for part in chunks_of(folder / "target.npy", start, stop)
    )
    return SplitInspection(name, stop - start, _ratio(total, stop - start))


def _ratio(part: float, whole: int) -> float | None:
    return part / whole if whole else None


def _written(number: float | None, form: str) -> str:
    return "-" if number is None else format(number, form)
