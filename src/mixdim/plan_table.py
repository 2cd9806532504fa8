"""How a plan looks in a terminal. Knows nothing about how to make one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mixdim.budget import format_bytes

if TYPE_CHECKING:
    from mixdim.plan import Plan

MOST_LINES = 60  # a longer table shows its beginning and its end
LAST_LINES = 15
CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def plan_table(plan: Plan) -> str:
    """Write a plan as a table with one line a block, its cost, and what to know about it."""
    head = f"Mixed dimension plan: base_dim {plan.base_dim}, temperature {plan.temperature:g}"
    return "\n".join([head, "", *_table(plan), "", *cost_lines(plan), *map(printable, notes(plan))])


def cost_lines(plan: Plan) -> list[str]:
    """What the plan costs: parameters, bytes, bytes to train, and the uniform width for the same."""
    id_maps = ""
    if plan.id_map_bytes:
        id_maps = f", {format_bytes(plan.id_map_bytes)} of it the rank of each id"
    return [
        f"{plan.num_parameters:,} parameters: {plan.table_parameters:,} in tables, "
        f"{plan.projection_parameters:,} in projections",
        f"{format_bytes(plan.nbytes())} in float32, "
        f"{format_bytes(plan.nbytes(optimizer='amsgrad'))} with AMSGrad state{id_maps}",
        f"the cost of uniform width {plan.equivalent_uniform_dim:.3g}",
    ]


def notes(plan: Plan) -> list[str]:
    """What a reader of the plan should know and might not see in its table."""
    lines = [
        f"note: {feature.name} has {len(feature.blocks)} of the {feature.bands_asked} bands asked: "
        "single rows hold more than a band's share of the queries, or there are too few rows"
        for feature in plan.features
        if len(feature.blocks) < feature.bands_asked
    ]
    shuffled = [name for name, order in plan.named_orders if (order[1:] < order[:-1]).any()]
    if shuffled:
        lines.append(
            f"note: the ids of {', '.join(shuffled)} are not in order of popularity: "
            "a layer of this plan holds the rank of each; its JSON does not"
        )
    return lines


def printable(text: str) -> str:
    r"""Show what a line cannot hold, such as a line break in a feature's name, as Python writes it.

    >>> print(printable("two\nlines, \x1b[31mred"))
    two\nlines, \x1b[31mred
    """
    return CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


def align(lines: list[list[str]]) -> list[str]:
    """Write cells in columns: the first to the left, the others to the right.

    >>> align([["a", "1"], ["bcd", "234"]])
    ['a      1', 'bcd  234']
    """
    lines = [[printable(cell) for cell in line] for line in lines]
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    return [
        "  ".join([
            line[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
        ]).rstrip()
        for line in lines
    ]  # fmt: skip


def _table(plan: Plan) -> list[str]:
    header = ["feature", "band", "rows", "dim", "row prob", "parameters", "share"]
    lines, in_all = [], plan.num_parameters
    for feature in plan.features:
        for number, block in enumerate(feature.blocks, start=1):
            parameters = block.size * block.dim
            if block.dim < plan.base_dim:
                parameters += block.dim * plan.base_dim
            line = [
                feature.name if number == 1 else "",
                f"{number}/{len(feature.blocks)}",
                f"{block.size:,}",
                str(block.dim),
                f"{block.row_prob:.2e}",
                f"{parameters:,}",
                f"{parameters / in_all:.1%}",
            ]
            lines.append(line)
    if len(lines) > MOST_LINES:
        hidden = len(lines) - MOST_LINES
        elided = [f"... {hidden:,} more", *[""] * (len(header) - 1)]
        lines = [*lines[: MOST_LINES - LAST_LINES], elided, *lines[-LAST_LINES:]]
    total = ["total", "", f"{plan.num_rows:,}", "", "", f"{in_all:,}", ""]
    lines = [header, *lines, total]
    if all(len(feature.blocks) == 1 for feature in plan.features):
        lines = [[line[0], *line[2:]] for line in lines]
    return align(lines)
