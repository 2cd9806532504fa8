"""Pictures: values in, figure out. A figure never computes what it shows."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from mixdim._util.files import follow_links, write_atomically
from mixdim._util.text import printable
from mixdim.planning.plan import Plan

FORMATS = (".png", ".svg", ".pdf")
MOST_LABELS = 40
LONGEST_NAME = 40  # characters that leave room for a picture


def widths_figure(plans: Mapping[str, Plan], *, title: str | None = None) -> Figure:
    """Draw the width of every block, from popular to rare, one line for each labelled plan (Fig. 6).

    The plans must have the same blocks.
    """
    first = next(iter(plans.values()))
    names = [
        short_name(feature.name) + (f" {number}/{bands}" if (bands := len(feature.blocks)) > 1 else "")
        for feature in first.features
        for number in range(1, len(feature.blocks) + 1)
    ]
    by_popularity = sorted(range(len(names)), key=lambda i: -first.blocks[i].row_prob)
    figure = Figure(figsize=(max(6.0, min(0.32 * len(names), 16.0)) + 1.5, 4.6), layout="constrained")
    axes = figure.add_subplot()
    colors = mpl.colormaps["viridis"]  # legible in grey and to the colour-blind
    for number, (label, plan) in enumerate(plans.items()):
        widths = [plan.blocks[i].dim for i in by_popularity]
        axes.plot(
            range(len(widths)),
            widths,
            drawstyle="steps-mid",
            marker="osD^vP*X"[number % 8],
            markersize=4.5,
            color=colors(0.9 * number / max(len(plans) - 1, 1)),
            label=f"{label}: base_dim {plan.base_dim:,}, {plan.num_parameters / 1e6:,.3g}M parameters",
        )
    if any(block.dim == 0 for plan in plans.values() for block in plan.blocks):
        axes.set_yscale("symlog", base=2, linthresh=1)  # a logarithm that goes on to 0 below 1
        axes.set_ylim(bottom=-0.2)
    else:
        axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda width, _: f"{width:g}"))
    axes.set_ylabel("width (log scale)")
    axes.set_xlabel("block, from the most to the least popular row")
    if len(names) <= MOST_LABELS:
        labels = [as_it_is(f"{names[i]} ({_short(first.blocks[i].size)})") for i in by_popularity]
        axes.set_xticks(range(len(names)), labels, rotation=60, ha="right", fontsize=7)
        axes.set_xlabel("block (rows), from the most to the least popular row")
    axes.grid(axis="y", alpha=0.3)
    axes.set_title(title or "Width of each block")
    axes.legend(fontsize=8)
    return figure


def as_it_is(text: str) -> str:
    """A text from a user, in which matplotlib would take $...$ for a formula."""
    return text.replace("$", r"\$")


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure in the format that the file's name ends in."""
    path = Path(path)
    check_picture(path)
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix.lower()[1:], dpi=150)
    write_atomically(path, drawn.getvalue())


def check_picture(path: Path) -> None:
    """Refuse a name that no picture can have, before hours are spent on what it would show."""
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"a picture's name must end in {', '.join(FORMATS)}, got {path}")
    if not (folder := follow_links(path).parent).is_dir():
        raise FileNotFoundError(f"cannot write {path}: there is no directory {folder}")


def short_name(name: str) -> str:
    """A feature's name on one line; of a very long one its beginning and its end."""
    name, half = printable(name), LONGEST_NAME // 2
    return name if len(name) <= LONGEST_NAME else f"{name[:half]}…{name[-half:]}"


def _short(number: int) -> str:
    for unit, size in (("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)
