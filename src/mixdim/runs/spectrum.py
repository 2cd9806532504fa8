"""Widths from what a trained run really uses of its tables, beside those of the power law."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mixdim._util.text import align
from mixdim.data import Dataset
from mixdim.models import Model
from mixdim.planning.bands import Bands
from mixdim.planning.from_counts import plan
from mixdim.planning.from_tables import nearest_temperature, spectral_plan, table_error
from mixdim.planning.plan import Plan
from mixdim.planning.sizing import Rounding
from mixdim.planning.table import rule_in_words
from mixdim.runs.config import read_config
from mixdim.runs.resolution import TEMPERATURE
from mixdim.runs.trained import open_for


@dataclass(frozen=True)
class PlansFromRun:
    """Two answers within one budget, and what each would lose of the run's tables."""

    spectral: Plan
    power_law: Plan
    spectral_error: float
    power_law_error: float
    run_plan: Plan

    def __str__(self) -> str:
        lines = [["feature", "band", "rows", "row prob", "power law", "spectrum"]]
        for mine, other in zip(self.spectral.features, self.power_law.features, strict=True):
            for number, (block, rival) in enumerate(
                zip(mine.blocks, other.blocks, strict=True), start=1
            ):
                lines.append([
                    mine.name if number == 1 else "",
                    f"{number}/{len(mine.blocks)}",
                    f"{block.size:,}",
                    f"{block.row_prob:.2e}",
                    str(rival.dim),
                    str(block.dim),
                ])  # fmt: skip
        both = self.power_law, self.spectral
        errors = self.power_law_error, self.spectral_error
        like = nearest_temperature(self.spectral)
        lines += [
            ["base_dim", "", "", "", *(str(p.base_dim) for p in both)],
            ["temperature", "", "", "", f"{self.power_law.temperature:g}", f"like {like:g}"],
            ["parameters", "", "", "", *(f"{p.num_parameters:,}" for p in both)],
            ["lost of the tables", "", "", "", *(f"{error:.2%}" for error in errors)],
        ]
        notes = []
        if self.run_plan.temperature != 0:
            notes.append(
                f"note: the run has {rule_in_words(self.run_plan.made_by)}; its narrow blocks cannot "
                "show what they had no room for. A uniform run (--temperature 0) can"
            )
        return "\n".join([*align(lines), *notes])


def plans_from_run(
    path: Path,
    *,
    budget: str,
    temperature: float | None = None,
    bands: Bands | None = None,
    rounding: Rounding = "power_of_two",
) -> PlansFromRun:
    """Plan from the spectra of a run's best weights and, for comparison, by the power law."""
    config = read_config(path / "config.toml")
    if config.data is None:
        raise ValueError(f"{path / 'config.toml'} does not say which data the run was trained on")
    dataset = Dataset(config.data)
    run = open_for(path, dataset)
    bands = bands if bands is not None else config.bands or 1
    tables = tables_of(run.model)
    asked: dict[str, Any] = {"counts": dataset.counts, "ids_per_sample": dataset.ids_per_sample}
    spectral = spectral_plan(tables, budget=budget, bands=bands, rounding=rounding, **asked)
    power_law = plan(
        dataset,
        budget=budget,
        bands=bands,
        rounding=rounding,
        temperature=(run.plan.temperature or TEMPERATURE) if temperature is None else temperature,
    )
    return PlansFromRun(
        spectral,
        power_law,
        table_error(tables, spectral, **asked),
        table_error(tables, power_law, **asked),
        run.plan,
    )


def tables_of(model: Model) -> dict[str, np.ndarray]:
    """The matrix that each feature's embedding stands for, by feature name: (rows, base_dim)."""
    return {
        name: layer.dense_weight(name).numpy(force=True)
        for layer in model.embedding_layers()
        for name in layer.plan
    }
