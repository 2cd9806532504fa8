"""A layer with rounded blocks as one kernel reads it. Knows nothing about weights.

It serves layers of rounded and narrow blocks; where there are others, each storage takes its own rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mixdim.kernels.rounded_lookup import BlockPlace, NeededTensor, RoundedLayout
from mixdim.layer.packing import PackedBlock, Packing


class RoundedPart:
    """All blocks of a layer, if some are rounded and the rest narrow: where each of them is."""

    def __init__(self, packing: Packing, order_starts: Sequence[int]) -> None:
        storages = [block.storage for block in packing.blocks]
        self.is_all = (
            all(storage.kind == "rows" for storage in storages)
            and any(storage.is_quantized for storage in storages)
            and all(block.size < 2**31 for block in packing.blocks)
        )
        if not self.is_all:
            return
        self._base_dim = packing.base_dim
        needed: list[NeededTensor] = []
        numbers: dict[str, dict[str, int]] = {}  # of each group: those of its tensors
        for group, own in packing.groups.items():
            held = own[0].storage.table_type.holds(own, packing.base_dim)
            numbers[group] = {name: len(needed) + n for n, name in enumerate(held)}
            needed += [
                NeededTensor(f"{name}_{group}", tensor.shape, getattr(torch, tensor.dtype or "float32"))
                for name, tensor in held.items()
            ]
        starts = {
            group: own[0].storage.table_type.all_slot_numbers(own)
            for group, own in packing.groups.items()
        }
        blocks: list[BlockPlace] = []
        features: list[tuple[int, ...]] = []  # see `kernels.structs.FEATURE_COLUMNS`
        for feature, own in enumerate(packing.of_feature):
            features.append((own[-1].end - own[0].start, len(blocks), len(own), order_starts[feature]))
            for block in own:
                group = block.storage.group
                blocks.append(self._place(block, own[0].start, numbers[group], starts[group]))
        self.layout = RoundedLayout(torch.tensor(features, device="cpu"), blocks, needed)

    def _place(
        self,
        block: PackedBlock,
        feature_start: int,
        numbers: dict[str, int],
        starts: list[tuple[int, ...]],
    ) -> BlockPlace:
        """A block, with the bytes of its tensors before what is its own."""
        width = block.storage.width(self._base_dim)
        before = {"projection": 4 * block.slot * width * self._base_dim}
        bits = 0
        if block.storage.is_quantized:
            bits = block.storage.bits
            first_code, first_scale = starts[block.slot]
            before |= {"codes": first_code * bits // 8, "scales": 2 * first_scale}
        else:
            before["table"] = 4 * block.first_row * width
        return BlockPlace(
            block.start - feature_start,
            block.end - feature_start,
            block.storage.stored_rows(block.size),
            width,
            bits,
            {name: (number, before[name]) for name, number in numbers.items()},
        )
