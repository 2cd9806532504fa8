"""What records say together: lines of points, mean and spread over seeds. Draws and trains nothing."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mixdim.runs.sweeps.frame import replicates
from mixdim.runs.sweeps.methods import UNIFORM, method_of, provenance
from mixdim.runs.sweeps.objective import common_task, objective_of
from mixdim.runs.sweeps.records import Record

Measure = Callable[[Record], float]

WARM = "temperature"


class Point(NamedTuple):
    """One setting: where it stands, and mean and standard deviation over its seeds."""

    x: float
    mean: float
    std: float
    seeds: int


def summary_of(record: Record) -> dict[str, Any]:
    """The summary of a finished run.

    A failed run has none: whoever compares runs leaves those out first, and says so.
    """
    if record.summary is None:
        raise ValueError(f"run {record.key} failed, so it has no summary: {record.error}")
    return record.summary


def num_parameters(record: Record) -> float:
    """Parameters of the whole model."""
    return float(summary_of(record)["num_parameters"])


def embedding_parameters(record: Record) -> float:
    """Parameters of the embeddings alone, projections included."""
    return float(summary_of(record)["embedding_parameters"])


def train_seconds(record: Record) -> float:
    """Seconds in training steps, without those in which validation and test were measured."""
    return float(record.curve[-1]["train_seconds"])


def num_bands(record: Record) -> float:
    """Bands that each table was cut into."""
    return float(summary_of(record)["bands"])


def temperature(record: Record) -> float:
    """The plan's temperature (alpha); not a number where none made its widths."""
    summary_of(record)
    return float(provenance(record).get("temperature", math.nan))


def on_test(name: str, third: str | None = None) -> Measure:
    """A metric on the test split, with the weights that were best in validation.

    `third` is "popular", "middle" or "rare" for one third of the popularity mass.
    """
    return _on_split("test", name, third)


def on_validation(name: str) -> Measure:
    """A metric on the validation split, with the weights that were best there."""
    return _on_split("validation", name, None)


def on_train(name: str, third: str | None = None) -> Measure:
    """A metric on the training split, with the weights that were best in validation."""

    def measure(record: Record) -> float:
        assert record.train is not None  # as finished runs have
        found = record.train if third is None else record.train["slices"][third]
        return float(found[name])

    return measure


def has_train_thirds(records: Sequence[Record]) -> bool:
    """Whether training metrics are known by popularity."""
    return all(record.train is not None and "slices" in record.train for record in records)


def objective(records: Sequence[Record]) -> str:
    """The loss that these runs made small: "log_loss" or "mse"."""
    return objective_of([summary_of(record) for record in records])


def objective_label(records: Sequence[Record]) -> str:
    """The objective in words."""
    return common_task([summary_of(record) for record in records]).objective_words


def by_line(
    records: Sequence[Record], label: Callable[[Record], str] = method_of
) -> dict[str, list[Record]]:
    """The runs of each line: uniform first, then by temperature, then of other rules."""
    lines: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: (_rank(label(record)), label(record))):
        lines.setdefault(label(record), []).append(record)
    return lines


def by_setting(records: Sequence[Record]) -> list[list[Record]]:
    """The runs of each setting, by seed; the settings by their parameters."""
    return sorted(replicates(records), key=lambda same: num_parameters(same[0]))


def points(records: Sequence[Record], x: Measure, y: Measure) -> list[Point]:
    """One point a setting, by x."""
    found = []
    for same in by_setting(records):
        values = [y(record) for record in same]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        found.append(Point(statistics.fmean(map(x, same)), statistics.fmean(values), spread, len(same)))
    return sorted(found)


def mean_of(same: Sequence[Record], measure: Measure) -> float:
    """The mean of a measure over some runs."""
    return statistics.fmean(map(measure, same))


def seed_of(record: Record) -> int:
    """The seed of a run."""
    return int(record.config["seed"])


def _on_split(split: str, name: str, third: str | None) -> Measure:
    def measure(record: Record) -> float:
        found = summary_of(record)[split]["best"]
        return float((found if third is None else found["slices"][third])[name])

    return measure


def _rank(label: str) -> int:
    return 0 if label == UNIFORM else 1 if label.startswith(WARM) else 2
