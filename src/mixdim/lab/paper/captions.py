"""What records say in each of the paper's figures, in a sentence. Draws and trains nothing."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

from mixdim.lab.paper.comparisons import paired
from mixdim.lab.paper.curves import (
    Measure,
    by_line,
    by_setting,
    mean_of,
    num_bands,
    num_parameters,
    objective,
    objective_label,
    on_test,
    on_train,
    summary_of,
    temperature,
)
from mixdim.runs.sweeps.methods import method_of
from mixdim.runs.sweeps.records import Record


def listed(head: str, parts: Iterable[str]) -> str:
    """A head and a line for each part.

    >>> print(listed("Sizes", ["a: 1", "b: 2"]))
    Sizes:
    - a: 1
    - b: 2
    """
    return "\n".join([f"{head}:", *(f"- {part}" for part in parts)])


def winners(records: Sequence[Record], name: str) -> str:
    """Within each budget: which temperature is best, and its difference to uniform, paired by seed."""
    measure, lower = on_test(name), name != "accuracy"
    budgets: dict[int, list[list[Record]]] = {}
    for same in by_setting([r for r in records if r.config["model_budget"] is not None]):
        budgets.setdefault(same[0].config["model_budget"], []).append(same)
    parts = []
    for budget, settings in sorted(budgets.items()):
        uniform = next(same for same in settings if temperature(same[0]) == 0)
        best = (min if lower else max)(settings, key=lambda same: mean_of(same, measure))
        found = paired(best, uniform, measure)
        ends = (
            f" ({found.low:+.4f} to {found.high:+.4f})"
            if best is not uniform and found.seeds > 1
            else ""
        )
        behind = "" if best is uniform else f", {found.mean:+.4f}{ends} against uniform"
        parts.append(f"{budget:,} parameters: {method_of(best[0])} {mean_of(best, measure):.4f}{behind}")
    return listed(f"Best test {name.replace('_', ' ')} by budget", parts)


def by_popularity(records: Sequence[Record]) -> str:
    """On popular and on rare items: mixed minus uniform at each budget's best temperature."""
    sentences = []
    for third in ("popular", "rare"):
        measure = on_test(objective(records), third)
        uniform = {
            same[0].config["model_budget"]: same for same in by_setting(by_line(records)["uniform"])
        }
        parts = [
            f"{label} {statistics.fmean(gains):+.4f}"
            for label, gains in _gains(records, uniform, measure).items()
        ]
        sentences.append(f"{third} items: {', '.join(parts)}")
    return listed(f"Test {objective_label(records)} minus uniform's, mean over budgets", sentences)


def gaps(records: Sequence[Record]) -> str:
    """Training and test loss of each temperature at one budget."""
    loss = objective(records)
    parts = [
        f"{method_of(same[0])}: training {mean_of(same, on_train(loss)):.4f}, test "
        f"{mean_of(same, on_test(loss)):.4f} (popular {mean_of(same, on_test(loss, 'popular')):.4f}, "
        f"rare {mean_of(same, on_test(loss, 'rare')):.4f})"
        for same in sorted(by_setting(records), key=lambda same: temperature(same[0]))
    ]
    return listed(f"All items, {objective_label(records)}", parts)


def number_of_bands(records: Sequence[Record]) -> str:
    """Test loss by number of bands, mixed and uniform."""
    loss = on_test(objective(records))
    sentences = []
    for label, runs in by_line(records).items():
        settings = sorted(by_setting(runs), key=lambda same: num_bands(same[0]))
        parts = [f"{num_bands(same[0]):.0f}: {mean_of(same, loss):.4f}" for same in settings]
        sentences.append(f"{label}: {', '.join(parts)}")
    return listed(f"Test {objective_label(records)} by bands", sentences)


def smallest_and_largest(
    records: Sequence[Record], head: str, measure: Measure, show: Callable[[float], str]
) -> str:
    """A measure of each line's smallest and largest model."""
    parts = []
    for label, runs in by_line(records).items():
        settings = by_setting(runs)
        first, last = settings[0], settings[-1]
        parts.append(
            f"{label}: {show(mean_of(first, measure))} with {num_parameters(first[0]):,.0f} parameters, "
            f"{show(mean_of(last, measure))} with {num_parameters(last[0]):,.0f}"
        )
    return listed(head, parts)


def he_against_xavier(records: Sequence[Record]) -> str:
    """The loss from He's start minus that from Xavier's, paired by seed, at each width."""
    loss = on_test(objective(records))
    starts = by_line(records, lambda record: record.config["init"])
    he = {summary_of(same[0])["base_dim"]: same for same in by_setting(starts["he_fan_out"])}
    parts = []
    for same in by_setting(starts["xavier"]):
        width = summary_of(same[0])["base_dim"]
        parts.append(f"width {width}: {paired(he[width], same, loss).mean:+.4f}")
    return listed(f"Test {objective_label(records)} of He fan-out minus Xavier", parts)


def last_losses(records: Sequence[Record]) -> str:
    """Where each learning curve ends."""
    parts = [
        f"{method_of(same[0])} of {num_parameters(same[0]):,.0f} parameters "
        f"{statistics.fmean(record.curve[-1]['loss'] for record in same):.4f}"
        for same in by_setting(records)
    ]
    return listed(f"Validation {objective_label(records)} at the end", parts)


def _gains(
    records: Sequence[Record], uniform: dict[int, list[Record]], measure: Measure
) -> dict[str, list[float]]:
    gains: dict[str, list[float]] = {}
    for label, runs in by_line(records).items():
        if label.startswith("temperature"):
            gains[label] = [
                paired(same, uniform[same[0].config["model_budget"]], measure).mean
                for same in by_setting(runs)
            ]
    return gains
