"""The picture of popularity: counts in, figure out. Knows nothing about where counts come from."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from mixdim.runs.figures.plots import as_it_is, short_name

MOST_FEATURES = 6  # lines that can be told apart
POINTS = 300  # of a line: more cannot be seen on a logarithmic axis
FEW_POINTS = 10  # are all marked
LINE_STYLES = ("-", "--", "-.", (0, (6, 1.5, 1, 1.5, 1, 1.5)), (0, (3, 1.5)), ":")


def popularity_figure(counts_by_feature: Mapping[str, np.ndarray], title: str | None = None) -> Figure:
    """Draw how often each row is queried against its rank of popularity (Fig. 4), one line a feature.

    Of more than six features, the five with most rows are drawn, and all features pooled.
    Rows without queries have no place on a logarithmic axis: the legend counts them.
    """
    if not counts_by_feature:
        raise ValueError("counts_by_feature must have at least one feature, got none")
    arrays = {name: np.asarray(counts) for name, counts in counts_by_feature.items()}
    largest = _largest(arrays)
    figure = Figure(figsize=(8.0, 5.0), layout="constrained")
    axes = figure.add_subplot()
    colors = mpl.colormaps["viridis"]  # legible in grey and to the colour-blind
    for number, (name, counts) in enumerate(largest.items()):
        ranks, queries = _curve(counts)
        axes.plot(
            ranks,
            queries,
            label=as_it_is(_label(name, counts)),
            color=colors(0.85 * number / max(len(largest) - 1, 1)),
            linestyle=LINE_STYLES[number],
            linewidth=1.6,
            marker="osD^vP"[number],
            markersize=5,
            # Long lines have their marks at different places: lines on top of each other stay apart.
            markevery=(0.02 * number, 0.12) if ranks.size > FEW_POINTS else None,
        )
    if len(largest) < len(arrays):
        pooled = np.concatenate(list(arrays.values()))
        label = _label(f"all {len(arrays)} features pooled", pooled)
        axes.plot(*_curve(pooled), label=label, color="0.7", linewidth=5, zorder=1)
    title = as_it_is(title or "Popularity of the rows of each feature")
    axes.set(xscale="log", yscale="log", title=title)
    axes.set_xlabel("rank of the row, from the most popular (log scale)")
    axes.set_ylabel("queries in training (log scale)")
    # Stated, because a feature without queries leaves nothing that limits could be fitted to.
    axes.set_xlim(0.8, 2 * max(np.max(line.get_xdata(), initial=5) for line in axes.lines))
    axes.set_ylim(0.8, 2 * max(np.max(line.get_ydata(), initial=5) for line in axes.lines))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(numticks=12))
        axis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,.12g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    labels = [str(line.get_label()) for line in axes.lines]  # stated, or a name such as _id has no entry
    axes.legend(axes.lines, labels, fontsize=8, handlelength=4)
    return figure


def _largest(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    by_rows = sorted(arrays.items(), key=lambda item: -item[1].size)
    return dict(by_rows if len(arrays) <= MOST_FEATURES else by_rows[: MOST_FEATURES - 1])


def _curve(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ranks from 1, evenly spread on a logarithmic axis, and the queries of the rows that have them."""
    queries = np.sort(counts[counts > 0])[::-1]
    if not queries.size:
        return np.empty(0, dtype=int), queries
    ranks = np.unique(np.geomspace(1, queries.size, POINTS).round().astype(int))
    return ranks, queries[ranks - 1]


def _label(name: str, counts: np.ndarray) -> str:
    unseen = int((counts == 0).sum())
    rows = "1 row" if counts.size == 1 else f"{counts.size:,} rows"
    return f"{short_name(name)}: {rows}" + (f", {unseen:,} without queries" if unseen else "")
