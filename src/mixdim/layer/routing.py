"""Which row each id is: features, the order of ids, padding and checks. Knows nothing about tables.

It alone turns ids into rows of the layer. The ranks of ids, which are saved with a layer, it is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mixdim._util.arguments import whole_number
from mixdim.layer.bags import Bags
from mixdim.layer.ids import SEPARATOR, checked_ids, ranks_of_ids
from mixdim.layer.indices import Indices
from mixdim.layer.packing import Packing
from mixdim.planning.plan import Plan, UnknownFeatureError


class Routing:
    """The way from the ids of a plan's features to rows of the layer."""

    def __init__(self, plan: Plan, packing: Packing, *, padding_id: int | None, check_ids: bool) -> None:
        if padding_id is not None:
            padding_id = whole_number(padding_id, "padding_id", at_least=-(2**63))
        self.packing, self.padding_id, self.check_ids = packing, padding_id, check_ids
        self.feature_rows = {feature.name: feature.rows for feature in plan.features}
        self.names = SEPARATOR.join(plan)
        self._numbers = {name: number for number, name in enumerate(plan)}
        self.order_starts = [-1] * len(self.feature_rows)  # where the ranks of each feature begin
        self._indices: Indices | None = None

    def number_of(self, feature: str) -> int:
        """The number of a feature."""
        if feature not in self._numbers:
            raise UnknownFeatureError.among(feature, self._numbers)
        return self._numbers[feature]

    def ranks_to_hold(self, order: Mapping[str, Any]) -> Tensor | None:
        """The rank of every id of the features whose ids are not ranks already, one after the other.

        From now on, `rank_of_id` must be that.
        """
        for name in order:
            self.number_of(name)
        parts, held = [], 0
        for name, rows in self.feature_rows.items():
            if name not in order:
                continue
            ranks = ranks_of_ids(order[name], rows, name)
            if not torch.equal(ranks, torch.arange(rows, device="cpu")):
                self.order_starts[self.number_of(name)] = held
                parts.append(ranks.to(torch.int32 if rows < 2**31 else torch.int64))
                held += rows
        return torch.cat(parts) if parts else None

    def indices(self, device: torch.device) -> Indices:
        """What the plan says, as tensors on a device; those of the last device are kept."""
        if self._indices is None or self._indices.features.device != device:
            self._indices = Indices.of(self.packing, self.order_starts, device)
        return self._indices

    def rows(self, ids: Tensor, features: Tensor, rank_of_id: Tensor | None) -> Tensor:
        """Turn ids into rows of the layer, -1 for padding; `features` broadcasts with `ids`."""
        indices = self.indices(features.device)
        if self.check_ids:
            ids = checked_ids(ids, features, indices.num_rows, self.padding_id, self.names)
        else:
            ids = ids.to(torch.int64)
            if self.padding_id is not None:
                ids = ids.masked_fill(ids == self.padding_id, -1)
        rows = self.ranks(ids, features, rank_of_id) + indices.feature_starts[features]
        return rows if self.padding_id is None else rows.where(ids >= 0, -1)

    def bags_of_rows(self, bags: Bags, rank_of_id: Tensor | None) -> Bags:
        """Turn bags of ids into bags of rows of the layer, without padding."""
        rows = bags._replace(values=self.rows(bags.values, bags.features, rank_of_id))
        return rows if self.padding_id is None else rows.where(rows.values >= 0)

    def without_padding(self, bags: Bags) -> Bags:
        """Bags of ids without those that are padding."""
        return bags if self.padding_id is None else bags.where(bags.values != self.padding_id)

    def ranks(self, ids: Tensor, features: Tensor, rank_of_id: Tensor | None) -> Tensor:
        """Turn ids into ranks of popularity, for the features that were given an order."""
        if rank_of_id is None:
            return ids
        start = self.indices(features.device).order_starts[features]
        ordered = (start >= 0) & (ids >= 0)
        ranks = rank_of_id[torch.where(ordered, start + ids, 0)]
        return torch.where(ordered, ranks, ids)
