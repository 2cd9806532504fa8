"""Which blocks an export stores at full width, so that no lookup lifts them. Knows no tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from mixdim.planning.feature import Block
from mixdim.storages import Rows
from mixdim.storages.storage import FLOAT_BYTES

if TYPE_CHECKING:
    from mixdim.planning.plan import Plan


def folded(plan: Plan, max_bytes: int, quantized_bytes: int) -> Plan:
    """See `Plan.folded`."""

    def is_small(rows: int, blocks: Iterable[Block]) -> bool:
        is_quantized = any(block.storage.is_quantized for block in blocks)
        most = quantized_bytes if is_quantized else max_bytes
        return rows * plan.base_dim * FLOAT_BYTES <= most

    full, whole, features = Rows(plan.base_dim), set[str](), []
    for feature in plan.features:
        if is_small(feature.rows, feature.blocks):
            blocks = [replace(block, storage=full) for block in feature.blocks]
            whole.add(feature.name)
        else:
            blocks = [
                replace(block, storage=full) if is_small(block.size, [block]) else block
                for block in feature.blocks
            ]
        features.append(replace(feature, blocks=tuple(_merged(blocks, full))))
    orders = tuple((name, order) for name, order in plan.named_orders if name not in whole)
    if tuple(features) == plan.features and len(orders) == len(plan.named_orders):
        return plan
    provenance = {"rule": "folded", "was": plan.provenance}
    return replace(plan, provenance=provenance, features=tuple(features), named_orders=orders)


def _merged(blocks: Iterable[Block], full: Rows) -> Iterator[Block]:
    """Blocks of full width that follow each other, as one."""
    last: Block | None = None
    for block in blocks:
        if last is not None and last.storage == block.storage == full:
            size = last.size + block.size
            mass = last.size * last.row_prob + block.size * block.row_prob
            last = replace(last, size=size, row_prob=mass / size)
            continue
        if last is not None:
            yield last
        last = block
    if last is not None:
        yield last
