"""What loss does a number of parameters buy? Summaries of runs in, figure out. A figure never trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from mixdim.runs.sweeps.objective import Summary, best_possible, common_task


def frontier_figure(runs_by_panel: Mapping[str, Sequence[Summary]], title: str | None = None) -> Figure:
    """Draw test loss against parameters (Fig. 2b, 3a), one panel a title, one line a temperature.

    The loss is that of the weights that were best in validation; the parameters are those of the whole
    model. Where the data is synthetic, a dashed line shows the least loss that anybody can expect.
    """
    if not runs_by_panel:
        raise ValueError("runs_by_panel must have at least one panel, got none")
    figure = Figure(figsize=(5.6 * len(runs_by_panel), 4.6), layout="constrained")
    panels = figure.subplots(1, len(runs_by_panel), squeeze=False)[0]
    for axes, (name, runs) in zip(panels, runs_by_panel.items(), strict=True):
        _draw(axes, name, runs)
    if title is not None:
        figure.suptitle(title)
    return figure


def _draw(axes: Axes, name: str, runs: Sequence[Summary]) -> None:
    task = common_task(runs)
    temperatures = sorted({run["temperature"] for run in runs})
    colors = mpl.colormaps["viridis"]  # legible in grey and to the colour-blind
    for number, temperature in enumerate(temperatures):
        line = sorted(
            (run["num_parameters"], run["test"]["best"][task.objective])
            for run in runs
            if run["temperature"] == temperature
        )
        axes.plot(
            [parameters for parameters, _ in line],
            [loss for _, loss in line],
            marker="osD^vP*X"[number % 8],
            markersize=5,
            color=colors(0.85 * number / max(len(temperatures) - 1, 1)),
            label=f"temperature {temperature:g}" + (" (uniform)" if temperature == 0 else ""),
        )
    for bound in sorted({bound for bound in map(best_possible, runs) if bound is not None}):
        axes.axhline(bound, color="0.35", linestyle="--", label=f"best possible: {bound:.4f}")
    axes.set(title=name, xlabel="parameters of the whole model (log scale)")
    axes.set_ylabel(f"test {task.objective_words}")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=8))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda parameters, _: f"{parameters:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8)
