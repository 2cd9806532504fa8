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
    """By feature, and by width of whole features (see `Packing.whole`). C features share a width."""

    features: Tensor  # (F,) 0, 1, ...
    num_rows: Tensor  # (F,)
    feature_starts: Tensor  # (F,) first row of the layer
    order_starts: Tensor  # (F,) where its ranks begin in `rank_of_id`, or -1
    columns: dict[int, Tensor]  # width -> (C,) the features
    shifts: dict[int, Tensor]  # width -> (C,) from row of the layer to row of the table
    positions: dict[int, Tensor]  # width -> (F,) each feature's place among the C, or -1

    @classmethod
    def of(cls, packing: Packing, order_starts: Sequence[int], device: torch.device) -> Indices:
        """Make them on a device."""

        def tensor(numbers: Sequence[int]) -> Tensor:
            return torch.tensor(numbers, dtype=torch.int64, device=device)

        rows = packing.feature_rows
        columns = {width: [block.feature for block in blocks] for width, blocks in packing.whole.items()}
        shifts = {width: [block.shift for block in blocks] for width, blocks in packing.whole.items()}
        positions: dict[int, list[int]] = {width: [-1] * len(rows) for width in columns}
        for width, features in columns.items():
            for place, feature in enumerate(features):
                positions[width][feature] = place

        def tensors(numbers: dict[int, list[int]]) -> dict[int, Tensor]:
            return {width: tensor(of_width) for width, of_width in numbers.items()}

        return cls(
            features=tensor(range(len(rows))),
            num_rows=tensor(rows),
            feature_starts=tensor(list(accumulate(rows, initial=0))[:-1]),
            order_starts=tensor(order_starts),
            columns=tensors(columns),
            shifts=tensors(shifts),
            positions=tensors(positions),
        )
