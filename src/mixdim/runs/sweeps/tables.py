"""The results of a sweep as a table in a terminal. Knows nothing about how runs are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from mixdim._util.text import align
from mixdim.planning.budget import format_bytes
from mixdim.runs.baseline_report import baselines_line
from mixdim.runs.sweeps.frame import Row, base_dims, best_by_method, over_seeds, run_frame
from mixdim.runs.sweeps.records import Record

NOTHING_YET = "no run is finished yet"
# The largest size first; of one size the methods as they are always listed, and in most bits first.
LISTED: dict[str, Any] = {
    "by": ["budget_bytes", "bits", "place", "plain_method"],
    "descending": [True, True, False, False],
    "maintain_order": True,
}


def sweep_table(records: Sequence[Record]) -> str:
    """One line a configuration: its test loss over the seeds, and how it differs from uniform.

    The loss is that of the weights that were best in validation. The difference is taken seed by seed
    to the uniform run within the same budget; each ± is a standard deviation over the seeds. "spent" is
    the share of its budget that a model has used.
    """
    runs = run_frame(records)
    if runs.is_empty():
        return NOTHING_YET
    uniform = runs.filter(pl.col("temperature") == 0)
    runs = _with_gain(runs, uniform, by=["rivals", "seed"], where=pl.col("temperature").ne_missing(0))
    loss = f"test {runs['loss'][0]}"
    head = ["budget", "spent", "temperature", "base_dim", "parameters", loss, "±", "minus uniform"]
    lines = [[*head, "±", "seeds", "s"]]
    for row in over_seeds(runs).iter_rows(named=True):
        lines.append([
            row["budget"],
            _percent(row["spent"]),
            row["method"],
            base_dims(row),
            f"{row['parameters']:,.0f}",
            *_cells(row, "test", ".4f"),
            *_cells(row, "gain", "+.4f"),
            str(row["seeds"]),
            f"{row['seconds']:.0f}",
        ])  # fmt: skip
    return "\n".join([*align(lines), *_baselines(records)])


def comparison_table(records: Sequence[Record]) -> str:
    """Methods at equal bytes: of each size and method its best width by validation, and its test loss.

    The difference is taken seed by seed to uniform dimensions of the reference, which is the largest
    uniform run; each ± is a standard deviation over the seeds. "tried" says how many widths were. Bytes
    of "embeddings" and of the whole "model" are counted as in `mixdim recommend` and in a report.
    """
    runs = best_by_method(run_frame(records))
    if runs.is_empty():
        return NOTHING_YET
    uniform = runs.filter("uniform").sort(**LISTED)
    reference = uniform.filter(pl.col("setting") == pl.col("setting").first())
    others = ~pl.col("setting").is_in(reference["setting"].implode())
    settings = over_seeds(_with_gain(runs, reference, by=["seed"], where=others)).sort(**LISTED)
    whole, loss = settings["budget_bytes"][0], f"test {settings['loss'][0]}"
    head = ["at most", "share", "method", "base_dim", "embeddings", "spent", "model", loss, "±"]
    lines = [[*head, "minus reference", "±", "tried", "seeds", "s"]]
    for row in settings.iter_rows(named=True):
        lines.append([
            format_bytes(row["budget_bytes"]),
            f"1/{whole / row['budget_bytes']:.3g}",
            row["method"],
            base_dims(row),
            format_bytes(int(row["embedding_bytes"])),
            _percent(row["spent"]),
            format_bytes(int(row["num_bytes"])),
            *_cells(row, "test", ".4f"),
            *_cells(row, "gain", "+.4f"),
            str(row["tried"]),
            str(row["seeds"]),
            f"{row['seconds']:.0f}",
        ])  # fmt: skip
    return "\n".join([*align(lines), *_baselines(records)])


def _with_gain(
    runs: pl.DataFrame, rivals: pl.DataFrame, *, by: list[str], where: pl.Expr
) -> pl.DataFrame:
    """Add the column `gain`: the test loss minus that of the rival with the same values of `by`."""
    theirs = rivals.select(*by, pl.col("test").alias("rival")).unique(by, keep="last")
    found = runs.join(theirs, on=by, how="left", maintain_order="left")
    return found.with_columns(gain=pl.when(where).then(pl.col("test") - pl.col("rival")))


def _baselines(records: Sequence[Record]) -> list[str]:
    """A line below a table: what simple models reach on the same data."""
    line = baselines_line([record.summary for record in records if record.summary])
    return [] if line is None else ["", line]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _cells(row: Row, loss: str, form: str) -> list[str]:
    """A mean over the seeds and its deviation, as far as there are any."""
    mean, std = row[loss], row[f"{loss}_std"]
    return ["" if mean is None else f"{mean:{form}}", "" if std is None else f"{std:.4f}"]
