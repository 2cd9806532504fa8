"""How a plan looks in a terminal. Knows nothing about how to make one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mixdim._util.text import align, printable
from mixdim.planning.budget import BYTES_PER_PARAMETER, format_bytes

if TYPE_CHECKING:
    from mixdim.planning.plan import Plan

MOST_LINES = 60  # a longer table shows its beginning and its end
LAST_LINES = 15


def plan_table(plan: Plan) -> str:
    """Write a plan as a table with one line a block, its cost, and what to know about it."""
    head = f"Mixed dimension plan: base_dim {plan.base_dim}, {rule_in_words(plan.provenance)}"
    return "\n".join([head, "", *_table(plan), "", *cost_lines(plan), *map(printable, notes(plan))])


def rule_in_words(provenance: Mapping[str, Any]) -> str:
    """How widths were chosen: "temperature 0.3" is the power law, others are named.

    >>> rule_in_words({"rule": "lifted", "dim": 2})
    'made by the rule lifted (dim 2)'
    """
    arguments = {name: value for name, value in provenance.items() if name != "rule"}
    filled = ", filling the budget" if provenance.get("rounding") == "fill" else ""
    if provenance["rule"] == "power_law":
        return f"temperature {provenance['temperature']:g}{filled}"
    if provenance["rule"] == "scaled_power_law":
        return f"temperature {provenance['temperature']:g}, scaled to the budget{filled}"
    if provenance["rule"] == "compressed":
        return "chosen from trained tables"
    if provenance["rule"] == "by_hand" and "was" in provenance:
        return f"{rule_in_words(provenance['was'])}, then changed by hand"
    if provenance["rule"] == "quantized" and {"was", "bits"} <= provenance.keys():
        return f"{rule_in_words(provenance['was'])}, quantized to {provenance['bits']} bits"
    if provenance["rule"] == "folded" and "was" in provenance:
        return f"{rule_in_words(provenance['was'])}, small blocks folded"
    listed = ", ".join(f"{name} {value}" for name, value in arguments.items())
    return printable(f"made by the rule {provenance['rule']}" + (f" ({listed})" if listed else ""))


def cost_lines(plan: Plan) -> list[str]:
    """What the plan costs: parameters, bytes, bytes to train, and the uniform width for the same."""
    id_maps, numbers = "", format_bytes(BYTES_PER_PARAMETER * plan.num_rows)
    if plan.id_map_bytes:
        id_maps = f", {format_bytes(plan.id_map_bytes)} of it the rank of each id"
    shared = f", {plan.cost.shared:,} in shared arrays" if plan.cost.shared else ""
    parameters = (
        f"{plan.num_parameters:,} parameters: {plan.table_parameters:,} in tables, "
        f"{plan.projection_parameters:,} in projections{shared}"
    )
    size = (
        f"{format_bytes(plan.nbytes())} in float32, "
        f"{format_bytes(plan.nbytes(optimizer='amsgrad'))} with AMSGrad state{id_maps}"
    )
    if plan.untrained_bytes:
        size = (
            f"{format_bytes(plan.nbytes())}, {format_bytes(plan.untrained_bytes)} of it codes, steps "
            f"and projections of quantized blocks, which are not trained{id_maps}"
        )
    return [
        parameters,
        size,
        f"the cost of uniform width {plan.equivalent_uniform_dim:.3g}",
        f"a model's first-order weights or biases, if it has any, add {numbers}",
    ]


def notes(plan: Plan) -> list[str]:
    """What a reader of the plan should know and might not see in its table."""
    lines = [
        f"note: {feature.name} has {len(feature.blocks)} of the {feature.requested_bands} bands "
        "requested: single rows hold more than a band's share of the queries, or there are too few rows"
        for feature in plan.features
        if len(feature.blocks) < feature.requested_bands
    ]
    if plan.shuffled_orders:
        lines.append(
            f"note: the ids of {', '.join(plan.shuffled_orders)} are not in order of popularity: "
            "the plan has their order, and a layer of it holds the rank of each"
        )
    return lines


def _table(plan: Plan) -> list[str]:
    """A line a block; where some are not trained, bytes tell what it costs, else parameters."""
    in_bytes = plan.untrained_bytes > 0
    unit, size = ("bytes", 4) if in_bytes else ("parameters", 1)
    header = ["feature", "band", "rows", "dim", "row prob", unit, "share"]
    lines, in_all = [], plan.nbytes() if in_bytes else plan.num_parameters
    for feature in plan.features:
        for number, block in enumerate(feature.blocks, start=1):
            cost = block.storage.cost(block.size, plan.base_dim)
            amount = cost.parameters * size + cost.held_bytes
            line = [
                feature.name if number == 1 else "",
                f"{number}/{len(feature.blocks)}",
                f"{block.size:,}",
                block.storage.describe(block.size),
                f"{block.row_prob:.2e}",
                *_amount(amount, in_all),
            ]
            lines.append(line)
    if len(lines) > MOST_LINES:
        hidden = len(lines) - MOST_LINES
        elided = [f"... {hidden:,} more", *[""] * (len(header) - 1)]
        lines = [*lines[: MOST_LINES - LAST_LINES], elided, *lines[-LAST_LINES:]]
    for storage in plan.sharing:
        amount = storage.shared_parameters * size
        lines.append(["shared array", "", "", str(storage.dim), "", *_amount(amount, in_all)])
    if in_bytes and plan.id_map_bytes:
        lines.append(["ranks of ids", "", "", "", "", *_amount(plan.id_map_bytes, in_all)])
    total = ["total", "", f"{plan.num_rows:,}", "", "", f"{in_all:,}", ""]
    lines = [header, *lines, total]
    if all(len(feature.blocks) == 1 for feature in plan.features):
        lines = [[line[0], *line[2:]] for line in lines]
    return align(lines)


def _amount(amount: int, in_all: int) -> list[str]:
    return [f"{amount:,}", f"{amount / in_all:.1%}"]
