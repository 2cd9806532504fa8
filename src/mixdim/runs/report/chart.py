"""What a report draws of runs: one point for all seeds of a config. Knows no colours."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from mixdim.planning.budget import format_bytes
from mixdim.runs.config import comparable
from mixdim.runs.report.runs import (
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
from mixdim.runs.sweeps.best_by_method import best_by_method
from mixdim.runs.sweeps.methods import (
    bits_of,
    method_of,
    plain_method_of,
    temperature_of,
    with_bits,
)
from mixdim.runs.sweeps.objective import best_possible, objective_of
from mixdim.runs.sweeps.recommend import embedding_bytes_of, loss_of
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
    tried = _widths_tried(finished, names)
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in finished:
        if record.key not in tried:
            continue
        groups[names[record.key], _canonical(record.config, without={"seed"} | NO_MATTER)].append(record)
    points = []
    for (data, _), group in groups.items():
        first, summaries = group[0], [record.summary for record in group if record.summary]
        summary, measured = summaries[0], [metrics_of(summary) for summary in summaries]
        metrics = {}
        for name in all_names([list(one) for one in measured]):
            values = [one[name] for one in measured if name in one]
            metrics[name] = [mean(values), stdev(values) if len(values) > 1 else None]
        about = _about(first, summaries, differing[first.key], metrics, in_bytes, tried[first.key])
        points.append({
            "data": data,
            "model": summary["model"],
            "temperature": temperature_of(first),
            "method": with_bits(_plain_method(first), bits_of(first)),
            "plain_method": _plain_method(first),
            "bits": bits_of(first),
            "options": differing[first.key],
            "series": f"{method_of(first)} {_canonical(first.config, without=PLACE | NO_MATTER)}",
            "parameters": summary["num_parameters"],
            "bytes": embedding_bytes_of(summary) if in_bytes else None,
            "by_bytes": bool(first.config.get("method")) or bits_of(first) < 32,
            "metrics": metrics,
            "best_possible": best_possible(summary),
            "objective": f"test_{objective_of([summary])}",
            "about": about,
        })  # fmt: skip
    return points


def _widths_tried(records: Sequence[Record], names: Mapping[str, str]) -> dict[str, int]:
    """The keys of records to draw, and how many widths a method was tried at to find this one."""
    found, of_data = {}, defaultdict(list)
    for record in records:
        if record.config.get("method") and loss_of(record, "validation") is not None:
            of_data[names[record.key]].append(record)
        else:
            found[record.key] = 1  # not one of several, or nothing tells which is best
    for own in of_data.values():
        for best, tried in best_by_method(own):
            found |= {record.key: tried for record in best.records}
    return found


def _plain_method(record: Record) -> str:
    """What a run is called in a legend of temperatures, but for its bits."""
    temperature = temperature_of(record)
    if temperature is None:
        return plain_method_of(record)
    return "0 (uniform)" if temperature == 0 else f"{temperature:g}"


def _about(
    record: Record,
    summaries: Sequence[Mapping[str, Any]],
    options: str,
    metrics: Mapping[str, Sequence[float | None]],
    in_bytes: bool,
    widths_tried: int,
) -> list[list[str]]:
    """Lines of a name and a text: the plan, then the metrics."""
    summary = summaries[0]
    temperature, plan = temperature_of(record), rule_of(record)
    best_of = f" (best of {widths_tried} by validation)" if widths_tried > 1 else ""
    size = f"{format_bytes(embedding_bytes_of(summary))}, {bits_of(record)} bits a number"
    lines = [
        ["model", summary["model"]],
        ["method", method_of(record) if record.config.get("method") else ""],
        ["temperature", "" if temperature is None else f"{temperature:g}"],
        ["plan", plan or ""],
        ["base_dim", f"{summary['base_dim']:,}{best_of}"],
        ["widths (blocks)", _widths(summary.get("widths", {}))],
        ["bands", "" if summary["bands"] is None else f"{summary['bands']:,}"],
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
