"""Which value of a feature gets which id: ranks of popularity in the training split.

Knows nothing about raw files, rows or splits beyond "in training or not".
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl

from mixdim.data.folder import KINDS, Meta, read_meta, vocabulary_file

Option = TypeVar("Option")

VALUE, MISSING, OUT_OF_VOCABULARY = range(len(KINDS))
POSITIVES = "positives"  # column of a vocabulary that negatives are drawn from
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
    out-of-vocabulary row, which always exists and is ranked by its own count. Where training has drawn
    negatives, `min_count` is about positives and ranks are about all rows.
    """

    def __init__(self, table: pl.DataFrame, values: pl.Series, ids: np.ndarray) -> None:
        """Take id, value, kind and count of each row, and the values in their order with their ids."""
        self.table, self._values, self._ids = table, values, ids
        kinds = table["kind"].to_numpy()
        self.out_of_vocabulary = int(np.argmax(kinds == OUT_OF_VOCABULARY))
        missing = np.flatnonzero(kinds == MISSING)
        self._missing = int(missing[0]) if len(missing) else self.out_of_vocabulary

    @classmethod
    def counted(cls, counts: pl.DataFrame, *, min_count: int = 1) -> Vocabulary:
        """The vocabulary of values and how often the training split has them: value, count.

        A third column, positives, has the count without negatives.
        """
        counts = counts.sort("value", nulls_last=True)
        values, times = counts["value"], counts["count"].to_numpy()
        positives = counts[POSITIVES].to_numpy() if POSITIVES in counts.columns else times
        known = np.flatnonzero(positives >= max(min_count, 1))
        sought = values[known].drop_nulls()  # sorted, to be searched
        kinds = np.full(len(known) + 1, VALUE, np.uint8)
        kinds[len(sought) :] = MISSING
        kinds[-1] = OUT_OF_VOCABULARY
        times = np.append(times[known], times.sum() - times[known].sum())
        drawn_from = {POSITIVES: np.append(positives[known], 0)} if POSITIVES in counts.columns else {}
        # They stand by kind, then value, and a stable sort keeps that order where counts are equal.
        order = np.argsort(-times, kind="stable")
        last = pl.Series([None], dtype=values.dtype)
        table = pl.DataFrame(
            {
                "id": np.arange(len(order), dtype=np.int32),
                "value": pl.concat([values[known], last])[order],
                "kind": kinds[order],
                "count": times[order],
                **{name: column[order] for name, column in drawn_from.items()},
            }
        )
        ids = np.empty(len(order), np.int32)
        ids[order] = np.arange(len(order))
        return cls(table, sought, ids[: len(sought)])

    @classmethod
    def read(cls, path: Path) -> Vocabulary:
        """The vocabulary that `write` wrote."""
        try:
            columns = ("id", "value", "kind", "count", pl.col(f"^{POSITIVES}$"))
            table = pl.read_parquet(path, glob=False).select(columns)
            kinds = table["kind"].replace_strict(list(KINDS), range(len(KINDS)), return_dtype=pl.UInt8)
        except (OSError, pl.exceptions.PolarsError) as error:
            raise ValueError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None
        table = table.with_columns(kinds)
        in_order = np.array_equal(table["id"].to_numpy(), np.arange(table.height))
        if not in_order or OUT_OF_VOCABULARY not in kinds:
            raise ValueError(f"{path} is no vocabulary: its ids are not 0, 1, ..., or none is unknown")
        known = table.filter(pl.col("kind") == VALUE).sort("value")
        return cls(table, known["value"], known["id"].to_numpy())

    @classmethod
    def of_values(cls, values: Sequence[int | str | None], missing: int, unknown: int) -> Vocabulary:
        """The vocabulary of values by id, without counts; None at the ids missing and unknown."""
        ids, kinds = np.arange(len(values), dtype=np.int32), np.full(len(values), VALUE, np.uint8)
        kinds[[missing, unknown]] = MISSING, OUT_OF_VOCABULARY  # one id may be both: then it is unknown
        series = pl.Series(
            "value", values, dtype=None if any(v is not None for v in values) else pl.String
        )
        table = pl.DataFrame({"id": ids, "value": series, "kind": kinds, "count": np.zeros_like(ids)})
        known = table.filter(pl.col("kind") == VALUE).sort("value")
        return cls(table, known["value"], known["id"].to_numpy())

    @property
    def missing(self) -> int:
        """The id of missing values: that of unknown ones if training had none."""
        return self._missing

    @property
    def rows(self) -> int:
        """How many ids there are."""
        return self.table.height

    @property
    def drawing_weights(self) -> np.ndarray:
        """The training positives of each id, 0 where none is drawn: missing and unknown values."""
        is_value = self.table["kind"].to_numpy() == VALUE
        positives = self.table[POSITIVES if POSITIVES in self.table.columns else "count"].to_numpy()
        return np.where(is_value, positives, 0)

    @cached_property
    def _of_texts(self) -> Vocabulary:
        """The same with its values as texts."""
        texts = pl.DataFrame({"value": self._values.cast(pl.String), "id": self._ids}).sort("value")
        return Vocabulary(self.table, texts["value"], texts["id"].to_numpy())

    def encode(self, values: pl.Series) -> np.ndarray:
        """The ids, int32, of values; those of another type than the feature's are compared as texts."""
        if values.dtype != self._values.dtype:
            return self._of_texts.encode(values.cast(pl.String))
        if not len(self._values):
            missing = values.is_null().to_numpy()
            return np.where(missing, self._missing, self.out_of_vocabulary).astype(np.int32)
        place = self._values.search_sorted(values).to_numpy()
        place = np.minimum(place, len(self._values) - 1)
        found = self._values[place] == values
        if values.null_count() == 0:
            return np.where(found.to_numpy(), self._ids[place], np.int32(self.out_of_vocabulary))
        ids = np.where(
            found.fill_null(False).to_numpy(), self._ids[place], np.int32(self.out_of_vocabulary)
        )
        ids[values.is_null().to_numpy()] = self._missing
        return ids

    def write(self, path: Path) -> None:
        """Write `vocabulary/<n>.parquet` of the prepared format."""
        kinds = pl.Series("kind", KINDS)[self.table["kind"]]
        content = io.BytesIO()
        self.table.clone().replace_column(2, kinds).write_parquet(content)
        path.write_bytes(content.getbuffer())


@dataclass(frozen=True)
class BaseVocabulary:
    """A prepared folder whose ids and dense rules new rows get."""

    folder: Path
    meta: Meta

    @classmethod
    def open(cls, folder: str | Path, form: str) -> BaseVocabulary:
        """Open a folder, having checked that it is complete and of the same raw format."""
        meta = read_meta(folder)
        its = raw_format(Path(folder), meta)
        if its != form:
            raise ValueError(
                f"{folder} was prepared by `mixdim prepare {its}`, so new rows for it are too, "
                f"got `mixdim prepare {form}`"
            )
        return cls(Path(folder), meta)

    def agreed(self, name: str, given: Option | None, its: Option) -> Option:
        """The folder's own choice, unless another is given, which is an error."""
        if given is not None and given != its:
            raise ValueError(f"{name} must be {its!r}, as in {self.folder}, got {given!r}")
        return its

    def check(
        self, task: str, features: Sequence[str], bags: AbstractSet[str], dense: Sequence[str]
    ) -> None:
        """Raise if new rows have other columns than the folder."""
        its = self.meta.features
        its_bags = {feature.name for feature in its if feature.bag}
        for what, found, wanted in (
            ("task", task, self.meta.task),
            ("features", list(features), [feature.name for feature in its]),
            ("bags", sorted(bags), sorted(its_bags)),
            ("dense columns", list(dense), list(self.meta.dense_sources)),
        ):
            if found != wanted:
                raise ValueError(
                    f"the new rows must have the {what} of {self.folder}, {wanted}, got {found}"
                )

    def vocabulary(self, number: int) -> Vocabulary:
        """The vocabulary of a feature."""
        return Vocabulary.read(self.folder / vocabulary_file(number))

    def copy_to(self, folder: Path) -> list[Vocabulary]:
        """Read the vocabularies, and copy their files, byte for byte, into a folder being written."""
        found = []
        for number, feature in enumerate(self.meta.features):
            file = vocabulary_file(number)
            vocabulary = Vocabulary.read(self.folder / file)
            wanted = (feature.rows, feature.out_of_vocabulary)
            if (vocabulary.rows, vocabulary.out_of_vocabulary) != wanted:
                raise ValueError(
                    f"{self.folder / file} is not as meta.json says: prepare the data again"
                )
            shutil.copyfile(self.folder / file, folder / file)
            found.append(vocabulary)
        return found


def raw_format(folder: Path, meta: Meta) -> str:
    """What kind of raw files a folder was prepared from: criteo, movielens or table."""
    found: Any = meta.options.get("format")
    if not isinstance(found, str):
        raise ValueError(f"{folder} was not prepared from raw files, so there can be no new ones")
    return found
