"""Where each block lives once blocks of one width share a table. Knows nothing about lookups.

Rows are numbered through all features: row `feature_start + rank` of the layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby

from mixdim.planning.plan import Plan


@dataclass(frozen=True)
class PackedBlock:
    """A block, and its place among the blocks of the same width.

    Rows `start` to `end` of the layer are rows `first_row` on of the table of width `dim`; the block's
    projection is number `slot` of that width's projections.
    """

    feature: int
    start: int
    end: int
    dim: int
    first_row: int
    slot: int

    @property
    def size(self) -> int:
        """Rows of the block."""
        return self.end - self.start

    @property
    def shift(self) -> int:
        """What to add to a row of the layer to get the row of the table."""
        return self.first_row - self.start


@dataclass(frozen=True)
class Packing:
    """The blocks of a plan, grouped by width.

    `whole` holds, by width, the blocks that are a whole feature: whatever the ids, each takes one row
    of every sample, so all blocks of a width are looked up together. `bands` holds, by feature, the
    blocks of the features that are cut into several: there the id decides.
    """

    base_dim: int
    blocks: tuple[PackedBlock, ...]
    table_rows: dict[int, int]  # rows of the table of each width, widest first
    num_projections: dict[int, int]  # of each width that needs any: a block of full width does not
    whole: dict[int, list[PackedBlock]]
    bands: dict[int, list[PackedBlock]]

    def feature_row(self, width: int, table_row: int) -> tuple[int, int]:
        """The feature that a row of the table of some width belongs to, and its rank there."""
        for block in self.blocks:
            if block.dim == width and block.first_row <= table_row < block.first_row + block.size:
                first = self.of_feature[block.feature][0].start
                return block.feature, table_row - block.shift - first
        raise IndexError(f"the table of width {width} has no row {table_row}")

    @cached_property
    def of_feature(self) -> list[list[PackedBlock]]:
        """The blocks of each feature, from popular to rare."""
        return [list(blocks) for _, blocks in groupby(self.blocks, key=lambda block: block.feature)]

    @property
    def feature_rows(self) -> list[int]:
        """Rows of each feature."""
        return [blocks[-1].end - blocks[0].start for blocks in self.of_feature]

    @property
    def block_layout(self) -> list[tuple[int, ...]]:
        """The blocks as the kernels read them: see `kernels.structs.BLOCK_COLUMNS`."""
        numbers = {width: number for number, width in enumerate(self.table_rows)}
        layout: list[tuple[int, ...]] = []
        for block in self.blocks:
            start = block.start - self.of_feature[block.feature][0].start
            place = (block.dim, numbers[block.dim], block.first_row, block.slot)
            layout.append((block.feature, start, start + block.size, *place))
        return layout

    def feature_layout(self, order_starts: Sequence[int]) -> list[tuple[int, ...]]:
        """The features as the kernels read them: see `kernels.structs.FEATURE_COLUMNS`."""
        num_blocks = [len(blocks) for blocks in self.of_feature]
        first_blocks = accumulate(num_blocks, initial=0)
        return list(zip(self.feature_rows, first_blocks, num_blocks, order_starts, strict=False))


def pack(plan: Plan) -> Packing:
    """Group the blocks of a plan by width: whole features first, then bands, in the plan's order."""
    places, start = [], 0
    for number, feature in enumerate(plan.features):
        places += [(number, start + block.start, block) for block in feature.blocks]
        start += feature.rows
    is_band = [len(feature.blocks) > 1 for feature in plan.features]

    next_row: dict[int, int] = {}
    next_slot: dict[int, int] = {}
    whole: dict[int, list[PackedBlock]] = {}
    bands: dict[int, list[PackedBlock]] = {}
    for feature_number, start, block in sorted(places, key=lambda place: is_band[place[0]]):
        packed = PackedBlock(
            feature=feature_number,
            start=start,
            end=start + block.size,
            dim=block.dim,
            first_row=next_row.get(block.dim, 0),
            slot=next_slot.get(block.dim, 0),
        )
        next_row[block.dim] = packed.first_row + packed.size
        next_slot[block.dim] = packed.slot + 1
        group, key = (bands, feature_number) if is_band[feature_number] else (whole, block.dim)
        group.setdefault(key, []).append(packed)
    blocks = [block for group in (*whole.values(), *bands.values()) for block in group]
    blocks.sort(key=lambda block: block.start)
    widths = sorted(next_row, reverse=True)
    table_rows = {width: next_row[width] for width in widths}
    num_projections = {width: next_slot[width] for width in widths if width < plan.base_dim}
    return Packing(plan.base_dim, tuple(blocks), table_rows, num_projections, whole, bands)
