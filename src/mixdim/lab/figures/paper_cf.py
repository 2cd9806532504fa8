"""The paper's figures of collaborative filtering by popularity: records in, figure out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mixdim.lab.figures.paper import PARAMETERS, canvas, draw_line, draw_lines, log_axis, style
from mixdim.lab.paper.curves import (
    Measure,
    by_line,
    has_train_thirds,
    num_bands,
    num_parameters,
    objective,
    objective_label,
    on_test,
    on_train,
    points,
    temperature,
)
from mixdim.runs.sweeps.records import Record

# Popular above rare, as far apart in viridis as lines on white can be.
THIRDS = {"popular": 0.0, "rare": 0.7}


def loss_by_popularity(records: Sequence[Record], *, title: str, caption: str) -> Figure:
    """Draw test loss against parameters on popular and on rare items (Figs. 3b, 3e), a panel each.

    Popular and rare are thirds of the popularity mass of the items. (The paper overlays the two; side by
    side, with one y axis, every temperature keeps a line style of its own.)
    """
    figure, panels = canvas(title, caption, panels=2)
    for axes, third in zip(panels, THIRDS, strict=True):
        draw_lines(axes, by_line(records), num_parameters, on_test(objective(records), third))
        axes.set_title(f"samples of {third} items", fontsize=10)
        log_axis(axes, PARAMETERS)
    panels[0].set_ylabel(f"test {objective_label(records)}")
    panels[0].legend(fontsize=8)
    return figure


def generalisation(records: Sequence[Record], *, title: str, caption: str) -> Figure:
    """Draw training and test loss against temperature at one budget (Figs. 3c, 3f), popular and rare.

    Dashed is training, solid is test. Records whose training loss was not cut by popularity have one
    dashed line, of all items.
    """
    figure, axes = canvas(title, caption)
    loss = objective(records)
    for (third, shade), marker in zip(THIRDS.items(), "os", strict=True):
        look = {"color": mpl.colormaps["viridis"](shade), "marker": marker}
        _draw_line(axes, records, on_test(loss, third), f"{third} items, test", linestyle="-", **look)
        if has_train_thirds(records):
            label = f"{third} items, training"
            _draw_line(axes, records, on_train(loss, third), label, linestyle="--", **look)
    if not has_train_thirds(records):
        look = {"color": "0.4", "marker": "D"}
        _draw_line(axes, records, on_train(loss), "all items, training", linestyle="--", **look)
    axes.set(xlabel="temperature", ylabel=objective_label(records))
    # Four lines cross the whole picture, so a legend inside would lie on one of them.
    axes.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    return figure


def equipartitions(records: Sequence[Record], *, title: str, caption: str) -> Figure:
    """Draw test loss against the number of bands (Fig. 5): mixed on the left, uniform on the right.

    One line a budget. Uniform widths with more bands are the same model, but for what their tables start
    from: Xavier's limits depend on the rows of a block.
    """
    figure, panels = canvas(title, caption, panels=2)
    mixed = [record for record in records if temperature(record) > 0]
    uniform = [record for record in records if temperature(record) == 0]
    for axes, runs, name in zip(panels, (mixed, uniform), ("mixed", "uniform"), strict=True):
        lines = by_line(runs, lambda record: f"budget {record.config['model_budget']:,}")
        draw_lines(axes, lines, num_bands, on_test(objective(records)))
        warm = sorted({f"{temperature(record):g}" for record in runs})
        axes.set_title(f"{name} (temperature {', '.join(warm)})", fontsize=10)
        axes.set_xscale("log", base=2)
        bands = sorted({int(num_bands(record)) for record in runs})
        axes.set_xticks(bands, [str(number) for number in bands])
        axes.minorticks_off()
        axes.set_xlabel("bands a table is cut into (log scale)")
        axes.legend(fontsize=8)
    panels[0].set_ylabel(f"test {objective_label(records)}")
    return figure


def _draw_line(axes: Axes, records: Sequence[Record], measure: Measure, label: str, **look: Any) -> None:
    draw_line(axes, points(records, temperature, measure), label, **style(0, 1) | look)
