"""The embeddings of all features of a sample on TorchRec. Knows nothing about ranks or optimizers.

It has the methods of `mixdim.FeatureEmbeddings`, so that models take it as they take that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mixdim._util.arguments import WrongTypeError
from mixdim.distributed.engine import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    KeyedJaggedTensor,
    KeyedTensor,
)
from mixdim.distributed.process_group import broadcast, concatenate, torchrec_warnings
from mixdim.distributed.routing import Key, KeyRouting, Routed, keys_of
from mixdim.distributed.tables import tables_of
from mixdim.kernels.ids import require_integers
from mixdim.layer.bags import check_bags, checked_offsets, unroll_bags
from mixdim.layer.idmap import IdMap
from mixdim.layer.interaction import dot_interaction
from mixdim.layer.layout import LIFT, LaidBlock, Layout
from mixdim.planning.plan import Plan
from mixdim.storages.init import BlockInit, Init, check_init, seed_from
from mixdim.training.optimizers import decay_rows

ROWS_AT_ONCE = 2**18
POOLINGS = ("sum", "mean")


class ShardableEmbeddings(nn.Module):
    """The vectors of all categorical features of a sample, in tables that TorchRec spreads over ranks.

    It has no weights for its tables before `mixdim.distributed.shard` gives each rank its own. Then it
    looks up what a `mixdim.FeatureEmbeddings` of the same plan, options and generator does.

    - `bags`: the features whose samples may have bags of several ids.
    - `pooling`: what becomes of a bag: "sum" or "mean".
    - `init`: as in `mixdim.FeatureEmbeddings`, or None: all weights begin with 0.
    - `generator`, `padding_id`, `ids`, `check_ids`: as in `mixdim.FeatureEmbeddings`.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        bags: Collection[str] = (),
        pooling: str = "sum",
        init: Init | None = "xavier",
        generator: torch.Generator | None = None,
        padding_id: int | None = None,
        ids: Mapping[str, Any] | None = None,
        check_ids: bool = True,
    ) -> None:
        super().__init__()
        if not isinstance(plan, Plan):
            raise WrongTypeError(f"plan must be a mixdim.Plan, got {type(plan).__name__}")
        if pooling not in POOLINGS:
            raise ValueError(f"pooling must be sum or mean on TorchRec, got {pooling!r}")
        if init is not None:
            check_init(init)
        self.plan, self.pooling = plan, pooling
        self.layout = Layout.of(plan)
        sizes = {feature.name: feature.rows for feature in plan.features}
        self.ids = IdMap.ordered(sizes, plan.orders if ids is None else ids)
        self.ids.set_padding(padding_id)
        self.ids.check_ids = check_ids
        self.block_tables = tables_of(self.layout, list(plan))
        keys = keys_of(self.block_tables, {self.ids.number_of(name) for name in bags})
        self.key_routing = KeyRouting(keys, list(plan))
        self._in_slots = {
            group: sorted(
                (key for key in keys if key.table.block.storage.group == group),
                key=lambda key: (key.table.block.slot, key.column),
            )
            for group in self.layout.groups
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
        # What this rank holds of each table, by name: the first stored row, and the rows; once sharded.
        self.parts: dict[str, list[tuple[int, Tensor]]] = {}
        self.records_numbers = False  # of what is looked up in training, for `decay`
        self._numbers: list[Tensor] = []
        self.init = init
        self.seed = 0 if init is None else seed_from(generator)  # of first weights
        lift = torch.zeros(self.layout.lift_rows, plan.base_dim)
        for block in self.layout.blocks:
            if block.lift_row >= 0 and (how := self._block_init(block)) is not None:
                own = lift[block.lift_row : block.lift_row + block.storage.dim]
                how.projection(*own.shape).fill(own)
        if len(lift):
            self.lift = nn.Parameter(lift)

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
        rows = self.ids(ids, torch.arange(self.num_features, device=ids.device)).t()
        return self._look_up(self.key_routing.to(ids.device).ids(rows), len(ids))

    def bags(self, values: Tensor, offsets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Look up a bag of ids for each feature and sample and pool it: -> (batch, feature, base_dim).

        As in `mixdim.FeatureEmbeddings.bags`, without `weights`.
        """
        if weights is not None:
            raise ValueError("TorchRec does not take weights of ids in a bag")
        check_bags(values, offsets, None, self.num_features)
        offsets = checked_offsets(offsets, values.shape[0], False)
        bags = unroll_bags(values, offsets, None, self.num_features)
        rows = self.ids.bags(bags)
        pooled = self._look_up(self.key_routing.to(values.device).bags(rows), bags.batch_size)
        if self.pooling == "sum":
            return pooled
        counts = self.ids.without_padding(bags).lengths().clamp(min=1)
        return pooled / counts[:, :, None]

    def interact(self, dense: Tensor, ids: Tensor) -> Tensor:
        """Return `mixdim.dot_interaction(dense, layer(ids))`: what DLRM's top MLP reads."""
        return dot_interaction(dense, self(ids))

    @torch.no_grad()
    def draw_tables(self) -> None:
        """Draw the first weights of the rows that this rank holds, as rank 0's seed says.

        Every rank calls it.
        """
        self.seed = int(broadcast(torch.tensor(self.seed)))
        for table in self.block_tables:
            for first, rows in self.parts[table.name]:
                rows.zero_()  # also what stands for nothing
                if (how := self._block_init(table.block)) is not None:
                    drawn = how.rows(table.layout.dim, table.block.size)
                    table.layout.fill(drawn.rows, rows, first)

    def _block_init(self, block: LaidBlock) -> BlockInit | None:
        """How the weights of a block are drawn; None if they begin with 0."""
        if self.init is None:
            return None
        return BlockInit(self.init, self.seed, block.feature, block.number)

    @torch.no_grad()
    def fit_dense(self, feature: str, matrix: Tensor) -> None:
        """Set a feature of one block of full width to the matrix (rows, base_dim) that rank 0 has.

        Every rank calls it, others with any matrix of the same shape, such as one on "meta". A rank gets
        some rows at a time and keeps those that it holds.
        """
        tables = [t for t in self.block_tables if t.block.feature == self.ids.number_of(feature)]
        table, *others = tables
        if others or table.block.lift_row >= 0:
            raise ValueError(f"feature {feature!r} must be one block of full width on TorchRec")
        if matrix.shape != (table.block.size, self.base_dim):
            wanted = (table.block.size, self.base_dim)
            raise ValueError(
                f"matrix of feature {feature!r} must have shape {wanted}, got {tuple(matrix.shape)}"
            )
        for first in range(0, len(matrix), ROWS_AT_ONCE):
            some = matrix[first : first + ROWS_AT_ONCE]
            rows = broadcast(torch.empty(some.shape) if some.is_meta else some)
            for local_first, local in self.parts[table.name]:
                table.layout.put(first, rows, local, local_first)

    @property
    def is_to_decay(self) -> bool:
        """Whether rows were looked up that `decay` has not seen yet."""
        return bool(self._numbers)

    def decay(self, factor: float) -> None:
        """Multiply the rows that any rank has looked up in training since this was last called.

        Every rank calls it. Rows of one stored row that were not looked up stay as they are.
        """
        none = torch.zeros(0, dtype=torch.int64)
        numbers = concatenate(torch.cat([none, *self._numbers])).unique()
        self._numbers.clear()
        for table in self.block_tables:
            fold, own = table.layout.fold, self.key_routing.numbers_of[table.name]
            for first, rows in self.parts[table.name]:
                start = own.start + first * fold
                here = numbers[(numbers >= start) & (numbers < start + len(rows) * fold)] - start
                decay_rows(rows.view(len(rows) * fold, -1), here, factor)

    def _look_up(self, routed: Routed, batch_size: int) -> Tensor:
        """Sum the bags of all keys and lift them: -> (B, F, base_dim)."""
        if isinstance(self.tables, EmbeddingBagCollection):
            raise RuntimeError(
                "the tables have no weights yet: call mixdim.distributed.shard(model) first"
            )
        if self.records_numbers and self.training and torch.is_grad_enabled():
            self._numbers.append(self.key_routing.numbers(routed))
        names = [key.name for key in self.key_routing.keys]
        with torchrec_warnings():
            keyed = KeyedJaggedTensor(names, routed.values, lengths=routed.lengths, stride=batch_size)
            pooled = self.tables(keyed).wait()
            wanted = [[key.name for key in keys] for keys in self._in_slots.values()]
            found = KeyedTensor.regroup([pooled], wanted)
        parts: list[list[Tensor]] = [[] for _ in range(self.num_features)]  # (B, base_dim) each
        projections = self.layout.projections(getattr(self, LIFT, None))
        for (group, keys), stored in zip(self._in_slots.items(), found, strict=True):
            vectors = self._columns(keys, stored, routed.columns)  # (slots, B, dim)
            if group in projections:
                vectors = vectors @ projections[group]
            for block, vector in zip(self.layout.groups[group], vectors, strict=True):
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
