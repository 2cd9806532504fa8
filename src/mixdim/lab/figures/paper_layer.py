"""The paper's Fig. 1 and Table 1: the layer as matrices, and the data sets. Nothing is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from mixdim.planning.plan import Plan
from mixdim.runs.figures.plots import as_it_is

GAP = 0.5  # between blocks, in units of the height of the smallest one


def layer_figure(plans: Mapping[str, Plan], *, caption: str) -> Figure:
    """Draw layers as matrices (Fig. 1), one panel a plan: each block's table, and its projection beside.

    Widths are to scale; heights grow with the root of the rows, since rare blocks have far more of them.
    A block of full width needs no projection.
    """
    if not plans:
        raise ValueError("plans must have at least one plan, got none")
    widest = max(plan.base_dim for plan in plans.values())
    # In units of the widest table: room for labels, and for projections where there are any.
    widths = [3.4 if plan.projection_parameters else 1.9 for plan in plans.values()]
    figure = Figure(figsize=(2.2 * sum(widths), 5.6), layout="constrained")
    panels = figure.subplots(1, len(plans), squeeze=False, sharey=True, width_ratios=widths)[0]
    for axes, width, (name, plan) in zip(panels, widths, plans.items(), strict=True):
        _draw_layer(axes, plan, widest)
        axes.set_xlim(-0.8 * widest, (width - 0.8) * widest)
        axes.set_title(f"{name}: {plan.num_parameters:,} parameters", fontsize=10)
    figure.suptitle("The layer as matrices, popular rows above (the paper's Fig. 1)")
    figure.supxlabel(caption, fontsize=7, color="0.25")
    return figure


def table_figure(header: Sequence[str], rows: Sequence[Sequence[str]], *, title: str) -> Figure:
    """Draw a table (Table 1)."""
    figure = Figure(figsize=(1.5 * len(header), 0.8 + 0.4 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    axes.axis("off")
    cells = [list(map(as_it_is, row)) for row in rows]
    table = axes.table(cells, colLabels=list(header), loc="center", cellLoc="left")
    table.auto_set_font_size(False)
    table.set_fontsize(9)
    table.auto_set_column_width(list(range(len(header))))
    table.scale(1, 1.5)
    for (row, _), cell in table.get_celld().items():
        cell.set_edgecolor("0.7")
        if row == 0:
            cell.set_facecolor("0.92")
            cell.set_text_props(weight="bold")
    figure.suptitle(title, fontsize=11)
    return figure


def _draw_layer(axes: Axes, plan: Plan, widest: int) -> None:
    colors = mpl.colormaps["viridis"]
    smallest = min(block.size for block in plan.blocks) ** 0.5
    away = 1.25 * widest  # where projections stand, clear of the widest table
    top = 0.0
    for number, block in enumerate(plan.blocks):
        height = block.size**0.5 / smallest
        shade = 0.15 + 0.75 * number / max(len(plan.blocks) - 1, 1)
        _box(axes, 0, -top, block.dim, height, colors(shade), hatch=None)
        axes.text(
            -0.04 * widest,
            -top - height / 2,
            f"{block.size:,} rows\nwidth {block.dim}",
            ha="right",
            va="center",
            fontsize=8,
        )
        if block.dim < plan.base_dim:
            # Its height is its rows, of which it has as many as the table has columns.
            lift = max(min(height, 3.0 * block.dim / widest), 0.25)
            middle = -top - height / 2
            axes.text(away - 0.12 * widest, middle, "×", ha="center", va="center", fontsize=12)
            _box(axes, away, middle + lift / 2, plan.base_dim, lift, colors(shade), hatch="////")
            axes.text(
                away + 1.04 * plan.base_dim,
                middle,
                f"{block.dim} × {plan.base_dim}",
                ha="left",
                va="center",
                fontsize=8,
            )
        top += height + GAP
    axes.autoscale_view(scalex=False)
    axes.axis("off")
    axes.text(0, 0.35, "tables", fontsize=9, weight="bold")
    if any(block.dim < plan.base_dim for block in plan.blocks):
        axes.text(away, 0.35, f"projections to {plan.base_dim}", fontsize=9, weight="bold")


def _box(
    axes: Axes, x: float, top: float, width: float, height: float, color: object, hatch: str | None
) -> None:
    style = {"facecolor": color} if hatch is None else {"facecolor": "white", "hatch": hatch}
    axes.add_patch(
        Rectangle((x, top - height), width, height, edgecolor="black", linewidth=0.8, **style)
    )
