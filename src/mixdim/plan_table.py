"""How a plan looks in a terminal. Knows nothing about how to make one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixdim.budget import format_bytes

if TYPE_CHECKING:
    from mixdim.plan import Plan

MOST_LINES = 60  # a longer table shows its beginning and its end
LAST_LINES = 15


def plan_table(plan: Plan) -> str:
    """Write a plan as a table with one line a block, its cost, and what to know about it."""
    head = f"Mixed dimension plan: base_dim {plan.base_dim}, temperature {plan.temperature:g}"
    return "\n".join([head, "", *_table(plan), "", *cost_lines(plan), *notes(plan)])


def cost_lines(plan: Plan) -> list[str]:
    """What the plan costs: parameters, bytes, bytes to train, and the uniform width for the same."""
    return [
        f"{plan.num_parameters:,} parameters: {plan.table_parameters:,} in tables, "
        f"{plan.projection_parameters:,} in projections",
        f"{format_bytes(plan.nbytes())} in float32, "
        f"{format_bytes(plan.nbytes(optimizer='amsgrad'))} with AMSGrad state",
        f"the cost of uniform width {plan.equivalent_uniform_dim:.3g}",
    ]


def notes(plan: Plan) -> list[str]:
    """What a reader of the plan should know and might not see in its table."""
    fewer = [
        f"note: {feature.name} has {len(feature.blocks)} of the {feature.bands_asked} bands asked: "
        "single rows hold more than a band's share of the queries, or there are too few rows"
        for feature in plan.features
        if len(feature.blocks) < feature.bands_asked
    ]
    shuffled = [
        name for name, order in plan.named_orders if len(plan[name].blocks) > 1 and order.size
        and (order[1:] < order[:-1]).any()
    ]  # fmt: skip
    reorder = [
        f"note: the ids of {', '.join(shuffled)} are not in order of popularity: "
        "build the layer with order=plan.orders"
    ]
    return fewer + (reorder if shuffled else [])


def _table(plan: Plan) -> list[str]:
    banded = any(len(feature.blocks) > 1 for feature in plan.features)
    header = ["feature", *(["band"] if banded else []), "rows", "dim", "row prob", "parameters", "share"]
    lines = []
    for feature in plan.features:
        for number, block in enumerate(feature.blocks, start=1):
            parameters = block.size * block.dim
            if block.dim < plan.base_dim:
                parameters += block.dim * plan.base_dim
            lines.append([
                feature.name if number == 1 else "",
                *([f"{number}/{len(feature.blocks)}"] if banded else []),
                f"{block.size:,}",
                str(block.dim),
                f"{block.row_prob:.2e}",
                f"{parameters:,}",
                f"{parameters / plan.num_parameters:.1%}",
            ])  # fmt: skip
    if len(lines) > MOST_LINES:
        hidden = len(lines) - MOST_LINES
        elided = [f"... {hidden:,} more", *[""] * (len(header) - 1)]
        lines = [*lines[: MOST_LINES - LAST_LINES], elided, *lines[-LAST_LINES:]]
    total = ["total", *([""] if banded else []), f"{plan.num_rows:,}", "", "", f"{plan.num_parameters:,}", ""]
    widths = [max(len(line[i]) for line in [header, *lines, total]) for i in range(len(header))]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in [header, *lines, total]
    ]
