"""The tables that a plan becomes in TorchRec: one for each block. Knows no ranks and no weights."""

from __future__ import annotations

from dataclasses import dataclass

from mixdim.layer.layout import LaidBlock, Layout
from mixdim.training.packed_rows import PackedRows


@dataclass(frozen=True)
class BlockTable:
    """A block of a plan and the table that stores it; names have no dots, which TorchRec cuts at."""

    name: str
    block: LaidBlock
    layout: PackedRows

    @property
    def nbytes(self) -> int:
        """Bytes of the table in float32."""
        return 4 * self.layout.rows * self.layout.width


def tables_of(layout: Layout, names: list[str]) -> list[BlockTable]:
    """A table for each block, in the order of rows; only narrow blocks have one."""
    tables = []
    for feature, blocks in enumerate(layout.of_feature):
        for number, block in enumerate(blocks):
            if not block.storage.is_shardable:
                raise ValueError(
                    f"feature {names[feature]!r} is stored as {block.storage}: TorchRec holds narrow "
                    "blocks only, such as mixdim.plan makes"
                )
            stored = block.storage.stored_rows(block.size)
            packed = PackedRows(stored, block.storage.width(layout.base_dim))
            tables.append(BlockTable(f"feature{feature}_block{number}", block, packed))
    return tables
