"""The embeddings of all features of a sample on TorchRec. Knows nothing about ranks or optimizers.

It has the methods of `mixdim.FeatureEmbeddings`, so that models take it as they take that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mixdim._util.arguments import WrongTypeError
from mixdim.distributed.drawing import Drawing
from mixdim.distributed.engine import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    KeyedJaggedTensor,
    KeyedTensor,
)
from mixdim.distributed.quiet import quiet
from mixdim.distributed.routing import Key, KeyRouting, Routed, keys_of
from mixdim.distributed.tables import tables_of
from mixdim.layer.bags import check_bags, checked_offsets, unroll_bags
from mixdim.layer.ids import require_integers
from mixdim.layer.interaction import dot_interaction
from mixdim.layer.packing import pack
from mixdim.layer.routing import Routing
from mixdim.planning.plan import Plan
from mixdim.storages.init import Init, check_init

POOLINGS = ("sum", "mean")


class ShardableEmbeddings(nn.Module):
    """The vectors of all categorical features of a sample, in tables that TorchRec spreads over ranks.

    It has no weights for its tables before `mixdim.distributed.shard` gives each rank its own. Then it
    looks up what a `mixdim.FeatureEmbeddings` of the same plan, options and generator does.

    - `bags`: the features whose samples may have bags of several ids.
    - `pooling`: what becomes of a bag: "sum" or "mean".
    - `init`, `generator`, `padding_id`, `order`, `check_ids`: as in `mixdim.FeatureEmbeddings`.
    """

    rank_of_id: Tensor | None

    def __init__(
        self,
        plan: Plan,
        *,
        bags: Collection[str] = (),
        pooling: str = "sum",
        init: Init = "xavier",
        generator: torch.Generator | None = None,
        padding_id: int | None = None,
        order: Mapping[str, Any] | None = None,
        check_ids: bool = True,
    ) -> None:
        super().__init__()
        if not isinstance(plan, Plan):
            raise WrongTypeError(f"plan must be a mixdim.Plan, got {type(plan).__name__}")
        if pooling not in POOLINGS:
            raise ValueError(f"pooling must be sum or mean on TorchRec, got {pooling!r}")
        check_init(init)
        self.plan, self.pooling = plan, pooling
        self.packing = pack(plan)
        self.routing = Routing(plan, self.packing, padding_id=padding_id, check_ids=check_ids)
        ranks = self.routing.ranks_to_hold(plan.orders if order is None else order)
        self.register_buffer("rank_of_id", ranks)
        self.block_tables = tables_of(self.packing, list(plan))
        keys = keys_of(self.block_tables, {self.routing.number_of(name) for name in bags})
        self.key_routing = KeyRouting(keys, list(plan))
        self._in_slots = {
            group: sorted(
                (key for key in keys if key.table.block.storage.group == group),
                key=lambda key: (key.table.block.slot, key.column),
            )
            for group in self.packing.groups
        }
        self._position = {key.name: number for number, key in enumerate(keys)}
        names: dict[str, list[str]] = {}
        for key in keys:
            names.setdefault(key.table.name, []).append(key.name)
        self.tables = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name=table.name,
                    num_embeddings=table.layout.rows,
                    embedding_dim=table.layout.width,
                    feature_names=names[table.name],
                )
                for table in self.block_tables
            ],
            device=torch.device("meta"),
        )
        for group, blocks in self.packing.groups.items():
            dim = blocks[0].storage.width(plan.base_dim)
            if dim < plan.base_dim:
                projection = torch.empty(len(blocks), dim, plan.base_dim)
                self.register_parameter(f"projection_{group}", nn.Parameter(projection))
        self.drawing = Drawing(self.packing.blocks, plan.base_dim, init, generator)
        for block, values in self.drawing.projections():
            with torch.no_grad():
                getattr(self, f"projection_{block.storage.group}")[block.slot] = values

    @property
    def base_dim(self) -> int:
        """Width of every vector."""
        return self.plan.base_dim

    @property
    def num_features(self) -> int:
        """How many features there are."""
        return self.plan.num_features

    @property
    def feature_names(self) -> list[str]:
        """What the features are called, in their order."""
        return list(self.plan)

    @property
    def num_parameters(self) -> int:
        """Parameters of the plan, whichever rank holds them; padding does not count."""
        return self.plan.num_parameters

    def forward(self, ids: Tensor) -> Tensor:
        """Look up one id for each sample and feature: (batch, feature) -> (batch, feature, base_dim)."""
        require_integers(ids, "ids")
        if ids.dim() != 2 or ids.shape[1] != self.num_features:
            raise ValueError(
                f"ids must have shape (batch, {self.num_features} features), got {tuple(ids.shape)}"
            )
        features = self.routing.indices(ids.device).features
        rows = self.routing.rows(ids, features, self.rank_of_id).t()
        return self._look_up(self.key_routing.to(ids.device).ids(rows), len(ids))

    def bags(self, values: Tensor, offsets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Look up a bag of ids for each feature and sample and pool it: -> (batch, feature, base_dim).

        As in `mixdim.FeatureEmbeddings.bags`, without `weights`.
        """
        if weights is not None:
            raise ValueError("weights of ids in a bag are not there on TorchRec")
        check_bags(values, offsets, None, self.num_features)
        offsets = checked_offsets(offsets, values.shape[0], False)
        bags = unroll_bags(values, offsets, None, self.num_features)
        rows = self.routing.bags_of_rows(bags, self.rank_of_id)
        pooled = self._look_up(self.key_routing.to(values.device).bags(rows), bags.batch_size)
        if self.pooling == "sum":
            return pooled
        counts = self.routing.without_padding(bags).lengths().clamp(min=1)
        return pooled / counts[:, :, None]

    def interact(self, dense: Tensor, ids: Tensor) -> Tensor:
        """Return `mixdim.dot_interaction(dense, layer(ids))`: what DLRM's top MLP reads."""
        return dot_interaction(dense, self(ids))

    def _look_up(self, routed: Routed, batch_size: int) -> Tensor:
        """Sum the bags of all keys and lift them: -> (B, F, base_dim)."""
        if isinstance(self.tables, EmbeddingBagCollection):
            raise RuntimeError(
                "the tables have no weights yet: call mixdim.distributed.shard(model) first"
            )
        names = [key.name for key in self.key_routing.keys]
        with quiet():
            asked = KeyedJaggedTensor(names, routed.values, lengths=routed.lengths, stride=batch_size)
            pooled = self.tables(asked).wait()
            wanted = [[key.name for key in keys] for keys in self._in_slots.values()]
            found = KeyedTensor.regroup([pooled], wanted)
        parts: list[list[Tensor]] = [[] for _ in range(self.num_features)]  # (B, base_dim) each
        for (group, keys), stored in zip(self._in_slots.items(), found, strict=True):
            vectors = self._columns(keys, stored, routed.columns)  # (slots, B, dim)
            if hasattr(self, f"projection_{group}"):
                vectors = vectors @ getattr(self, f"projection_{group}")
            for block, vector in zip(self.packing.groups[group], vectors, strict=True):
                parts[block.feature].append(vector)
        return torch.stack([sum(bands[1:], bands[0]) for bands in parts], 1)

    def _columns(self, keys: list[Key], stored: Tensor, columns: Tensor) -> Tensor:
        """What of stored rows is meant, by slot: (B, K * width) -> (slots, B, dim)."""
        layout, batch_size = keys[0].table.layout, len(stored)
        stored = stored.view(batch_size, len(keys), layout.width)
        if layout.fold == 1:
            return stored[:, :, : layout.dim].transpose(0, 1)
        own = columns[[self._position[key.name] for key in keys]].t()  # (B, K)
        index = own[:, :, None, None].expand(-1, -1, 1, layout.dim)
        taken = stored.view(batch_size, len(keys), layout.fold, layout.dim).gather(2, index).squeeze(2)
        slots = [key.table.block.slot for key in keys]
        if len(set(slots)) == len(slots):
            return taken.transpose(0, 1)
        summed = taken.new_zeros(slots[-1] + 1, batch_size, layout.dim)
        return summed.index_add(0, torch.tensor(slots, device=taken.device), taken.transpose(0, 1))
