"""Which measured configuration to use: records and a wish in, a configuration out. Trains nothing."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from shlex import join
from typing import NamedTuple

import polars as pl

from mixdim.planning.budget import BYTES_PER_PARAMETER, format_bytes
from mixdim.runs.config import RunConfig, run_options
from mixdim.runs.sweeps.frame import Row, check_validation, over_seeds, run_frame
from mixdim.runs.sweeps.objective import common_task
from mixdim.runs.sweeps.records import Record
from mixdim.training.options import AUTO


class Recommendation(NamedTuple):
    """The cheapest configuration that satisfies a wish, and others, as rows of `over_seeds`."""

    chosen: Row
    best: Row  # the lowest validation loss of all
    uniform: Row | None  # the cheapest uniform one that is no worse in validation, if there is one


def recommend(
    records: Sequence[Record], *, loss_within: float | None = None, budget: int | None = None
) -> Recommendation:
    """Choose by the mean validation loss over the seeds, never by test.

    - `loss_within=0.001`: the fewest bytes within 0.1% of the lowest loss; or
    - `budget`: the lowest loss with at most so many float32 parameters of the whole model, or what takes
      no more bytes.

    Configurations with fewer seeds than others, by a failure or an unfinished sweep, are left out, with
    a warning: one lucky seed would win for them. Widths that a sweep tried for a method and did not
    choose have fewer seeds by design: they are left out without one.
    """
    if (loss_within is None) == (budget is None):
        raise ValueError("give either loss_within or budget")
    if loss_within is not None and not 0 <= loss_within < math.inf:
        raise ValueError(f"loss_within must be at least 0, got {loss_within}")
    measured = over_seeds(run_frame(records))
    if measured.is_empty():
        raise ValueError("there are no finished runs in the records")
    most = max(measured["seeds"])
    whole = check_validation(measured.filter(pl.col("seeds") == most))
    lost = pl.col("by_method") & (pl.col("seeds") < pl.col("seeds").max().over("search"))
    compared = measured.filter(~lost)
    if len(whole) < len(compared):
        warnings.warn(
            f"{len(compared) - len(whole)} of {len(compared)} configurations have fewer than {most} "
            "seeds and were left out",
            stacklevel=2,
        )
    best = _first(whole, "validation", "num_bytes")
    assert best is not None
    if loss_within is not None:
        enough = whole.filter(pl.col("validation") <= best["validation"] * (1 + loss_within))
        chosen = _first(enough, "num_bytes", "validation")
        assert chosen is not None  # the best is within
    else:
        assert budget is not None
        affordable = whole.filter(pl.col("num_bytes") <= budget * BYTES_PER_PARAMETER)
        chosen = _first(affordable, "validation", "num_bytes")
        if chosen is None:
            least = whole.select(pl.col("num_bytes").min()).item()
            raise ValueError(
                f"budget of {budget:,} parameters is below all that was measured: the smallest model "
                f"takes {format_bytes(int(least))}, as {least / BYTES_PER_PARAMETER:,.0f} do"
            )
    rivals = whole.filter("uniform", pl.col("validation") <= chosen["validation"])
    return Recommendation(chosen, best, _first(rivals, "num_bytes", "validation"))


def _first(settings: pl.DataFrame, *by: str) -> Row | None:
    """The setting that is least in these columns; None if there are no settings."""
    ordered = settings.sort(*by, maintain_order=True)
    return None if ordered.is_empty() else ordered.row(0, named=True)


def select(
    records: Iterable[Record], *, model: str | None = None, data: Sequence[str] | None = None
) -> list[Record]:
    """The finished records of one model on one data set; an error that lists them if there are several.

    Folders that are replicates, so that each seed was trained on one of them, count as one data set.
    `data` are folders, or their names.
    """
    finished = [record for record in records if record.finished]
    models = sorted({record.config["model"] for record in finished})
    if model is not None:
        finished = [record for record in finished if record.config["model"] == model]
    elif len(models) > 1:
        raise ValueError(f"the records hold several models, choose one: {', '.join(models)}")
    if model is not None and not finished:
        raise ValueError(
            f"there are no runs of model {model!r}: there are {', '.join(models) or 'none'}"
        )
    folders = sorted({record.config["data"] for record in finished})
    if data is not None:
        wanted = {name for given in data for name in (given, str(Path(given).resolve()))}
        finished = [
            record
            for record in finished
            if wanted & {record.config["data"], Path(record.config["data"]).name}
        ]
        if not finished:
            raise ValueError(
                f"there are no runs on {', '.join(data)}: there are {', '.join(folders) or 'none'}"
            )
    by_seed: dict[int, set[str]] = {}
    for record in finished:
        by_seed.setdefault(record.config["seed"], set()).add(record.config["data"])
    if any(len(used) > 1 for used in by_seed.values()):
        raise ValueError(f"the records hold several data sets, choose one: {', '.join(folders)}")
    return finished


def train_command(record: Record, out: str = "run") -> str:
    """The command that makes a run again: data, model, widths, and what else differs from defaults."""
    assert record.summary is not None
    options = run_options()
    config = RunConfig.of(**{name: v for name, v in record.config.items() if name != "model_budget"})
    always = {"data", "model", "temperature", "base_dim", "budget", "method", "plan"}
    # What was chosen from the data is said, so that the run is the same whatever would be chosen now.
    from_data = {name for name, option in options.items() if option.from_data}
    always |= from_data if config.preset == AUTO else {"preset"}
    given = RunConfig.of(**{name: value for name, value in config.given().items() if name in always})
    defaults = given.resolved_for(common_task([record.summary]).name, train_rows=1).given()
    words = ["mixdim", "train"]
    for name, value in config.given().items():
        if name in always or value != defaults.get(name):
            words += options[name].arguments(value)
    return join([*words, "--out", out])
