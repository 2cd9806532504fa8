"""Which features a file lists, with their rows or counts. Knows nothing about plans' widths."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mixdim._util.arguments import nonnegative_vector, whole_number
from mixdim.planning.plan import Plan
from mixdim.planning.plan_json import FORMAT, parse, parts_of

FORMS = (
    "JSON {feature: rows}, {feature: [count, ...]}, a list of either, or a saved plan; or CSV with the "
    "columns feature,rows[,ids_per_sample], or feature,count, or feature,id,count"
)


class FeatureList(NamedTuple):
    """The features that a file lists, by name."""

    rows: dict[str, int]
    counts: dict[str, np.ndarray]
    ids_per_sample: dict[str, float]

    @property
    def cardinalities(self) -> dict[str, int]:
        """Rows of each feature."""
        return self.rows


def read_features(path: str | Path) -> FeatureList:
    """Read features, or the counts of their rows, from a JSON or CSV file (see `FORMS`)."""
    path = Path(path)
    readers = {".json": _read_json, ".csv": _read_csv}
    if path.suffix.lower() not in readers:
        raise ValueError(f"{path}: features come from a .json or .csv file: {FORMS}")
    try:
        found = readers[path.suffix.lower()](path.read_text(encoding="utf-8-sig"))
        if "" in found.rows:
            raise ValueError("a feature has no name")
        return found
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text: {error}") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None


def _read_json(text: str) -> FeatureList:
    try:
        document = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if isinstance(document, dict) and document.get("format") == FORMAT:
        parts = parts_of(parse(text), beside={})  # only features are read, no orders
        saved = Plan(parts.base_dim, parts.provenance, parts.features)
        return FeatureList({feature.name: feature.rows for feature in saved.features}, {}, {})
    if isinstance(document, list):
        document = {str(number): entry for number, entry in enumerate(document)}
    if not isinstance(document, dict) or not document:
        raise ValueError(f"no features in it; expected {FORMS}")
    counts = {name: _counts(name, e) for name, e in document.items() if isinstance(e, list)}
    rows = {
        name: len(counts[name]) if name in counts else whole_number(e, f"rows of feature {name!r}")
        for name, e in document.items()
    }
    return FeatureList(rows, counts, {})


def _counts(name: str, entry: list[Any]) -> np.ndarray:
    try:
        values = np.asarray(entry)
    except ValueError:
        raise ValueError(f"counts of feature {name!r} must be a list of numbers") from None
    return nonnegative_vector(values, f"counts of feature {name!r}")


def _read_csv(text: str) -> FeatureList:
    reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
    columns = set(reader.fieldnames or [])
    if {"feature", "rows"} <= columns:
        return _csv_rows(reader, with_ids="ids_per_sample" in columns)
    if {"feature", "count"} <= columns:
        return _csv_counts(reader, with_id="id" in columns)
    raise ValueError(
        f"unknown columns {', '.join(reader.fieldnames or []) or '(none)'}; expected {FORMS}"
    )


def _csv_rows(reader: csv.DictReader[str], *, with_ids: bool) -> FeatureList:
    rows: dict[str, int] = {}
    ids_per_sample: dict[str, float] = {}
    for line in reader:
        name = line["feature"]
        if name in rows:
            raise ValueError(f"line {reader.line_num}: feature {name!r} is there twice")
        rows[name] = _number(line["rows"], "rows", reader.line_num, int)
        if with_ids:
            ids_per_sample[name] = _number(
                line["ids_per_sample"], "ids_per_sample", reader.line_num, float
            )
    return FeatureList(rows, {}, ids_per_sample)


def _csv_counts(reader: csv.DictReader[str], *, with_id: bool) -> FeatureList:
    """One line a row: its count, in the order of ids or with the id; an id that is left out has 0."""
    found: dict[str, dict[int, float]] = {}
    for line in reader:
        of_feature = found.setdefault(line["feature"], {})
        row = _number(line["id"], "id", reader.line_num, int) if with_id else len(of_feature)
        if row < 0 or row in of_feature:
            problem = "is negative" if row < 0 else f"of feature {line['feature']!r} is there twice"
            raise ValueError(f"line {reader.line_num}: id {row} {problem}")
        of_feature[row] = _number(line["count"], "count", reader.line_num, float)
    counts = {}
    for name, by_id in found.items():
        counts[name] = np.zeros(max(by_id) + 1)
        counts[name][list(by_id)] = list(by_id.values())
    return FeatureList({name: len(values) for name, values in counts.items()}, counts, {})


def _number(text: str | None, column: str, line: int, kind: type) -> Any:
    try:
        return kind(text)
    except (TypeError, ValueError):
        raise ValueError(f"line {line}: {column} must be a number, got {text!r}") from None
