"""The figures that need no runs: the layer, popularity, widths, and the table of data sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from matplotlib.figure import Figure

from mixdim.lab.figures.paper_layer import layer_figure, table_figure
from mixdim.lab.paper.captions import listed
from mixdim.lab.paper.study import Study
from mixdim.lab.paper.study_words import describe, models_by_data
from mixdim.planning.from_counts import plan
from mixdim.runs.figures.plots import widths_figure
from mixdim.runs.figures.popularity import popularity_figure
from mixdim.tasks import task_of

Studies = Mapping[str, Study]  # by name: "ctr", "mf", "ncf"


class Made(NamedTuple):
    """Pictures by file name, what was measured, and the caption: data, split and seeds."""

    pictures: dict[str, Figure]
    measured: str
    caption: str


def layer(_: Studies) -> Made:
    """Fig. 1: an example, uniform beside mixed."""
    rows = {"block 1": 40, "block 2": 160, "block 3": 640, "block 4": 2560}
    mixed = plan(rows, temperature=0.5, base_dim=16)
    uniform = plan(rows, temperature=0, base_dim=round(mixed.equivalent_uniform_dim))
    caption = "An example of four blocks. Widths to scale; heights grow with the root of the rows."
    dims = ", ".join(str(block.dim) for block in mixed.blocks)
    found = (
        f"Uniform width {uniform.base_dim} has {uniform.num_parameters:,} parameters, temperature 0.5 "
        f"with widths {dims} has {mixed.num_parameters:,}."
    )
    picture = layer_figure({"uniform": uniform, "mixed": mixed}, caption=caption)
    return Made({"fig1": picture}, found, caption)


def popularity(studies: Studies) -> Made:
    """Fig. 4: how often rows are asked for, in clicks and in ratings."""
    pictures, parts = {}, []
    for name in ("ctr", "mf"):
        dataset = studies[name].dataset
        pictures[f"fig4-{name}"] = popularity_figure(dataset.counts, f"Popularity: {dataset.path.name}")
        for feature, counts in dataset.counts.items():
            top = max(1, len(counts) // 100)
            if name == "mf" or len(counts) == max(dataset.cardinalities.values()):
                share = counts[:top].sum() / max(counts.sum(), 1)
                parts.append(f"{feature} of {dataset.path.name}: {share:.0%}")
    caption = "; ".join(describe(studies[name].dataset) for name in ("ctr", "mf"))
    return Made(pictures, listed("Queries that the most popular 1 % of rows get", parts), caption)


def widths(studies: Studies) -> Made:
    """Fig. 6: the width of each feature at one budget, by temperature."""
    study = studies["ctr"]
    dim = study.protocol.focus_dim
    plans = {
        f"temperature {t:g}": study.plan_within(dim, t) for t in sorted(study.protocol.temperatures)
    }
    title = f"Widths within {study.budget(dim):,} parameters of the whole model (the paper's Fig. 6)"
    parts = [
        f"{label}: base_dim {found.base_dim}, widths {min(b.dim for b in found.blocks)} to "
        f"{max(b.dim for b in found.blocks)}"
        for label, found in plans.items()
    ]
    figure = widths_figure(plans, title=title)
    return Made({"fig6": figure}, listed("Widths of features", parts), describe(study.dataset))


def data_sets(studies: Studies) -> Made:
    """Table 1."""
    header = ("data set", "task", "samples", "categories", "models")
    rows = [
        (
            dataset.path.name,
            task_of(dataset.task).paper_preset.removeprefix("paper-").upper(),
            f"{dataset.meta.num_rows:,}",
            f"{sum(dataset.cardinalities.values()):,}",
            ", ".join(models),
        )
        for dataset, models in models_by_data(studies.values())
    ]
    found = listed(
        "Data sets",
        (f"{name}: {samples} samples, {rows} categories" for name, _, samples, rows, _ in rows),
    )
    caption = "; ".join(describe(dataset) for dataset, _ in models_by_data(studies.values()))
    figure = table_figure(header, rows, title="Data sets and models (the paper's Table 1)")
    return Made({"table1": figure}, found, caption)
