"""What loss do bytes buy, by method? Records of runs in, figure out. A figure never trains."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from mixdim.planning.budget import format_bytes
from mixdim.runs.figures.plots import as_it_is, short_name
from mixdim.runs.sweeps.frame import Row, base_dims, best_by_method, over_seeds, run_frame
from mixdim.runs.sweeps.objective import Summary, best_possible, common_task
from mixdim.runs.sweeps.recommend import select
from mixdim.runs.sweeps.records import Record

# Those of the report's page: markers differ for the colour-blind, and in grey.
COLORS = (
    *("#0072b2", "#b35900", "#00785a", "#a3338c", "#806600", "#c02a2a"),
    *("#5b4bb7", "#4d4d4d", "#00838f", "#e0457b", "#5a3310"),
)
MARKERS = "osD^vP<>*Xdh"
MOST_TICKS = 9
DASHES = {32: "-", 8: "--", 4: ":"}  # by bits


def methods_figure(records: Iterable[Record], *, title: str | None = None) -> Figure:
    """Draw test loss against bytes of embeddings, one line a method, for records of one model and data.

    A point is the width that was best in validation, its bar one standard deviation over the seeds each
    way. A dashed line is the reference, the largest uniform run; bytes are also told as its share.
    """
    records = select(records)
    settings = over_seeds(best_by_method(run_frame(records))).filter(pl.col("test").is_not_null())
    if settings.is_empty():
        raise ValueError("no run of a method is finished that has a test loss")
    summaries = [records[numbers[0]].summary or {} for numbers in settings["numbers"]]
    figure = Figure(figsize=(9.2, 5.0), layout="constrained")
    axes = figure.add_subplot()
    listed = settings.sort(
        *("bits", "place", "plain_method", "embedding_bytes"),
        descending=[True, False, False, False],
        maintain_order=True,
    )
    plain_names = listed["plain_method"].unique(maintain_order=True).to_list()
    lines = []
    for (name, _), own in listed.group_by("plain_method", "bits", maintain_order=True):
        lines.append(_draw(axes, own, plain_names.index(name)))
    uniform = settings.filter("uniform").sort("embedding_bytes", maintain_order=True)
    reference = None if uniform.is_empty() else uniform.row(-1, named=True)
    lines += _draw_levels(axes, settings, reference, summaries)
    _label_bytes(axes, min(settings["embedding_bytes"]), reference)
    task = common_task(summaries)
    axes.set(title=as_it_is(title or "Methods at equal bytes"), ylabel=f"test {task.objective_words}")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    labels = [str(line.get_label()) for line in lines]  # stated, or a name such as _own has no entry
    figure.legend(lines, labels, loc="outside right upper", fontsize=9, frameon=False, handlelength=3)
    return figure


def _draw(axes: Axes, settings: pl.DataFrame, number: int) -> Line2D:
    """A line; "mixed, 8 bits" has the colour and the marker of "mixed", but empty ones, and dashes."""
    first, color = settings.row(0, named=True), COLORS[number % len(COLORS)]
    (line,) = axes.plot(
        settings["embedding_bytes"].to_list(),
        settings["test"].to_list(),
        color=color,
        linestyle=DASHES[first["bits"]],
        marker=MARKERS[number % len(MARKERS)],
        markerfacecolor=color if first["bits"] == 32 else "white",
        markersize=6,
        label=as_it_is(short_name(first["method"])),
    )
    for place, mean, std in settings.select("embedding_bytes", "test", "test_std").iter_rows():
        if std is not None:
            axes.errorbar(place, mean, std, color=color, elinewidth=1, capsize=3)
    return line


def _draw_levels(
    axes: Axes, settings: pl.DataFrame, reference: Row | None, summaries: Sequence[Summary]
) -> list[Line2D]:
    """What to compare with: the reference and, near to it, the least loss that anybody can expect."""
    levels = {}
    if reference is not None:
        label = f"uniform of width {base_dims(reference)}: {reference['test']:.4f}"
        levels[label] = (reference["test"], "--")
    means = settings["test"].to_list()
    for bound in sorted({b for summary in summaries if (b := best_possible(summary)) is not None}):
        if bound >= 2 * min(means) - max(means):  # far below, it would squeeze all lines into a stripe
            levels[f"best possible: {bound:.4f}"] = (bound, ":")
    return [
        axes.axhline(loss, color="0.35", linestyle=style, linewidth=1, label=label)
        for label, (loss, style) in levels.items()
    ]


def _label_bytes(axes: Axes, smallest: float, reference: Row | None) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_minor_formatter(NullFormatter())
    if reference is None:
        axes.set_xlabel("bytes of embeddings (log scale)")
        axes.xaxis.set_major_locator(LogLocator(base=2, numticks=8))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda place, _: format_bytes(int(place))))
        return
    whole = reference["embedding_bytes"]
    halvings = range(int(whole / smallest).bit_length() + 1)
    halvings = halvings[:: -(-len(halvings) // MOST_TICKS)]
    low, high = axes.get_xlim()
    ticks = {whole / 2**n: f"1/{2**n}" if n else "reference" for n in halvings}
    ticks = {place: share for place, share in ticks.items() if low <= place <= high}
    axes.set_xlabel("bytes of embeddings (log scale), and as a share of the reference")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(FixedLocator(list(ticks)))
    labels = [f"{format_bytes(int(place))}\n{share}" for place, share in ticks.items()]
    axes.set_xticklabels(labels, fontsize=9)
