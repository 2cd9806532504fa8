"""What a plan says about features and blocks, as tensors beside the tables. Knows nothing about weights.

These are no state: they follow from the plan, and are made anew wherever the tables go.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from mixdim.layer.packing import Packing


class Indices(NamedTuple):
    """By feature, and by group of whole features (see `Packing.whole`). C features share a group."""

    features: Tensor  # (F,) 0, 1, ...
    num_rows: Tensor  # (F,)
    feature_starts: Tensor  # (F,) first row of the layer
    order_starts: Tensor  # (F,) where its ranks begin in `rank_of_id`, or -1
    columns: dict[str, Tensor]  # group -> (C,) the features
    starts: dict[str, Tensor]  # group -> (C,) their first rows of the layer
    positions: dict[str, Tensor]  # group -> (F,) each feature's place among the C, or -1
    slot_numbers: dict[str, Tensor]  # group -> (slots, numbers): see `Table.slot_numbers`

    @classmethod
    def of(cls, packing: Packing, order_starts: Sequence[int], device: torch.device) -> Indices:
        """Make them on a device."""

        def tensor(numbers: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
            return torch.tensor(numbers, dtype=torch.int64, device=device)

        rows = packing.feature_rows
        positions: dict[str, list[int]] = {group: [-1] * len(rows) for group in packing.whole}
        for group, blocks in packing.whole.items():
            for place, block in enumerate(blocks):
                positions[group][block.feature] = place
        return cls(
            features=tensor(range(len(rows))),
            num_rows=tensor(rows),
            feature_starts=tensor(list(accumulate(rows, initial=0))[:-1]),
            order_starts=tensor(order_starts),
            columns={g: tensor([block.feature for block in own]) for g, own in packing.whole.items()},
            starts={g: tensor([block.start for block in own]) for g, own in packing.whole.items()},
            positions={group: tensor(places) for group, places in positions.items()},
            slot_numbers={
                group: tensor(blocks[0].storage.table_type.all_slot_numbers(blocks))
                for group, blocks in packing.groups.items()
            },
        )
