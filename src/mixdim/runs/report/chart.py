"""The points of a report's chart: one for all seeds of a configuration. Knows no colours."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

import polars as pl

from mixdim.planning.budget import format_bytes
from mixdim.runs.config import comparable
from mixdim.runs.report.rows import (
    NO_MATTER,
    PLACE,
    all_names,
    data_names,
    differing_options,
    in_order,
    label,
    metrics_of,
    rule_of,
    says_bytes,
    short_number,
)
from mixdim.runs.sweeps.frame import Row, best_by_method, run_frame
from mixdim.runs.sweeps.methods import method_of, with_bits
from mixdim.runs.sweeps.objective import best_possible
from mixdim.runs.sweeps.records import Record


def chart_points(records: Iterable[Record]) -> list[dict[str, Any]]:
    """One point for all the seeds of one config: what was measured, and what to say of it.

    `metrics` holds [mean, sample standard deviation] by name; the deviation of a single seed is None.
    `series` is the same for points that differ in size alone: those make a line. Of the widths that a
    method was tried at, only the best by validation is a point. `bytes` of embeddings are None where no
    record says any; `by_bytes` are the points that were planned for bytes, or quantized.
    """
    finished = [record for record in in_order(records) if record.summary]
    names, differing, in_bytes = data_names(finished), differing_options(finished), says_bytes(finished)
    runs = run_frame(finished).with_columns(
        data=pl.Series([names[record.key] for record in finished], dtype=pl.String),
        point=pl.Series(
            [_canonical(record.config, without={"seed"} | NO_MATTER) for record in finished],
            dtype=pl.String,
        ),
    )
    points = []
    for _, same in _best_widths(runs).group_by("data", "point", maintain_order=True):
        group, run = [finished[number] for number in same["number"]], same.row(0, named=True)
        first, summaries = group[0], [record.summary for record in group if record.summary]
        summary, measured = summaries[0], [metrics_of(summary) for summary in summaries]
        metrics = {}
        for name in all_names([list(one) for one in measured]):
            values = [one[name] for one in measured if name in one]
            metrics[name] = [mean(values), stdev(values) if len(values) > 1 else None]
        bits, plain = run["bits"], _plain_method(run)
        points.append({
            "data": run["data"],
            "model": summary["model"],
            "temperature": run["temperature"],
            "method": with_bits(plain, bits),
            "plain_method": plain,
            "bits": bits,
            "options": differing[first.key],
            "series": f"{method_of(first)} {_canonical(first.config, without=PLACE | NO_MATTER)}",
            "parameters": run["parameters"],
            "bytes": run["embedding_bytes"] if in_bytes else None,
            "by_bytes": run["by_method"] or bits < 32,
            "metrics": metrics,
            "best_possible": best_possible(summary),
            "objective": f"test_{run['loss']}",
            "about": _about(first, summaries, differing[first.key], metrics, run, in_bytes),
        })  # fmt: skip
    return points


def _best_widths(runs: pl.DataFrame) -> pl.DataFrame:
    """The runs to draw: of a method its best width, and how many were `tried` to find it."""
    # Without a validation loss nothing tells which width is best.
    searched = pl.col("by_method") & pl.col("validation").is_not_null()
    of_data = runs.filter(searched).partition_by("data")
    others = runs.filter(~searched).with_columns(tried=pl.lit(1))
    found = pl.concat([others, *map(best_by_method, of_data)], how="vertical_relaxed")
    return found.sort("number")


def _plain_method(run: Row) -> str:
    """What a run is called in a legend of temperatures, but for its bits."""
    return "0 (uniform)" if run["temperature"] == 0 else str(run["plain_method"])


def _about(
    record: Record,
    summaries: Sequence[Mapping[str, Any]],
    options: str,
    metrics: Mapping[str, Sequence[float | None]],
    run: Row,
    in_bytes: bool,
) -> list[list[str]]:
    """Lines of a name and a text: the plan, then the metrics."""
    summary, temperature, bits = summaries[0], run["temperature"], run["bits"]
    best_of = f" (best of {run['tried']} by validation)" if run["tried"] > 1 else ""
    size = f"{format_bytes(run['embedding_bytes'])}, {bits} bits a number"
    lines = [
        ["model", summary["model"]],
        ["method", run["method"] if run["by_method"] else ""],
        ["temperature", "" if temperature is None else f"{temperature:g}"],
        ["plan", rule_of(record) or ""],
        ["base_dim", f"{summary['base_dim']:,}{best_of}"],
        ["widths (blocks)", _widths(summary.get("widths") or {})],
        ["bands", str(summary.get("bands") or "")],  # or "octaves"
        ["rounding", (summary.get("rounding") or "").replace("_", " ")],
        ["options", options],
        ["parameters", f"{summary['num_parameters']:,}"],
        ["in embeddings", f"{summary['embedding_parameters']:,}"],
        ["embedding bytes", size if in_bytes else ""],
        ["seeds", ", ".join(str(one["seed"]) for one in summaries)],
    ]
    for name, (average, deviation) in metrics.items():
        spread = "" if deviation is None else f" ± {deviation:.2g}"
        lines.append([label(name), f"{short_number(average)}{spread}"])
    return [line for line in lines if line[1]]


def _widths(of_features: Mapping[str, Sequence[int]]) -> str:
    """How wide the blocks of a plan are, from the widest.

    >>> _widths({"user": [16, 8, 8], "item": [32, 8]})
    '32 (1), 16 (1), 8 (3)'
    """
    found = Counter(width for widths in of_features.values() for width in widths)
    return ", ".join(f"{width:,} ({times:,})" for width, times in sorted(found.items(), reverse=True))


def _canonical(config: Mapping[str, Any], *, without: set[str]) -> str:
    return json.dumps({o: v for o, v in comparable(config).items() if o not in without}, sort_keys=True)
