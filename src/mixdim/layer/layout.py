"""Where each block of a plan is: its rows of the layer, of its table and of the lift. Knows no weights.

Rows are numbered through all features: row `feature_start + rank` of the layer. All projections are one
tensor, `lift` (rows, base_dim): a block of width d below base_dim is lifted by d rows of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, NamedTuple

from mixdim._util.lazy import import_later
from mixdim.planning.plan import Plan
from mixdim.storages.table import StoredBlock, TensorSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor

import_later(globals(), torch="torch")

LIFT = "lift"


@dataclass(frozen=True)
class LaidBlock(StoredBlock):
    """A block of a feature, which is rows `start` to `end` of the layer.

    Its projection is rows of the lift from `lift_row` on; -1 if it has none. Blocks of codes have a
    lift of their own. `number` counts the blocks of the feature, from popular to rare.
    """

    feature: int
    number: int
    start: int
    lift_row: int = -1

    @property
    def end(self) -> int:
        """The row after its last."""
        return self.start + self.size


class Indices(NamedTuple):
    """What a layout says, as tensors beside the tables. C features that are whole blocks share a group.

    These are no state: they follow from the plan, and are made anew wherever the tables go.
    """

    features: Tensor  # (F,) 0, 1, ...
    num_rows: Tensor  # (F,)
    feature_starts: Tensor  # (F,) first row of the layer
    columns: dict[str, Tensor]  # group -> (C,) the features
    starts: dict[str, Tensor]  # group -> (C,) their first rows of the layer
    positions: dict[str, Tensor]  # group -> (F,) each feature's place among the C, or -1
    slot_numbers: dict[str, Tensor]  # group -> (slots, numbers): see `Table.slot_numbers`
    block_starts: Tensor  # (blocks,) first row of the layer, of each block from the first row on
    block_ends: Tensor  # (blocks,) the row after its last
    block_slots: Tensor  # (blocks,)


@dataclass(frozen=True)
class Layout:
    """The blocks of a plan, grouped by storage.

    `groups` holds, by name of the group, its blocks in the order of their slots. `whole` has those of
    them that are a whole feature: whatever the ids, each takes one row of every sample, so all of a
    group are looked up together; they have the first slots. `bands` holds, by feature, the blocks of the
    features that are cut into several: there the id decides.
    """

    base_dim: int
    blocks: tuple[LaidBlock, ...]
    groups: dict[str, list[LaidBlock]]  # in the order of `Storage.order`
    whole: dict[str, list[LaidBlock]]
    bands: dict[int, list[LaidBlock]]

    @classmethod
    def of(cls, plan: Plan) -> Layout:
        """Lay the blocks of a plan: whole features first, then bands, in the plan's order."""
        base_dim, starts = plan.base_dim, accumulate((f.rows for f in plan.features), initial=0)
        found = [
            LaidBlock(block.storage, block.size, 0, 0, of_feature, number, start + block.start)
            for of_feature, (feature, start) in enumerate(zip(plan.features, starts, strict=False))
            for number, block in enumerate(feature.blocks)
        ]
        is_band = [len(feature.blocks) > 1 for feature in plan.features]
        by_group: dict[str, list[LaidBlock]] = {}
        for laid in sorted(found, key=lambda laid: is_band[laid.feature]):
            by_group.setdefault(laid.storage.group, []).append(laid)
        in_order = sorted(by_group, key=lambda name: by_group[name][0].storage.order)
        groups: dict[str, list[LaidBlock]] = {}
        lift_rows = {True: 0, False: 0}  # by whether blocks are codes
        for group in in_order:
            groups[group], first_row = [], 0
            for slot, laid in enumerate(by_group[group]):
                stored = laid.storage
                is_lifted, coded = stored.is_lifted(base_dim), stored.is_quantized
                at = lift_rows[coded] if is_lifted else -1
                groups[group].append(replace(laid, first_row=first_row, slot=slot, lift_row=at))
                first_row += stored.stored_rows(laid.size)
                lift_rows[coded] += stored.width(base_dim) * is_lifted
        blocks = sorted((laid for own in groups.values() for laid in own), key=lambda laid: laid.start)
        whole = {
            group: [laid for laid in own if not is_band[laid.feature]] for group, own in groups.items()
        }
        bands: dict[int, list[LaidBlock]] = {}
        for laid in blocks:
            if is_band[laid.feature]:
                bands.setdefault(laid.feature, []).append(laid)
        return cls(base_dim, tuple(blocks), groups, {g: own for g, own in whole.items() if own}, bands)

    @cached_property
    def of_feature(self) -> list[list[LaidBlock]]:
        """The blocks of each feature, from popular to rare."""
        return [list(blocks) for _, blocks in groupby(self.blocks, key=lambda block: block.feature)]

    @property
    def feature_rows(self) -> list[int]:
        """Rows of each feature."""
        return [blocks[-1].end - blocks[0].start for blocks in self.of_feature]

    @cached_property
    def lift_rows(self) -> int:
        """How many rows the lift has."""
        return sum(self.width(group) * len(self.groups[group]) for group in self._lifted)

    def width(self, group: str) -> int:
        """How many numbers the stored rows of a group have."""
        return self.groups[group][0].storage.width(self.base_dim)

    def is_lifted(self, group: str) -> bool:
        """Whether the vectors of a group are multiplied by a projection."""
        return self.groups[group][0].storage.is_lifted(self.base_dim)

    @cached_property
    def _lifted(self) -> list[str]:
        """The groups whose projections are rows of `lift`; others have their own among their tensors."""
        return [g for g in self.groups if self.is_lifted(g) and "projection" not in self.own_tensors[g]]

    @cached_property
    def own_tensors(self) -> dict[str, dict[str, TensorSpec]]:
        """The tensors of each group, by the name that its table knows."""
        return {
            group: blocks[0].storage.table_type.holds(blocks, self.base_dim)
            for group, blocks in self.groups.items()
        }

    @cached_property
    def tensors(self) -> dict[str, TensorSpec]:
        """All tensors of a layer by name, such as `table_4`: tables first, the lift last."""
        specs = [(name, group, s) for group, own in self.own_tensors.items() for name, s in own.items()]
        named: dict[str, TensorSpec] = {}
        for name, group, spec in sorted(specs, key=lambda s: s[0] != "table"):
            own = spec.joined or f"{name}_{group}"
            length = named[own].shape[0] if own in named else 0
            named[own] = spec._replace(shape=(length + spec.numbers,)) if spec.joined else spec
        if self.lift_rows:
            named[LIFT] = TensorSpec((self.lift_rows, self.base_dim))
        return named

    def tensors_of(self, group: str, held: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a group among those of a layer, by the name that its table knows."""
        found = {}
        for name, spec in self.own_tensors[group].items():
            if spec.joined is None:
                found[name] = held[f"{name}_{group}"]
            else:
                start = self.starts[group, name]
                found[name] = held[spec.joined][start : start + spec.numbers].view(spec.shape)
        return found

    @cached_property
    def starts(self) -> dict[tuple[str, str], int]:
        """Where the part of each group begins in a tensor that has those of all groups."""
        found, ends = {}, dict[str, int]()
        for group, own in self.own_tensors.items():
            for name, spec in own.items():
                if spec.joined is not None:
                    found[group, name] = ends.get(spec.joined, 0)
                    ends[spec.joined] = found[group, name] + spec.numbers
        return found

    def projections(self, lift: Tensor | None) -> dict[str, Tensor]:
        """The rows of a lift that belong to each group: (blocks, width, base_dim)."""
        if lift is None or not self._lifted:
            return {}
        shapes = [(len(self.groups[group]), self.width(group)) for group in self._lifted]
        parts = lift.split([blocks * width for blocks, width in shapes])
        return {
            group: part.view(*shape, self.base_dim)
            for group, part, shape in zip(self._lifted, parts, shapes, strict=True)
        }

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

    def indices(self, device: torch.device) -> Indices:
        """The same as tensors on a device."""

        def tensor(numbers: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
            return torch.tensor(numbers, dtype=torch.int64, device=device)

        rows = self.feature_rows
        positions: dict[str, list[int]] = {group: [-1] * len(rows) for group in self.whole}
        for group, blocks in self.whole.items():
            for place, block in enumerate(blocks):
                positions[group][block.feature] = place
        return Indices(
            features=tensor(range(len(rows))),
            num_rows=tensor(rows),
            feature_starts=tensor(list(accumulate(rows, initial=0))[:-1]),
            columns={g: tensor([block.feature for block in own]) for g, own in self.whole.items()},
            starts={g: tensor([block.start for block in own]) for g, own in self.whole.items()},
            positions={group: tensor(places) for group, places in positions.items()},
            slot_numbers={
                group: tensor(blocks[0].storage.table_type.all_slot_numbers(blocks))
                for group, blocks in self.groups.items()
            },
            block_starts=tensor([block.start for block in self.blocks]),
            block_ends=tensor([block.end for block in self.blocks]),
            block_slots=tensor([block.slot for block in self.blocks]),
        )
