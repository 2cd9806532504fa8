"""Blocks of a layer as the kernels see them: all of it, or those that they serve among others.

Knows nothing about weights. The kernels know features cut into blocks without a gap: where other blocks
lie between, rows are numbered without them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mixdim.kernels.forms import SplitForm
from mixdim.kernels.structs import WIDTHS, KernelLayout
from mixdim.layer.bags import Bags
from mixdim.layer.layout import LaidBlock, Layout
from mixdim.storages.table import KernelBlock


class KernelBags(NamedTuple):
    """Bags as the kernels take them: feature by feature."""

    values: Tensor  # (V,)
    offsets: Tensor  # (features * B + 1,)
    weights: Tensor | None  # (V,)


class KernelView:
    """Blocks of a layer as the kernels know them, and the way from its rows to theirs."""

    def __init__(
        self, layout: Layout, served: dict[str, list[KernelBlock]], order_starts: Sequence[int]
    ) -> None:
        """Take the groups in `served`, with the places of their blocks."""
        self.groups = list(served)
        floats = [group for group, places in served.items() if not places[0].bits]
        self.table_names = [f"table_{group}" for group in floats]
        self.is_whole = len(served) == len(layout.groups)
        self._layout = layout
        mine = [block for block in layout.blocks if block.storage.group in served]
        blocks: list[tuple[int, ...]] = []  # see `kernels.structs.BLOCK_COLUMNS`
        features: list[tuple[int, ...]] = []  # see `kernels.structs.FEATURE_COLUMNS`
        coded: list[tuple[int, ...]] = []  # see `kernels.structs.CODED_COLUMNS`
        shifts: dict[LaidBlock, int] = {}  # from row of the layer to row of its feature for the kernels
        for feature, own in groupby(mine, key=lambda block: block.feature):
            first_block, rows = len(blocks), 0
            for block in own:
                group = block.storage.group
                place = served[group][block.slot]
                stored = block.storage.stored_rows(block.size)
                ends = (rows, rows + block.size, stored, layout.width(group))
                where = (-1, 0, -1)
                if place.bits:
                    coded.append((len(blocks), block.size, *_coded_place(layout, block, place)))
                else:
                    where = (floats.index(group), place.first, block.lift_row)
                blocks.append((len(features), *ends, *where))
                shifts[block] = rows - block.start
                rows += block.size
            order_start = order_starts[feature] if self.is_whole else -1  # rows are ranks already
            features.append((rows, first_block, len(blocks) - first_block, order_start))
        self.blocks = torch.tensor(blocks, dtype=torch.int64, device="cpu")
        self.features = torch.tensor(features, dtype=torch.int64, device="cpu")
        self.has_codes = bool(coded)
        codes = np.array(coded, dtype=np.int64) if coded else None
        self.layout = KernelLayout(self.blocks, self.features, layout.base_dim, codes)
        self._shifts = shifts

    @cached_property
    def split_form(self) -> SplitForm:
        """The split form of an interaction."""
        return SplitForm(self.layout, self._layout.base_dim)

    def ids(self, rows: Tensor) -> Tensor:
        """Turn rows of the layer into ids for the kernels, -1 for others: (F, B) -> (B, features)."""
        rows = rows[self.served_features]
        block = torch.searchsorted(self._starts, rows, right=True).sub(1).clamp(min=0)
        is_served = (rows >= 0) & self._is_served[block]
        return torch.where(is_served, rows + self._shift_of_block[block], -1).t().contiguous()

    def bags(self, bags: Bags) -> KernelBags:
        """Turn bags of rows of the layer into bags for the kernels, without what they do not serve."""
        block = torch.searchsorted(self._starts, bags.values, right=True).sub(1)
        bags = bags._replace(values=bags.values + self._shift_of_block[block])
        here = bags.where(self._is_served[block])
        numbers = self._position[here.features] * bags.batch_size + here.samples
        edges = torch.arange(len(self.served_features) * bags.batch_size + 1)
        weights = None if here.weights is None else here.weights.to(torch.float32)
        return KernelBags(here.values, torch.searchsorted(numbers, edges), weights)

    def add_to(self, vectors: Tensor, found: Tensor) -> Tensor:
        """Add what the kernels found to what others found: (B, F, D), (B, features served, D)."""
        return vectors.index_add(1, self.served_features, found)

    @cached_property
    def served_features(self) -> Tensor:
        """The features with blocks that the kernels serve."""
        return torch.tensor(sorted({block.feature for block in self._shifts}), device="cpu")

    @cached_property
    def _position(self) -> Tensor:
        position = torch.full((len(self._layout.of_feature),), -1, device="cpu")
        position[self.served_features] = torch.arange(len(self.served_features), device="cpu")
        return position

    @cached_property
    def _starts(self) -> Tensor:
        return self._of_blocks(lambda block: block.start)

    @cached_property
    def _is_served(self) -> Tensor:
        return self._of_blocks(lambda block: block in self._shifts)

    @cached_property
    def _shift_of_block(self) -> Tensor:
        return self._of_blocks(lambda block: self._shifts.get(block, 0))

    def _of_blocks(self, number: Callable[[LaidBlock], int]) -> Tensor:
        return torch.tensor([number(block) for block in self._layout.blocks], device="cpu")


def _coded_place(layout: Layout, block: LaidBlock, place: KernelBlock) -> tuple[int, ...]:
    """Where a block of codes is in the tensors of the layer, and how many directions have which bits."""
    group = block.storage.group
    lift = -1
    if layout.is_lifted(group):
        lift = layout.starts[group, "projection"]
        lift += block.slot * layout.width(group) * layout.base_dim
    byte, step = layout.starts[group, "codes"] + place.first, layout.starts[group, "steps"]
    directions = [place.bits.count(own) for own in WIDTHS]
    return (byte, step + place.first_step, lift, int(place.mean), *directions)


def kernel_views(
    layout: Layout, order_starts: Sequence[int]
) -> tuple[KernelView | None, KernelView | None]:
    """What kernels see of a layer that serves, and of one that is trained; None where there is nothing.

    Without gradients they take codes too, if they know all blocks; else numbers as they are trained.
    """
    found = {g: own[0].storage.table_type.kernel_blocks(own) for g, own in layout.groups.items()}
    known = {group: places for group, places in found.items() if places is not None}
    if any(block.size >= 2**31 for block in layout.blocks if block.storage.group in known):
        return None, None
    trained = {group: places for group, places in known.items() if not places[0].bits}
    of_training = KernelView(layout, trained, order_starts) if trained else None
    if len(known) < len(layout.groups):
        return None, of_training
    return (of_training if trained == known else KernelView(layout, known, order_starts)), of_training
