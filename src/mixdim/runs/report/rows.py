"""The runs of a report as rows of a table: their order, names and metrics. Knows no HTML."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import polars as pl

from mixdim._util.text import printable
from mixdim.runs.sweeps.frame import Row, run_frame
from mixdim.runs.sweeps.methods import (
    bits_of,
    method_of,
    place_among_methods,
    provenance,
    temperature_of,
)
from mixdim.runs.sweeps.objective import best_possible, objective_of
from mixdim.runs.sweeps.records import Record
from mixdim.tasks import RANKING

# Options that decide where a point lies, not which line it is on; and options that decide no result.
PLACE = {"base_dim", "budget", "model_budget", "plan", "seed"}
NO_MATTER = {"data", "checkpoint_every", "tensorboard", "ranking_users"}
OTHERS = ("accuracy", "auc", "mae", *RANKING)  # metrics of the whole test split, beside the loss


def in_order(records: Iterable[Record]) -> list[Record]:
    """Sort by data, model, temperature or method, size and seed: a report does not depend on the file.

    Data that was moved between runs goes by the name that it had last.
    """

    def place(record: Record) -> tuple[Any, ...]:
        config = record.config
        size = record.summary["num_parameters"] if record.summary else config.get("model_budget") or 0
        temperature, method = temperature_of(record), config.get("method") or ""
        return (
            *(_folder(record), record.summary is None),  # a failed run knows no fingerprint
            *(record.summary["data_fingerprint"] if record.summary else "", config.get("model") or ""),
            *(
                math.inf if temperature is None else temperature,
                place_among_methods(method, bits_of(record)),
                size,
            ),
            *(config.get("seed") or 0, record.key),
        )

    return sorted(_with_last_folder(records), key=place)


def _with_last_folder(records: Iterable[Record]) -> list[Record]:
    records = sorted(records, key=lambda record: (record.finished_at, record.key))
    last = {r.summary["data_fingerprint"]: r.config.get("data") for r in records if r.summary}
    return [
        replace(r, config={**r.config, "data": last[r.summary["data_fingerprint"]]}) if r.summary else r
        for r in records
    ]


def data_names(records: Iterable[Record]) -> dict[str, str]:
    """A name for the data of each record's key: its folder's, with a fingerprint where two share it."""
    rows = [
        (record.key, _folder(record), record.summary["data_fingerprint"] if record.summary else None)
        for record in records
    ]
    runs = pl.DataFrame(rows, {"key": pl.String, "folder": pl.String, "print": pl.String}, orient="row")
    shared = pl.col("print").drop_nulls().n_unique().over("folder") > 1
    beside = pl.format("{} ({})", "folder", pl.col("print").str.head(8))
    named = runs.select("key", pl.when(shared).then(beside).fill_null(pl.col("folder")))
    return dict(named.iter_rows())


def metrics_of(summary: Mapping[str, Any]) -> dict[str, float]:
    """The finite metrics of the best weights on test, the loss first, and the time.

    >>> metrics_of({"test": {"best": {"mse": 0.5, "mae": None, "slices": {"rare": {"mse": 0.75}}}},
    ...             "seconds": 2.0})
    {'test_mse': 0.5, 'test_mse_rare': 0.75, 'seconds': 2.0}
    """
    best, objective = summary["test"]["best"], objective_of([summary])
    found = {f"test_{name}": best.get(name) for name in (objective, *OTHERS)}
    for third, of_third in (best.get("slices") or {}).items():
        found[f"test_{objective}_{third}"] = of_third.get(objective)
    found["seconds"] = summary["seconds"]
    return {name: float(value) for name, value in found.items() if _is_finite(value)}


def table_rows(records: Iterable[Record]) -> list[Row]:
    """One row a finished run. All rows have the same columns, in one order; the CSV has these too."""
    finished = [record for record in in_order(records) if record.summary]
    names, differing = data_names(finished), differing_options(finished)
    in_bytes = says_bytes(finished)
    rows = []
    for record, run in zip(finished, run_frame(finished).iter_rows(named=True), strict=True):
        summary = record.summary
        assert summary is not None
        rows.append({
            "data": names[record.key],
            "model": summary["model"],
            "temperature": run["temperature"],
            "method": run["method"] if run["by_method"] else None,
            "base_dim": summary["base_dim"],
            "options": differing[record.key],
            "plan": rule_of(record),
            "seed": summary["seed"],
            "parameters": summary["num_parameters"],
            "embedding_bytes": run["embedding_bytes"] if in_bytes else None,
            "model_bytes": run["num_bytes"] if in_bytes else None,
            **metrics_of(summary),
            "ranking": summary["test"]["best"].get("ranking"),
            f"train_{run['loss']}": (record.train or {}).get(run["loss"]),
            f"best_possible_{run['loss']}": best_possible(summary),
            "embedding_parameters": summary["embedding_parameters"],
            "model_budget": record.config.get("model_budget"),
            "embedding_budget": _embedding_budget(record),
            "budget_spent": run["spent"],
            "samples_per_second": summary["samples_per_second"],
            "peak_memory_bytes": summary["peak_memory_bytes"],
            "finished_at": record.finished_at,
            "key": record.key,
        })  # fmt: skip
    columns = all_names([list(row) for row in rows])
    return [{column: row.get(column) for column in columns if _any(rows, column)} for row in rows]


def says_bytes(records: Iterable[Record]) -> bool:
    """Whether bytes of embeddings tell more than parameters: records from before runs said so have none.

    They are then known of all records: those without are float32.
    """
    return any(record.summary.get("embedding_bytes") for record in records if record.summary)


def differing_options(records: Sequence[Record]) -> dict[str, str]:
    """What sets each record's key apart from others of its data, beyond model, method and size.

    An option that some have not, such as the hidden widths of one model, sets nothing apart by itself.
    """
    columns = ("key", "folder", "option", "value", "text")
    rows = [
        (record.key, _folder(record), option, json.dumps(value), f"{option} {_in_words(value)}")
        for record in records
        for option, value in sorted(record.config.items())
        if value is not None and option not in _said_elsewhere(record)
    ]
    options = pl.DataFrame(rows, dict.fromkeys(columns, pl.String), orient="row")
    apart = options.filter(pl.col("value").n_unique().over("folder", "option") > 1)
    texts = apart.group_by("key", maintain_order=True).agg(pl.col("text").str.join(", "))
    return {**{record.key: "" for record in records}, **dict(texts.iter_rows())}


def _said_elsewhere(record: Record) -> set[str]:
    """Options that the name of a run or its place in the chart tells."""
    by_name = {"method", "bits"} if record.config.get("method") else set()  # "mixed, 8 bits" says both
    return PLACE | NO_MATTER | {"model", "temperature"} | by_name


def label(column: str) -> str:
    """A column's or metric's name for readers.

    >>> label("test_log_loss_rare")
    'test log loss, rare third'
    """
    for third in ("popular", "middle", "rare"):
        if column.endswith(f"_{third}"):
            return f"{label(column.removesuffix(f'_{third}'))}, {third} third"
    words = (word.upper() if word in ("mse", "mae", "auc") else word for word in column.split("_"))
    return " ".join(words)


def short_number(value: float | None) -> str:
    """A number with about four digits.

    >>> short_number(0.49949613), short_number(12345.678), short_number(None)
    ('0.4995', '12,346', '')
    """
    if value is None:
        return ""
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _folder(record: Record) -> str:
    return printable(PurePath(record.config.get("data") or "").name) or "unnamed data"


def _embedding_budget(record: Record) -> str | None:
    """The budget of embeddings; within a model's budget they have what it leaves."""
    return None if record.config.get("model_budget") else record.config.get("budget")


def rule_of(record: Record) -> str | None:
    """What chose the widths of a run, if it was neither the power law nor a method."""
    if record.config.get("method") or provenance(record)["rule"] == "power_law":
        return None
    return method_of(record)


def _in_words(value: Any) -> str:
    return "-".join(map(str, value)) if isinstance(value, list | tuple) else printable(str(value))


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _any(rows: Sequence[Row], column: str) -> bool:
    return any(row.get(column) not in (None, "") for row in rows)


def all_names(lists: Sequence[Sequence[str]]) -> list[str]:
    """The names of all lists, each once, a new one after the name that it follows in its list.

    >>> all_names([["loss", "seconds"], ["loss", "accuracy", "seconds"]])
    ['loss', 'accuracy', 'seconds']
    """
    merged: list[str] = []
    for names in lists:
        place = 0
        for name in names:
            if name not in merged:
                merged.insert(place, name)
            place = merged.index(name) + 1
    return merged
