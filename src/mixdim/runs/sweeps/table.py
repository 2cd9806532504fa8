"""How the results of a sweep look in a terminal. Knows nothing about how runs are made."""

from __future__ import annotations

import json
from collections.abc import Sequence

from mixdim._util.text import align
from mixdim.planning.budget import format_bytes, parse_bytes
from mixdim.runs.baseline_report import baselines_line
from mixdim.runs.config import comparable
from mixdim.runs.sweeps.best_by_method import best_by_method
from mixdim.runs.sweeps.budgets import asked_budget, mean_share_spent
from mixdim.runs.sweeps.methods import place_among_methods, temperature_of
from mixdim.runs.sweeps.recommend import Measured, Spread, loss_of, spread
from mixdim.runs.sweeps.records import SOLVED, Record, replicates


def sweep_table(records: Sequence[Record]) -> str:
    """One line a configuration: its test loss over the seeds, and how it differs from uniform.

    The loss is that of the weights that were best in validation. The difference is taken seed by seed
    to the uniform run within the same budget; each ± is a standard deviation over the seeds. "spent" is
    the share of its budget that a model has used.
    """
    groups = replicates(records)
    if not groups:
        return "no run is finished yet"
    uniform = {_rivalry(group[0]): group for group in groups if temperature_of(group[0]) == 0}
    loss = f"test {groups[0][0].loss_name}"
    head = ["budget", "spent", "temperature", "base_dim", "parameters", loss, "±", "minus uniform"]
    lines = [[*head, "±", "seeds", "s"]]
    for group in groups:
        one = Measured(tuple(group))
        rivals = uniform.get(_rivalry(group[0]), []) if one.temperature != 0 else []
        lines.append([
            asked_budget(group[0].config),
            _percent(mean_share_spent(group)),
            one.method,
            one.base_dims,
            f"{one.parameters:,.0f}",
            *_cells(one.loss("test"), ".4f"),
            *_cells(_paired_difference(group, rivals), "+.4f"),
            str(len(group)),
            f"{one.seconds:.0f}",
        ])  # fmt: skip
    return "\n".join([*align(lines), *_baselines(records)])


def comparison_table(records: Sequence[Record]) -> str:
    """Methods at equal bytes: of each size and method its best width by validation, and its test loss.

    The difference is taken seed by seed to uniform dimensions of the reference, which is the largest
    uniform run; each ± is a standard deviation over the seeds. "tried" says how many widths were.
    """
    best = best_by_method(records)
    if not best:
        return "no run is finished yet"
    best.sort(
        key=lambda entry: (
            -_asked_bytes(entry[0]),
            place_among_methods(entry[0].plain_method, entry[0].bits),
        )
    )
    whole = _asked_bytes(best[0][0])
    uniform = [one for one, _ in best if one.is_uniform]
    reference = list(uniform[0].records) if uniform else []
    loss = f"test {best[0][0].records[0].loss_name}"
    head = ["at most", "share", "method", "base_dim", "bytes", "spent", loss, "±", "minus reference"]
    lines = [[*head, "±", "tried", "seeds", "s"]]
    for one, tried in best:
        rivals = [] if list(one.records) == reference else reference
        lines.append([
            format_bytes(_asked_bytes(one)),
            f"1/{whole / _asked_bytes(one):.3g}",
            one.method,
            one.base_dims,
            format_bytes(int(one.embedding_bytes)),
            _percent(mean_share_spent(one.records)),
            *_cells(one.loss("test"), ".4f"),
            *_cells(_paired_difference(one.records, rivals), "+.4f"),
            str(tried),
            str(len(one.records)),
            f"{one.seconds:.0f}",
        ])  # fmt: skip
    return "\n".join([*align(lines), *_baselines(records)])


def _baselines(records: Sequence[Record]) -> list[str]:
    """A line below a table: what simple models reach on the same data."""
    line = baselines_line([record.summary for record in records if record.summary])
    return [] if line is None else ["", line]


def _asked_bytes(one: Measured) -> int:
    return parse_bytes(one.records[0].config["budget"])


def _rivalry(record: Record) -> str:
    """What a mixed run has in common with the uniform one that it is compared with."""
    options = comparable(record.config)
    own = {
        "seed",
        "data",
        "base_dim",
        "temperature",
        "rounding",
    }  # of one width, no rounding does anything
    own |= SOLVED if record.config["model_budget"] else set()
    return json.dumps({name: value for name, value in options.items() if name not in own})


def _paired_difference(group: Sequence[Record], rivals: Sequence[Record]) -> Spread | None:
    theirs = {rival.config["seed"]: loss_of(rival, "test") for rival in rivals}
    gains = []
    for record in group:
        mine, other = loss_of(record, "test"), theirs.get(record.config["seed"])
        if mine is not None and other is not None:
            gains.append(mine - other)
    return spread(gains) if gains else None


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _cells(value: Spread | None, form: str) -> list[str]:
    if value is None:
        return ["", ""]
    return [f"{value.mean:{form}}", "" if value.std is None else f"{value.std:.4f}"]
