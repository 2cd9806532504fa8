"""Where each block lives once blocks of one group share a table. Knows nothing about lookups.

Rows are numbered through all features: row `feature_start + rank` of the layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from mixdim.planning.plan import Plan
from mixdim.storages.table import StoredBlock


@dataclass(frozen=True)
class PackedBlock(StoredBlock):
    """A block of a feature, which is rows `start` to `end` of the layer."""

    feature: int
    start: int

    @property
    def end(self) -> int:
        """The row after its last."""
        return self.start + self.size


@dataclass(frozen=True)
class Packing:
    """The blocks of a plan, grouped by storage.

    `groups` holds, by name of the group, its blocks in the order of their slots. `whole` has those of
    them that are a whole feature: whatever the ids, each takes one row of every sample, so all of a
    group are looked up together; they have the first slots. `bands` holds, by feature, the blocks of the
    features that are cut into several: there the id decides.
    """

    base_dim: int
    blocks: tuple[PackedBlock, ...]
    groups: dict[str, list[PackedBlock]]  # narrow ones first, the widest first among them
    whole: dict[str, list[PackedBlock]]
    bands: dict[int, list[PackedBlock]]

    @cached_property
    def of_feature(self) -> list[list[PackedBlock]]:
        """The blocks of each feature, from popular to rare."""
        return [list(blocks) for _, blocks in groupby(self.blocks, key=lambda block: block.feature)]

    @property
    def feature_rows(self) -> list[int]:
        """Rows of each feature."""
        return [blocks[-1].end - blocks[0].start for blocks in self.of_feature]

    def describe_row(self, group: str, table_row: int, names: tuple[str, ...]) -> str:
        """Say which row of which feature a row of a group's table is."""
        for block in self.groups[group]:
            number, size = table_row - block.first_row, block.storage.stored_rows(block.size)
            if 0 <= number < size:
                # Where each row is stored on its own, it is known by its rank in the feature.
                first = block.start - self.of_feature[block.feature][0].start
                row = f"row {first + number}" if block.storage.has_own_rows else f"shared row {number}"
                return f"{row} of feature {names[block.feature]!r}"
        raise IndexError(f"the table {group} has no row {table_row}")


def pack(plan: Plan) -> Packing:
    """Group the blocks of a plan: whole features first, then bands, in the plan's order."""
    places, start = [], 0
    for number, feature in enumerate(plan.features):
        places += [(number, start + block.start, block) for block in feature.blocks]
        start += feature.rows
    is_band = [len(feature.blocks) > 1 for feature in plan.features]

    groups: dict[str, list[PackedBlock]] = {}
    next_row: dict[str, int] = {}
    whole: dict[str, list[PackedBlock]] = {}
    bands: dict[int, list[PackedBlock]] = {}
    for feature_number, start, block in sorted(places, key=lambda place: is_band[place[0]]):
        name = block.storage.group
        group = groups.setdefault(name, [])
        packed = PackedBlock(
            storage=block.storage,
            size=block.size,
            first_row=next_row.get(name, 0),
            slot=len(group),
            feature=feature_number,
            start=start,
        )
        next_row[name] = packed.first_row + block.storage.stored_rows(block.size)
        group.append(packed)
        if is_band[feature_number]:
            bands.setdefault(feature_number, []).append(packed)
        else:
            whole.setdefault(name, []).append(packed)
    blocks = sorted((block for group in groups.values() for block in group), key=lambda b: b.start)
    in_order = sorted(groups, key=lambda name: groups[name][0].storage.order)
    return Packing(plan.base_dim, tuple(blocks), {name: groups[name] for name in in_order}, whole, bands)
