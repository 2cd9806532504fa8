"""Finished runs as a polars frame, one row a run, and their means over seeds. Reads no files.

Columns of `run_frame`: `number` is the place of the record in its list. `setting`, `rivals` and
`search` are options as JSON: runs of one setting differ in nothing but their seed, rivals also in their
widths, and those of one search in the width that a method is tried at. The others say what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from mixdim.planning.budget import BYTES_PER_PARAMETER, parse_bytes
from mixdim.runs.config import canonical, comparable
from mixdim.runs.sweeps.methods import (
    UNIFORM,
    bits_of,
    budget_name,
    place_among_methods,
    plain_method_of,
    temperature_of,
    with_bits,
)
from mixdim.runs.sweeps.records import Record

Row = dict[str, Any]  # of a frame, by column

SEEDS = {"seed", "data"}  # each seed may have a split of its own
SOLVED = {"base_dim", "budget"}  # from a budget of the whole model
WIDTHS = {"base_dim", "temperature", "rounding"}  # uniform dimensions are the same in any rounding
LOSSES = ("validation", "test", "gain")
MEANS = ("parameters", "embedding_bytes", "num_bytes", "spent", "seconds")
COLUMNS = {
    **dict.fromkeys(("number", "seed", "bits", "place", "base_dim", "parameters"), pl.Int64),
    **dict.fromkeys(("budget_bytes", "embedding_bytes", "num_bytes"), pl.Int64),
    **dict.fromkeys(("setting", "rivals", "search", "data", "model", "loss"), pl.String),
    **dict.fromkeys(("method", "plain_method", "budget"), pl.String),
    **dict.fromkeys(("temperature", "spent", "seconds", "validation", "test"), pl.Float64),
    **dict.fromkeys(("by_method", "uniform"), pl.Boolean),
}


def run_frame(records: Sequence[Record]) -> pl.DataFrame:
    """The finished runs of some records, in their order."""
    rows = [_row(number, record) for number, record in enumerate(records) if record.finished]
    return pl.DataFrame(rows, schema=COLUMNS)


def over_seeds(runs: pl.DataFrame) -> pl.DataFrame:
    """One row a setting, in order of appearance: means over its seeds, and deviations of its losses.

    `numbers` are those of its records, by seed; `seeds` is how many these are. A deviation is that of a
    sample: a single seed has none. All other columns are those of the first seed.
    """
    losses = [name for name in LOSSES if name in runs.columns]
    ordered = runs.sort(pl.col("number").min().over("setting"), "seed", maintain_order=True)
    return ordered.group_by("setting", maintain_order=True).agg(
        pl.exclude("setting", "number", "seed", *MEANS, *losses).first(),
        pl.col("number").alias("numbers"),
        pl.len().alias("seeds"),
        pl.col(*MEANS, *losses).mean(),
        pl.col(losses).std().name.suffix("_std"),
        pl.col("base_dim").min().alias("least_base_dim"),
        pl.col("base_dim").max().alias("largest_base_dim"),
    )


def best_by_method(runs: pl.DataFrame) -> pl.DataFrame:
    """The runs of the width of each method that is best at its size, and how many widths were `tried`.

    The best is the lowest mean validation loss. A width with fewer seeds than others never wins.
    """
    runs = runs.filter("by_method")
    best = (
        check_validation(over_seeds(runs))
        .sort("seeds", "validation", descending=[True, False], maintain_order=True)
        .group_by("search")
        .agg(pl.col("setting").first(), pl.len().alias("tried"))
    )
    return runs.join(best.select("setting", "tried"), on="setting", maintain_order="left")


def replicates(records: Sequence[Record]) -> list[list[Record]]:
    """Group finished records that differ in nothing but the seed, and the data drawn by it.

    Within a model budget what is solved may differ too, where each seed has its own split. Groups
    come in order of appearance, each in order of its seeds.
    """
    groups = over_seeds(run_frame(records))["numbers"]
    return [[records[number] for number in numbers] for numbers in groups]


def check_validation(settings: pl.DataFrame) -> pl.DataFrame:
    """Return the settings; an error if they cannot be compared by validation."""
    if settings["validation"].null_count():
        raise ValueError("the runs have no validation loss: the validation split is empty")
    return settings


def base_dims(row: Row) -> str:
    """The base_dim of a setting, or the least and the largest if seeds differ in it."""
    least, largest = row["least_base_dim"], row["largest_base_dim"]
    return f"{least}" if least == largest else f"{least}-{largest}"


def with_deviation(mean: float | None, std: float | None) -> str:
    """A mean over seeds and, of several, its deviation; "-" if there is none.

    >>> with_deviation(0.6, 0.1414), with_deviation(0.5, None)
    ('0.6000 ± 0.1414', '0.5000')
    """
    if mean is None:
        return "-"
    return f"{mean:.4f}" if std is None else f"{mean:.4f} ± {std:.4f}"


def _row(number: int, record: Record) -> Row:
    config, summary = record.config, record.summary
    assert summary is not None
    options = comparable(config)
    solved = SOLVED if config["model_budget"] else set()

    def without(names: set[str]) -> str:
        return canonical({name: value for name, value in options.items() if name not in names})

    by_method, bits = bool(config.get("method")), bits_of(record)
    temperature = temperature_of(record)
    plain = plain_method_of(record) if temperature is None else f"{temperature:g}"
    in_float32 = BYTES_PER_PARAMETER * summary["embedding_parameters"]
    embedding_bytes = summary.get("embedding_bytes") or in_float32  # which earlier records do not say
    beside = BYTES_PER_PARAMETER * (summary["num_parameters"] - summary["embedding_parameters"])
    loss = record.loss_name
    return {
        "number": number,
        "setting": without(SEEDS | solved),
        "rivals": without(SEEDS | solved | WIDTHS),
        "search": without(SEEDS | {"base_dim"}),
        "seed": config["seed"],
        "data": config["data"],
        "model": config["model"],
        "method": with_bits(plain, bits),
        "plain_method": plain,
        "by_method": by_method,
        "place": place_among_methods(plain)[1],
        "uniform": with_bits(plain, bits) in ("0", UNIFORM),
        "bits": bits,
        "temperature": temperature,
        "base_dim": summary["base_dim"],
        "budget": budget_name(config),
        "budget_bytes": parse_bytes(config["budget"]) if by_method else None,
        "parameters": summary["num_parameters"],
        "embedding_bytes": embedding_bytes,
        "num_bytes": summary.get("model_bytes") or embedding_bytes + beside,
        "spent": _share_spent(config, summary, embedding_bytes),
        "seconds": summary["seconds"],
        "loss": loss,
        **{split: summary[split]["best"][loss] for split in ("validation", "test")},
    }


def _share_spent(config: Row, summary: Row, embedding_bytes: int) -> float | None:
    """The share of its budget that a run has used; None if it had none."""
    budget = config.get("budget")
    if config["model_budget"] is not None:
        return float(summary["num_parameters"] / config["model_budget"])
    if budget is None:
        return None
    if budget.lower().endswith("b"):
        return embedding_bytes / parse_bytes(budget)
    return float(summary["embedding_parameters"] / summary["budget"])
