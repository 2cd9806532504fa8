"""What of a layer the kernels serve: its narrow blocks, all of it or those among others.

Knows nothing about weights. The kernels know features cut into narrow blocks without a gap: where other
blocks lie between, rows are numbered without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from mixdim.kernels.forms import SplitForm
from mixdim.kernels.structs import Layout
from mixdim.layer.bags import Bags
from mixdim.layer.packing import PackedBlock, Packing


class KernelBags(NamedTuple):
    """Bags as the kernels take them: feature by feature."""

    values: Tensor  # (V,)
    offsets: Tensor  # (features * B + 1,)
    weights: Tensor | None  # (V,)


def _is_served(block: PackedBlock) -> bool:
    return block.storage.kind == "rows" and not block.storage.is_quantized


class KernelPart:
    """The narrow blocks of a layer as the kernels know them, and the way from its rows to theirs."""

    def __init__(self, packing: Packing, order_starts: Sequence[int]) -> None:
        narrow = [block for block in packing.blocks if _is_served(block)]
        self.groups = [name for name, own in packing.groups.items() if _is_served(own[0])]
        self.is_all = len(narrow) == len(packing.blocks)
        self.fits = bool(narrow) and all(block.size < 2**31 for block in narrow)
        blocks: list[tuple[int, ...]] = []  # see `kernels.structs.BLOCK_COLUMNS`
        features: list[tuple[int, ...]] = []  # see `kernels.structs.FEATURE_COLUMNS`
        shifts = {}  # of each block, from row of the layer to row of its feature for the kernels
        for feature, own in groupby(narrow, key=lambda block: block.feature):
            first_block, rows = len(blocks), 0
            for block in own:
                number = self.groups.index(block.storage.group)
                width, stored = (
                    block.storage.width(packing.base_dim),
                    block.storage.stored_rows(block.size),
                )
                place = (width, number, block.first_row, block.slot, stored)
                blocks.append((len(features), rows, rows + block.size, *place))
                shifts[block] = rows - block.start
                rows += block.size
            order_start = order_starts[feature] if self.is_all else -1  # rows are ranks already
            features.append((rows, first_block, len(blocks) - first_block, order_start))
        if not narrow:
            return
        self.block_layout = torch.tensor(blocks, dtype=torch.int64, device="cpu")
        self.feature_layout = torch.tensor(features, dtype=torch.int64, device="cpu")
        self.layout = Layout(self.block_layout, self.feature_layout, packing.base_dim)
        self._base_dim = packing.base_dim
        served = sorted({block.feature for block in narrow})

        def tensor(numbers: Sequence[int | bool]) -> Tensor:
            return torch.tensor(numbers, device="cpu")

        self._features = tensor(served)
        self._position = torch.full((len(packing.of_feature),), -1, device="cpu")
        self._position[self._features] = torch.arange(len(served), device="cpu")
        self._starts = tensor([block.start for block in packing.blocks])
        self._is_served = tensor([block in shifts for block in packing.blocks])
        self._shifts = tensor([shifts.get(block, 0) for block in packing.blocks])

    @cached_property
    def split_form(self) -> SplitForm:
        """The split form of an interaction."""
        return SplitForm(self.layout, self._base_dim)

    def ids(self, rows: Tensor) -> Tensor:
        """Turn rows of the layer into ids for the kernels, -1 for others: (F, B) -> (B, features)."""
        rows = rows[self._features]
        block = torch.searchsorted(self._starts, rows, right=True).sub(1).clamp(min=0)
        is_served = (rows >= 0) & self._is_served[block]
        return torch.where(is_served, rows + self._shifts[block], -1).t().contiguous()

    def bags(self, bags: Bags) -> KernelBags:
        """Turn bags of rows of the layer into bags for the kernels, without what they do not serve."""
        block = torch.searchsorted(self._starts, bags.values, right=True).sub(1)
        bags = bags._replace(values=bags.values + self._shifts[block])
        here = bags.where(self._is_served[block])
        numbers = self._position[here.features] * bags.batch_size + here.samples
        edges = torch.arange(len(self._features) * bags.batch_size + 1)
        weights = None if here.weights is None else here.weights.to(torch.float32)
        return KernelBags(here.values, torch.searchsorted(numbers, edges), weights)

    def add_to(self, vectors: Tensor, of_kernels: Tensor) -> Tensor:
        """Add what the kernels found to what others found: (B, F, D), (B, features served, D)."""
        return vectors.index_add(1, self._features, of_kernels)
