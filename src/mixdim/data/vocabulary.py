"""Which value of a feature gets which id: ranks of popularity in the training split.

Knows nothing about files of raw data, rows or splits beyond "in training or not".
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import polars as pl

from mixdim.data.folder import KINDS

VALUE, MISSING, OUT_OF_VOCABULARY = range(len(KINDS))
PENDING = 1 << 18  # rows of counts that wait before they are added up


class ValueCounts:
    """Counts the values of one feature, chunk by chunk; null is the missing value."""

    def __init__(self) -> None:
        self._parts: list[pl.DataFrame] = []
        self._pending = 0
        self._merged = 0

    def add(self, values: pl.Series, *, training: bool) -> None:
        """Count values; those outside the training split are only known to exist."""
        counts = values.rename("value").value_counts(name="count")
        count = pl.col("count").cast(pl.Int64) if training else pl.lit(0, pl.Int64).alias("count")
        self._parts.append(counts.with_columns(count))
        self._pending += counts.height
        if self._pending > max(PENDING, self._merged):
            self.total()

    def total(self) -> pl.DataFrame:
        """One row for each value: value, count in the training split."""
        if len(self._parts) != 1:
            total = pl.concat(self._parts).group_by("value").agg(pl.col("count").sum())
            self._parts = [total]
        self._pending, self._merged = 0, self._parts[0].height
        return self._parts[0]


class Vocabulary:
    """The ids of one feature: rank by (-count, value before missing before out-of-vocabulary, value).

    Values counted less than `min_count` times (so also those unseen in training) share the
    out-of-vocabulary row, which always exists and is ranked by its own count.
    """

    def __init__(self, counts: pl.DataFrame, *, min_count: int = 1) -> None:
        self.source_values = counts.height
        known = pl.col("count") >= max(min_count, 1)
        rare = int(counts.filter(~known)["count"].sum())
        kind = pl.when(pl.col("value").is_null()).then(MISSING).otherwise(VALUE).cast(pl.UInt8)
        last = pl.DataFrame(
            {"value": [None], "count": [rare], "kind": [OUT_OF_VOCABULARY]},
            schema={"value": counts.schema["value"], "count": pl.Int64, "kind": pl.UInt8},
        )
        self.table = (
            pl.concat([counts.filter(known).with_columns(kind=kind), last])
            .sort(["count", "kind", "value"], descending=[True, False, False])
            .select(pl.int_range(pl.len(), dtype=pl.Int32).alias("id"), "value", "kind", "count")
        )
        self.out_of_vocabulary = self._id_of(OUT_OF_VOCABULARY, 0)
        self._missing = self._id_of(MISSING, self.out_of_vocabulary)
        by_value = self.table.filter(pl.col("kind") == VALUE).sort("value")
        self._values, self._ids = by_value["value"], by_value["id"].to_numpy()

    @property
    def rows(self) -> int:
        """How many ids there are."""
        return self.table.height

    def encode(self, values: pl.Series) -> np.ndarray:
        """The ids, int32, of values of the feature's type."""
        missing = values.is_null().to_numpy()
        if not len(self._values):
            return np.where(missing, self._missing, self.out_of_vocabulary).astype(np.int32)
        place = self._values.search_sorted(values).clip(upper_bound=len(self._values) - 1)
        found = (self._values.gather(place) == values).fill_null(False).to_numpy()
        ids = np.where(found, self._ids[place.to_numpy()], np.int32(self.out_of_vocabulary))
        ids[missing] = self._missing
        return ids

    def write(self, path: Path) -> None:
        """Write `vocabulary/<n>.parquet` of the prepared format."""
        kinds = pl.Series("kinds", KINDS)
        content = io.BytesIO()
        self.table.with_columns(kinds.gather(self.table["kind"]).alias("kind")).write_parquet(content)
        path.write_bytes(content.getbuffer())

    def _id_of(self, kind: int, default: int) -> int:
        ids = self.table.filter(pl.col("kind") == kind)["id"]
        return int(ids[0]) if len(ids) else default
