"""The paper's figures of lines: records in, figure out. A figure never trains, and selects no runs.

Every function draws one line a temperature, a standard deviation over seeds as error bars, and the
caption beneath. Legible in grey and to the colour-blind: viridis, a marker and a style for each line.
"""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from mixdim.lab.paper.curves import (
    Measure,
    Point,
    by_line,
    by_setting,
    num_parameters,
    objective,
    objective_label,
    on_test,
    points,
    summary_of,
    train_seconds,
)
from mixdim.runs.figures.plots import as_it_is
from mixdim.runs.sweeps.methods import method_of
from mixdim.runs.sweeps.objective import best_possible
from mixdim.runs.sweeps.records import Record

LINE_STYLES = ("-", "--", "-.", (0, (6, 1.5, 1, 1.5, 1, 1.5)), (0, (3, 1.5)), ":")
MARKERS = "osD^vP*X"
PARAMETERS = "parameters of the whole model (log scale)"
SECONDS = "seconds of training (log scale)"


def learning_curves(records: Sequence[Record], *, title: str, caption: str) -> Figure:
    """Draw validation loss against samples seen (Fig. 2a), one line a setting, mean over seeds.

    Shaded is one standard deviation over seeds.
    """
    figure, axes = canvas(title, caption)
    settings = [same for runs in by_line(records).values() for same in by_setting(runs)]
    for number, same in enumerate(settings):
        steps = [look["step"] for look in same[0].curve]
        losses = [[look["loss"] for look in record.curve] for record in same]
        looks = list(zip(*losses, strict=True))
        mean = [statistics.fmean(values) for values in looks]
        std = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in looks]
        samples = [step * same[0].config["batch_size"] / 1e3 for step in steps]
        look = style(number, len(settings))
        axes.plot(samples, mean, label=_with_size(same[0]), **look)
        low, high = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
        axes.fill_between(samples, low, high, color=look["color"], alpha=0.15, linewidth=0)
    axes.set(xlabel="thousands of training samples seen")
    axes.set_ylabel(f"validation {objective_label(records)}")
    axes.legend(fontsize=8)
    return figure


def loss_against_parameters(records: Sequence[Record], *, title: str, caption: str) -> Figure:
    """Draw test loss against the whole model's parameters (Figs. 2b, 3a, 3d).

    Where the data is synthetic, a line shows the least loss that anybody can expect.
    """
    figure, axes = canvas(title, caption)
    draw_lines(axes, by_line(records), num_parameters, on_test(objective(records)))
    _draw_best_possible(axes, records)
    return _finished(figure, PARAMETERS, f"test {objective_label(records)}")


def loss_against_time(records: Sequence[Record], *, title: str, caption: str) -> Figure:
    """Draw test loss against the seconds that training took (Fig. 2c): one point a budget."""
    figure, axes = canvas(title, caption)
    draw_lines(axes, by_line(records), train_seconds, on_test(objective(records)))
    _draw_best_possible(axes, records)
    return _finished(figure, SECONDS, f"test {objective_label(records)}")


def initializations(records: Sequence[Record], *, title: str, caption: str) -> Figure:
    """Draw test loss against parameters, one line an initialisation (Fig. 7)."""
    figure, axes = canvas(title, caption)
    lines = by_line(records, lambda record: record.config["init"].replace("_", " ").capitalize())
    draw_lines(axes, lines, num_parameters, on_test(objective(records)))
    return _finished(figure, PARAMETERS, f"test {objective_label(records)}")


def accuracy_against_parameters(records: Sequence[Record], *, title: str, caption: str) -> Figure:
    """Draw test accuracy, in percent, against the whole model's parameters (Fig. 8)."""
    figure, axes = canvas(title, caption)
    accuracy = on_test("accuracy")
    draw_lines(axes, by_line(records), num_parameters, lambda record: 100 * accuracy(record))
    return _finished(figure, PARAMETERS, "test accuracy (%)")


def time_against_parameters(records: Sequence[Record], *, title: str, caption: str) -> Figure:
    """Draw the seconds that training took against the whole model's parameters (Fig. 9)."""
    figure, axes = canvas(title, caption)
    draw_lines(axes, by_line(records), num_parameters, train_seconds)
    axes.set_ylim(bottom=0)
    return _finished(figure, PARAMETERS, "seconds of training")


def canvas(title: str, caption: str, panels: int = 1) -> tuple[Figure, Any]:
    """A figure with its title and caption, and its axes: one, or a list of several that share y."""
    figure = Figure(figsize=(6.4 if panels == 1 else 5.2 * panels, 5.2), layout="constrained")
    drawn = figure.subplots(1, panels, squeeze=False, sharey=True)[0]
    figure.suptitle(title, fontsize=11)
    width = 100 if panels == 1 else 80 * panels
    # The label of the whole figure: what the layout makes room for, unlike free text.
    figure.supxlabel(textwrap.fill(as_it_is(caption), width), fontsize=7, color="0.25")
    for axes in drawn:
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, drawn[0] if panels == 1 else list(drawn)


def _finished(figure: Figure, across: str, upwards: str) -> Figure:
    """A figure of one panel with what its axes mean and its legend."""
    (axes,) = figure.axes
    axes.set_ylabel(upwards)
    log_axis(axes, across)
    axes.legend(fontsize=8)
    return figure


def style(number: int, of: int) -> dict[str, Any]:
    """How line `number` of `of` lines looks."""
    return {
        "color": mpl.colormaps["viridis"](0.85 * number / max(of - 1, 1)),
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": LINE_STYLES[number % len(LINE_STYLES)],
        "markersize": 5,
        "linewidth": 1.5,
    }


def draw_lines(
    axes: Axes,
    lines: Mapping[str, Sequence[Record]],
    x: Measure,
    y: Measure,
    label: Callable[[str], str] = lambda name: name,
) -> None:
    """Draw one line for each label, with a standard deviation over seeds as error bars."""
    for number, (name, records) in enumerate(lines.items()):
        draw_line(axes, points(records, x, y), label(name), **style(number, len(lines)))


def draw_line(axes: Axes, found: Sequence[Point], label: str, **look: Any) -> None:
    """Draw some points as a line, with their standard deviations as error bars."""
    axes.errorbar(
        [point.x for point in found],
        [point.mean for point in found],
        yerr=[point.std for point in found],
        capsize=2.5,
        elinewidth=1,
        label=label,
        **look,
    )


def log_axis(axes: Axes, label: str) -> None:
    """A logarithmic x axis with numbers a reader can read."""
    axes.set_xscale("log", base=2)
    low, high = axes.get_xlim()
    if high < 8 * low:  # powers of two would leave hardly a tick
        axes.xaxis.set_major_locator(MaxNLocator(6))
    else:
        axes.xaxis.set_major_locator(LogLocator(base=2, numticks=8))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: short(number)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(label)


def short(number: float) -> str:
    """A number with at most three digits and its unit.

    >>> short(2_097_152), short(65_536), short(12.5)
    ('2.1M', '65.5k', '12.5')
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def _draw_best_possible(axes: Axes, records: Sequence[Record]) -> None:
    known = {best_possible(summary_of(record)) for record in records}
    for bound in sorted(bound for bound in known if bound is not None):
        low, high = axes.get_ylim()
        if bound >= low - (high - low):
            axes.axhline(bound, color="0.35", linestyle=":", label=f"best possible: {bound:.4f}")
        else:  # the lines would be squeezed into what is left
            axes.plot([], [], " ", label=f"best possible, below: {bound:.4f}")


def _with_size(record: Record) -> str:
    summary = summary_of(record)
    size = f"width {summary['base_dim']}" if method_of(record) == "uniform" else ""
    inside = ", ".join(part for part in (size, f"{short(summary['num_parameters'])} parameters") if part)
    return f"{method_of(record)} ({inside})"
