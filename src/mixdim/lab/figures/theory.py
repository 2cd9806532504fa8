"""Pictures of the theory's experiments: records in, figure out. A figure never runs an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from mixdim.lab.trials.findings import fit_slope, needs_of, policy_label
from mixdim.lab.trials.records import Record, having, settings_of

MARKERS = "osD^vP*X"
MOST_CURVES = 3  # rates whose probability of recovery is drawn: the first, the middle, the last
ERRORS_SHOWN = (1e-16, 1e4)  # what diverged is beyond the upper edge
# Colours far apart in lightness, and lines that differ without colour.
LOOK_OF_METHOD: dict[str, dict[str, Any]] = {
    "mixed": {"color": mpl.colormaps["viridis"](0.1), "marker": "o", "linestyle": "-"},
    "agnostic": {"color": mpl.colormaps["viridis"](0.65), "marker": "s", "linestyle": "--"},
}


def two_block_figure(records: Sequence[Record]) -> Figure:
    """Draw the samples needed against 1/epsilon, and the probability of recovery at several epsilon.

    Bars reach from the seed that needed least to the one that needed most. The orders of the paper
    have no constant: they are drawn through the first point.
    """
    rates = settings_of(records, "rate")
    chosen = [rates[i] for i in sorted({0, len(rates) // 2, len(rates) - 1})][:MOST_CURVES]
    figure = Figure(figsize=(11.5, 6.2), layout="constrained")
    left, right = figure.subfigures(1, 2, squeeze=False)[0]
    _draw_needs(left.subplots(), records)
    panels = right.subplots(len(chosen), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, rate in zip(panels, chosen, strict=True):
        _draw_recovery(axes, having(records, rate=rate))
    panels[0].legend(fontsize=7, loc="upper left")
    panels[len(chosen) // 2].set_ylabel("probability of recovery (share of seeds)")
    panels[-1].set_xlabel("expected samples N (log scale)")
    size, seeds = records[0]["size"], settings_of(records, "seed")
    figure.suptitle(
        f"Two blocks of {size} x {size}, the rare one of rank {records[0]['rare_rank']} "
        f"with share ε of the samples; {len(seeds)} seeds"
    )
    return figure


def allocation_figure(records: Sequence[Record]) -> Figure:
    """Draw popularity-weighted MSE against budget, and below it the same over the optimum's.

    One column a decay, one line a policy; medians over seeds, with quartiles as bars below.
    """
    decays, policies = settings_of(records, "decay"), settings_of(records, "policy")
    figure = Figure(figsize=(4.2 * max(len(decays), 2), 7.4), layout="constrained")
    panels = figure.subplots(2, len(decays), squeeze=False, sharex=True, sharey="row")
    colors = mpl.colormaps["viridis"]  # legible in grey and to the colour-blind
    for column, decay in enumerate(decays):
        for number, policy in enumerate(policies):
            here = having(records, decay=decay, policy=policy)
            look = {
                "marker": MARKERS[number % len(MARKERS)],
                "linestyle": "-" if policy.startswith("temperature") else "--",
                "color": colors(0.95 * number / max(len(policies) - 1, 1)),
                "markersize": 4.5,
                "label": policy_label(policy),
            }
            shares, errors, _ = _quartiles(here, "error")
            panels[0, column].plot(shares, errors, **look)
            shares, ratios, bars = _quartiles(here, "over_optimum")
            beside = np.array(shares) * 1.02 ** (number - len(policies) / 2)  # bars must not overlap
            panels[1, column].errorbar(beside, ratios, bars, capsize=2, elinewidth=0.8, **look)
        panels[0, column].set_title(f"singular values fall as k^-{decay:g}")
        panels[1, column].set_xlabel("budget, share of all parameters (log scale)")
    for axes in panels.flat:
        axes.set(xscale="log", yscale="log")
        _log_ticks(axes.xaxis, ".0%")
        _tidy(axes)
    for axes in panels[1]:
        _log_ticks(axes.yaxis, "g")
    panels[0, 0].set_ylabel("popularity-weighted MSE (log scale)")
    panels[1, 0].set_ylabel("over the optimum's (log scale)")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    first = records[0]
    figure.suptitle(
        f"{len(first['row_sizes'])} x {len(first['col_sizes'])} blocks of "
        f"{min(first['row_sizes'])} to {max(first['row_sizes'])} rows and "
        f"{min(first['col_sizes'])} to {max(first['col_sizes'])} columns; "
        f"{len(settings_of(records, 'seed'))} seeds"
    )
    return figure


def completion_figure(records: Sequence[Record]) -> Figure:
    """Draw the relative error and the share of seeds recovered, against the share of entries seen.

    One column for the matrix, one for the tensor. Bars reach from the best to the worst seed.
    """
    kinds = settings_of(records, "kind")
    figure = Figure(figsize=(5.2 * len(kinds), 6.6), layout="constrained")
    panels = figure.subplots(2, len(kinds), squeeze=False, sharex=True, sharey="row")
    looks = {"als": LOOK_OF_METHOD["mixed"], "sgd": LOOK_OF_METHOD["agnostic"]}
    for (errors, recovered), kind in zip(panels.T, kinds, strict=True):
        of_kind = having(records, kind=kind)
        for method in settings_of(of_kind, "method"):
            here = having(of_kind, method=method)
            shares = settings_of(here, "share")
            by_share = [[r["error"] for r in having(here, share=share)] for share in shares]
            look = {**looks[method], "markersize": 4.5, "label": method.upper()}
            errors.errorbar(shares, *_range(by_share, np.median), capsize=2, **look)
            flags = [[r["recovered"] for r in having(here, share=share)] for share in shares]
            recovered.plot(shares, [np.mean(line) for line in flags], **look)
        first = of_kind[0]
        limit = first["unknowns"] / np.prod(first["sizes"])
        for axes in (errors, recovered):
            axes.axvline(limit, color="0.35", linestyle=":", label="as many entries as unknowns")
            axes.set_xscale("log")
            _log_ticks(axes.xaxis, ".0%")
            _tidy(axes)
        sizes = " x ".join(map(str, first["sizes"]))
        errors.set(title=f"{kind}, {sizes}, rank {first['rank']}", yscale="log", ylim=ERRORS_SHOWN)
        errors.legend(fontsize=8)
        recovered.set_xlabel("share of entries seen (log scale)")
    panels[0, 0].set_ylabel("relative error of all entries (median)")
    panels[1, 0].set_ylabel("share of seeds recovered")
    figure.suptitle(f"Completion from a uniform sample; {len(settings_of(records, 'seed'))} seeds")
    return figure


def _draw_needs(axes: Axes, records: Sequence[Record]) -> None:
    for method, look in LOOK_OF_METHOD.items():
        needs = [need for need in needs_of(records, method) if need.mean is not None]
        inverse = [1 / need.rate for need in needs]
        means = [need.mean for need in needs]
        slope = fit_slope(inverse, means)
        fitted = "" if slope is None else f", exponent {slope}"
        known = [[n for n in need.samples if n is not None] for need in needs]
        points = {**look, "linestyle": "none", "label": f"{method}{fitted}"}
        axes.errorbar(inverse, *_range(known, _geometric_mean), capsize=3, **points)
        if slope is not None:
            line = np.exp(slope.intercept) * np.array(inverse) ** slope.value
            axes.plot(inverse, line, color=look["color"], linestyle=look["linestyle"])
        bounds = having(records, kind="bound", method=method)
        if means:
            by_rate = {record["rate"]: record["order"] for record in bounds}
            orders = np.array([by_rate[need.rate] for need in needs])
            scaled = orders * (means[0] or 0) / orders[0]
            thin = {"color": look["color"], "linewidth": 1}
            axes.plot(inverse, scaled, linestyle=":", label=f"{method}: paper's order", **thin)
    bounds = having(records, kind="bound", method="agnostic")
    axes.plot(
        [1 / record["rate"] for record in bounds],
        [record["largest_samples"] for record in bounds],
        color="0.5",
        linestyle="-.",
        label="most that can be drawn",
    )
    axes.set(xscale="log", yscale="log", xlabel="1/ε (log scale)")
    axes.set_ylabel("samples needed, mean and range over seeds (log scale)")
    axes.set_xticks([1 / rate for rate in settings_of(records, "rate")])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda inverse, _: f"{inverse:.3g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    _log_ticks(axes.yaxis, ",.0f")
    _tidy(axes)
    axes.legend(fontsize=8)


def _draw_recovery(axes: Axes, records: Sequence[Record]) -> None:
    for method, look in LOOK_OF_METHOD.items():
        (bound,) = having(records, kind="bound", method=method)
        (need,) = needs_of(records, method)
        known = sorted(n for n in need.samples if n is not None)
        # Samples are nested, so a seed that recovers from N is taken to recover from more.
        counts = [bound["samples"][0], *known, bound["largest_samples"]]
        shares = [i / len(need.samples) for i in [*range(len(known) + 1), len(known)]]
        axes.step(
            counts,
            shares,
            where="post",
            color=look["color"],
            linestyle=look["linestyle"],
            marker=look["marker"],
            markersize=4,
            markevery=slice(1, len(known) + 1),
            label=method,
        )
        axes.plot(
            bound["samples"],
            bound["probability"],
            color=look["color"],
            linestyle=":",
            linewidth=1.2,
            label=f"{method}: bound",
        )
    axes.set(xscale="log", ylim=(-0.05, 1.1))
    axes.set_title(f"ε = {records[0]['rate']:g}", fontsize=9, loc="right", pad=2)
    _log_ticks(axes.xaxis, ",.0f")
    _tidy(axes)


def _quartiles(
    records: Sequence[Record], name: str
) -> tuple[list[float], list[float], list[list[float]]]:
    """The budgets, and at each the median over seeds and how far the quartiles are from it."""
    shares = settings_of(records, "budget_share")
    values = [[record[name] for record in having(records, budget_share=share)] for share in shares]
    quartiles = [np.quantile(line, (0.25, 0.5, 0.75)).tolist() for line in values]
    return shares, *_range(quartiles, np.median)


def _range(values: Sequence[Sequence[float]], middle: Any) -> tuple[list[float], list[list[float]]]:
    """The middle of each line of values, and how far its least and largest are from it."""
    middles = [float(middle(line)) for line in values]
    # Rounding can put a mean of equal values just outside of them.
    below = [max(m - min(line), 0.0) for m, line in zip(middles, values, strict=True)]
    above = [max(max(line) - m, 0.0) for m, line in zip(middles, values, strict=True)]
    return middles, [below, above]


def _geometric_mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def _log_ticks(axis: Axis, form: str) -> None:
    """Label 1, 2 and 5 of every power of ten: a span below one power has labels too."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: format(value, form)))
    axis.set_minor_formatter(NullFormatter())


def _tidy(axes: Axes) -> None:
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
