"""What loss do bytes buy, by method? Records of runs in, figure out. A figure never trains."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from mixdim.planning.budget import format_bytes
from mixdim.runs.figures.plots import as_it_is, short_name
from mixdim.runs.sweeps.best_by_method import best_by_method
from mixdim.runs.sweeps.methods import place_among_methods
from mixdim.runs.sweeps.objective import best_possible, common_task
from mixdim.runs.sweeps.recommend import Measured, Spread, select
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
    best = [one for one, _ in best_by_method(select(records)) if one.loss("test") is not None]
    if not best:
        raise ValueError("no run of a method is finished that has a test loss")
    figure = Figure(figsize=(9.2, 5.0), layout="constrained")
    axes = figure.add_subplot()
    pairs = {(one.plain_method, one.bits) for one in best}
    methods = sorted(pairs, key=lambda pair: place_among_methods(*pair))
    plain_names = list(dict.fromkeys(name for name, _ in methods))
    lines = []
    for name, bits in methods:
        own = [one for one in best if (one.plain_method, one.bits) == (name, bits)]
        lines.append(_draw(axes, own, plain_names.index(name)))
    uniform = [one for one in best if one.is_uniform]
    reference = max(uniform, key=lambda one: one.embedding_bytes, default=None)
    lines += _draw_levels(axes, best, reference)
    _label_bytes(axes, best, reference)
    task = common_task([_summary(one) for one in best])
    axes.set(title=as_it_is(title or "Methods at equal bytes"), ylabel=f"test {task.objective_words}")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    labels = [str(line.get_label()) for line in lines]  # stated, or a name such as _own has no entry
    figure.legend(lines, labels, loc="outside right upper", fontsize=9, frameon=False, handlelength=3)
    return figure


def _draw(axes: Axes, measured: Sequence[Measured], number: int) -> Line2D:
    """A line; "mixed, 8 bits" has the colour and the marker of "mixed", but empty ones, and dashes."""
    measured = sorted(measured, key=lambda one: one.embedding_bytes)
    places, losses = [one.embedding_bytes for one in measured], [_test(one) for one in measured]
    bits, color = measured[0].bits, COLORS[number % len(COLORS)]
    (line,) = axes.plot(
        places,
        [loss.mean for loss in losses],
        color=color,
        linestyle=DASHES[bits],
        marker=MARKERS[number % len(MARKERS)],
        markerfacecolor=color if bits == 32 else "white",
        markersize=6,
        label=as_it_is(short_name(measured[0].method)),
    )
    for place, loss in zip(places, losses, strict=True):
        if loss.std is not None:
            axes.errorbar(place, loss.mean, loss.std, color=color, elinewidth=1, capsize=3)
    return line


def _draw_levels(axes: Axes, measured: Sequence[Measured], reference: Measured | None) -> list[Line2D]:
    """What to compare with: the reference and, near to it, the least loss that anybody can expect."""
    levels = {}
    if reference is not None:
        label = f"uniform of width {reference.base_dims}: {_test(reference).mean:.4f}"
        levels[label] = (_test(reference).mean, "--")
    means = [_test(one).mean for one in measured]
    for bound in sorted({b for one in measured if (b := best_possible(_summary(one))) is not None}):
        if bound >= 2 * min(means) - max(means):  # far below, it would squeeze all lines into a stripe
            levels[f"best possible: {bound:.4f}"] = (bound, ":")
    return [
        axes.axhline(loss, color="0.35", linestyle=style, linewidth=1, label=label)
        for label, (loss, style) in levels.items()
    ]


def _label_bytes(axes: Axes, measured: Sequence[Measured], reference: Measured | None) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_minor_formatter(NullFormatter())
    if reference is None:
        axes.set_xlabel("bytes of embeddings (log scale)")
        axes.xaxis.set_major_locator(LogLocator(base=2, numticks=8))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda place, _: format_bytes(int(place))))
        return
    whole = reference.embedding_bytes
    halvings = range(int(whole / min(one.embedding_bytes for one in measured)).bit_length() + 1)
    halvings = halvings[:: -(-len(halvings) // MOST_TICKS)]
    low, high = axes.get_xlim()
    ticks = {whole / 2**n: f"1/{2**n}" if n else "reference" for n in halvings}
    ticks = {place: share for place, share in ticks.items() if low <= place <= high}
    axes.set_xlabel("bytes of embeddings (log scale), and as a share of the reference")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(FixedLocator(list(ticks)))
    labels = [f"{format_bytes(int(place))}\n{share}" for place, share in ticks.items()]
    axes.set_xticklabels(labels, fontsize=9)


def _test(one: Measured) -> Spread:
    loss = one.loss("test")
    assert loss is not None
    return loss


def _summary(one: Measured) -> dict[str, Any]:
    summary = one.records[0].summary
    assert summary is not None
    return summary
