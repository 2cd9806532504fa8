"""Widths from what a trained run really uses of its tables, beside those of the power law."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixdim._util.text import align
from mixdim.planning.bands import Bands
from mixdim.planning.from_counts import plan
from mixdim.planning.from_tables import nearest_temperature, spectral_plan, table_error
from mixdim.planning.plan import Plan
from mixdim.planning.sizing import Rounding
from mixdim.planning.table import rule_in_words
from mixdim.runs.models import tables_of
from mixdim.runs.resolution import TEMPERATURE
from mixdim.runs.run import Run


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
                f"note: the run has {rule_in_words(self.run_plan.provenance)}; its narrow blocks cannot "
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
    run = Run.open(path)
    dataset = run.dataset()
    bands = bands if bands is not None else run.config.bands or 1
    tables = tables_of(run.load(dataset).model)
    facts: dict[str, Any] = {"counts": dataset.counts, "ids_per_sample": dataset.ids_per_sample}
    spectral = spectral_plan(tables, budget=budget, bands=bands, rounding=rounding, **facts)
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
        table_error(tables, spectral, **facts),
        table_error(tables, power_law, **facts),
        run.plan,
    )
