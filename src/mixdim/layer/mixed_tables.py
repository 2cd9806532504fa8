"""Tables and projections of a plan, looked up by id: what both faces of the layer share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn

from mixdim import kernels
from mixdim.arguments import whole_number
from mixdim.data_parallel import refuse_plain_data_parallel
from mixdim.kernels.lookup import lookup as kernel_lookup
from mixdim.kernels.structs import LayerArguments, Layout
from mixdim.layer.bags import (
    Bags,
    Pooling,
    check_bags,
    check_pooling,
    checked_offsets,
    reduce_bags,
    unroll_bags,
)
from mixdim.layer.ids import SEPARATOR, checked_ids, ranks_of_ids
from mixdim.layer.indices import Indices
from mixdim.layer.lookup import Weights, lookup, lookup_each, lookup_sum
from mixdim.layer.packing import Packing, pack
from mixdim.planning.plan import Plan, UnknownFeatureError

Init = Literal["xavier", "he_fan_in", "he_fan_out"]


class MixedTables(nn.Module):
    """Tables and projections of all blocks of a plan: what both faces of the layer share.

    Blocks of one width share a parameter: `table_4` is (rows, 4) and `projection_4` is
    (blocks, 4, base_dim). There is no projection at full width.

    - `sparse`: tables get row-sparse gradients (projections always get dense ones).
    - `pooling`: what becomes of a bag: "sum", "mean", "max", "product" or "concat".
    - `init`, `generator`: how weights are drawn, "xavier", "he_fan_in" or "he_fan_out", and from what.
    - `padding_id`: an id that stands for no id: it gives zeros, takes no gradient and does not count
      in a bag. It may lie outside the rows, such as -1.
    - `order`: for features with bands whose ids are not in descending order of popularity, their ids
      from popular to rare. If not given, `plan.orders`; `{}` says that ids are ranks of popularity
      already. It is saved with the state.
    - `check_ids`: whether an id out of range raises an IndexError. Only switch it off for ids that
      have been checked already, for instance to export a graph of nothing but PyTorch's operators.
    """

    rank_of_id: Tensor | None
    _held_indices: Indices

    def __init__(
        self,
        plan: Plan,
        *,
        sparse: bool = False,
        pooling: Pooling = "sum",
        init: Init = "xavier",
        generator: torch.Generator | None = None,
        padding_id: int | None = None,
        order: Mapping[str, Any] | None = None,
        check_ids: bool = True,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(plan, Plan):
            raise TypeError(f"plan must be a mixdim.Plan, got {type(plan).__name__}")
        check_pooling(pooling)
        if init not in get_args(Init):
            raise ValueError(f"init must be one of {', '.join(get_args(Init))}, got {init!r}")
        if padding_id is not None:
            padding_id = whole_number(padding_id, "padding_id", at_least=-(2**63))
        self.plan = replace(plan, named_orders=())  # rank_of_id has them
        self.sparse, self.pooling, self.init = sparse, pooling, init
        self.padding_id, self.check_ids = padding_id, check_ids

        self._names = SEPARATOR.join(plan)
        self._numbers = {name: number for number, name in enumerate(plan)}
        self._packing = pack(plan)
        self._fits_kernels = all(block.size < 2**31 for block in self._packing.blocks)
        for width, rows in self._packing.table_rows.items():
            table = torch.empty(rows, width, dtype=dtype, device=device)
            self.register_parameter(f"table_{width}", nn.Parameter(table))
        for width, slots in self._packing.num_projections.items():
            projection = torch.empty(slots, width, plan.base_dim, dtype=dtype, device=device)
            self.register_parameter(f"projection_{width}", nn.Parameter(projection))
        self._hold_order(plan.orders if order is None else order)
        self._hold_layout()
        self._describe_rows()
        self.reset_parameters(generator)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # torch has no type for it
        self._describe_rows()  # a copied parameter loses its attributes

    def _describe_rows(self) -> None:
        """Let an error about a row of a table name the feature: `mixdim.SparseAMSGrad` asks for it."""
        for width in self._packing.table_rows:
            describe = partial(_describe_row, self._packing, tuple(self.plan), width)
            getattr(self, f"table_{width}").describe_row = describe

    @property
    def base_dim(self) -> int:
        """Width of every vector that leaves the layer."""
        return self.plan.base_dim

    @property
    def num_parameters(self) -> int:
        """Parameters that this module really has; its plan says the same number."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def row_sparse_tables(self) -> list[nn.Parameter]:
        """The parameters that get row-sparse gradients: all tables if `sparse`, else none."""
        widths = self._packing.table_rows if self.sparse else ()
        return [getattr(self, f"table_{width}") for width in widths]

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw all weights anew, uniformly, each block's table and projection by its own shape."""
        weights = self._weights()
        for block in self._packing.blocks:
            # torch.nn.init, too, takes an embedding's width as its fan-in and its rows as its fan-out.
            bound = _uniform_bound(self.init, fan_in=block.dim, fan_out=block.size)
            weights.table(block).uniform_(-bound, bound, generator=generator)
            if block.dim < self.base_dim:
                bound = _uniform_bound(self.init, fan_in=block.dim, fan_out=self.base_dim)
                projection = weights.projections[block.dim][block.slot]
                projection.uniform_(-bound, bound, generator=generator)

    @torch.no_grad()
    def load_blocks(self, feature: str, tables: Sequence[Any], projections: Sequence[Any]) -> None:
        """Copy given weights into the blocks of a feature, from popular to rare.

        Block i of the plan takes `tables[i]`, (size, dim), its rows by rank of popularity, and
        `projections[i]`, (dim, base_dim), which is None for a block of full width. Nothing is copied
        unless all of it fits.
        """
        weights, blocks = self._weights(), self._packing.of_feature[self._number_of(feature)]
        if not len(blocks) == len(tables) == len(projections):
            raise ValueError(
                f"feature {feature!r} has {len(blocks)} blocks, got {len(tables)} tables and "
                f"{len(projections)} projections"
            )
        copies: list[tuple[Tensor, Tensor]] = []
        for i, (block, table, projection) in enumerate(zip(blocks, tables, projections, strict=True)):
            copies.append(_fitting(weights.table(block), table, f"tables[{i}] of feature {feature!r}"))
            name = f"projections[{i}] of feature {feature!r}"
            if block.dim < self.base_dim:
                copies.append(_fitting(weights.projections[block.dim][block.slot], projection, name))
            elif projection is not None:
                raise ValueError(f"{name} must be None: the block has the full width {self.base_dim}")
        for target, values in copies:
            target.copy_(values)

    def dense_weight(self, feature: str | None = None) -> Tensor:
        """Return the matrix the layer stands for, one row an id: (rows, base_dim).

        Without a name, the matrices of all features one below the other. It is differentiable, and
        as large as the layer would be without mixed dimensions.
        """
        if feature is None:
            return torch.cat([self.dense_weight(name) for name in self.plan])
        number, weights = self._number_of(feature), self._weights()
        by_rank = torch.cat([weights.dense(block) for block in self._packing.of_feature[number]])
        ids = torch.arange(len(by_rank), device=by_rank.device)
        weight = by_rank[self._ranks(ids, self._indices.features[number])]
        if self.padding_id is None:
            return weight
        return weight.masked_fill((ids == self.padding_id)[:, None], 0.0)

    def _number_of(self, feature: str) -> int:
        if feature not in self._numbers:
            raise UnknownFeatureError.among(feature, self.plan)
        return self._numbers[feature]

    def extra_repr(self) -> str:
        """What `print(layer)` shows."""
        widths = ", ".join(str(width) for width in self._packing.table_rows)
        return (
            f"{self.plan.num_features} features, {self.plan.num_rows:,} rows, "
            f"base_dim={self.base_dim}, widths {widths}, {self.num_parameters:,} parameters"
        )

    def _lookup(self, ids: Tensor) -> Tensor:
        """Look up one id for each sample and feature: (B, F) -> (B, F, base_dim)."""
        if self.takes_kernels(ids):
            return kernel_lookup(ids, None, None, self.kernel_arguments())
        return lookup(self._weights(), self._rows(ids, self._indices.features).t())

    def _lookup_bags(self, values: Tensor, offsets: Tensor, weights: Tensor | None) -> Tensor:
        """Look up and pool bags: (V,), (F * B + 1,) -> (B, F, base_dim)."""
        if weights is not None and self.pooling != "sum":
            raise ValueError(f"weights need pooling='sum', this layer has pooling={self.pooling!r}")
        check_bags(values, offsets, weights, self.plan.num_features)
        one_length = self.pooling == "concat"
        if self.check_ids:
            offsets = checked_offsets(offsets, values.shape[0], one_length)
        if one_length:
            return self._concat(values, offsets.shape[0] - 1)
        offsets = offsets.to(torch.int64)
        bags = unroll_bags(values, offsets, weights, self.plan.num_features)
        if self.pooling == "max" or self.pooling == "product":
            found = self._bags_of_rows(bags)
            vectors = lookup_each(self._weights(), found.values, self._packing.blocks)
            return reduce_bags(found, vectors, self.pooling)
        if self.takes_kernels(values, weights):
            row_weights = None if weights is None else weights.to(torch.float32)
            summed = kernel_lookup(values, offsets, row_weights, self.kernel_arguments())
        else:
            summed = lookup_sum(self._weights(), self._bags_of_rows(bags))
        if self.pooling == "sum":
            return summed
        counted = bags if self.padding_id is None else bags.where(bags.values != self.padding_id)
        return summed / counted.lengths().clamp(min=1)[:, :, None]

    def _bags_of_rows(self, bags: Bags) -> Bags:
        """Turn bags of ids into bags of rows of the layer, without padding."""
        rows = bags._replace(values=self._rows(bags.values, bags.features))
        return rows if self.padding_id is None else rows.where(rows.values >= 0)

    def _concat(self, values: Tensor, num_bags: int) -> Tensor:
        """Look up bags of one length and put their vectors side by side."""
        features = self.plan.num_features
        batch, length = num_bags // features, values.shape[0] // max(num_bags, 1)
        ids = values.view(features, batch * length).t()  # (B * length, F)
        vectors = self._lookup(ids).view(batch, length, features, self.base_dim)
        return vectors.transpose(1, 2).reshape(batch, features, length * self.base_dim)

    def takes_kernels(self, ids: Tensor, row_weights: Tensor | None = None) -> bool:
        """Whether the kernels can look these ids up; if not, plain PyTorch does."""
        if not kernels.available() or not self._fits_kernels:
            return False
        if self.sparse and torch.is_grad_enabled() and torch.compiler.is_dynamo_compiling():
            return False  # PyTorch cannot trace a sparse gradient whose length depends on the ids
        if kernels.tracing() or (kernels.exporting() and not self.check_ids):
            return False  # so that the graph has only operators of PyTorch
        return (
            ids.dtype in (torch.int32, torch.int64)
            and ids.is_cpu
            and all(
                p.dtype is torch.float32 and p.is_cpu and p.is_contiguous() for p in self.parameters()
            )
            and (row_weights is None or not row_weights.requires_grad)
            and (self.rank_of_id is None or self.rank_of_id.dtype == torch.int32)
        )

    def kernel_arguments(self) -> LayerArguments:
        """What the kernels are told about this layer."""
        if self.sparse:
            refuse_plain_data_parallel()
        return LayerArguments(
            tables=[getattr(self, f"table_{width}") for width in self._packing.table_rows],
            projections=[
                getattr(self, f"projection_{width}") for width in self._packing.num_projections
            ],
            rank_of_id=self.rank_of_id,
            blocks=self._block_layout,
            features=self._feature_layout,
            base_dim=self.base_dim,
            padding_id=self.padding_id,
            names=self._names,
            sparse=self.sparse,
            layout=self._layout,
        )

    def projection_rows(self) -> Tensor:
        """The projections of all blocks one below the other; the identity for a block of full width."""
        projections = self._weights().projections
        rows = [
            projections[block.dim][block.slot]
            if block.dim in projections
            else torch.eye(
                self.base_dim, device=self._indices.features.device, dtype=self._first_table.dtype
            )
            for block in self._packing.blocks
        ]
        return torch.cat(rows)

    def _rows(self, ids: Tensor, features: Tensor) -> Tensor:
        """Turn ids into rows of the layer, -1 for padding; `features` broadcasts with `ids`."""
        if self.check_ids:
            ids = checked_ids(ids, features, self._indices.num_rows, self.padding_id, self._names)
        else:
            ids = ids.to(torch.int64)
            if self.padding_id is not None:
                ids = ids.masked_fill(ids == self.padding_id, -1)
        rows = self._ranks(ids, features) + self._indices.feature_starts[features]
        return rows if self.padding_id is None else rows.where(ids >= 0, -1)

    def _ranks(self, ids: Tensor, features: Tensor) -> Tensor:
        """Turn ids into ranks of popularity, for the features that were given an order."""
        if self.rank_of_id is None:
            return ids
        start = self._indices.order_starts[features]
        ordered = (start >= 0) & (ids >= 0)
        ranks = self.rank_of_id[torch.where(ordered, start + ids, 0)]
        return torch.where(ordered, ranks, ids)

    def _weights(self) -> Weights:
        """Collect what a lookup reads."""
        if self.sparse:
            refuse_plain_data_parallel()
        return Weights(
            packing=self._packing,
            indices=self._indices,
            tables={width: getattr(self, f"table_{width}") for width in self._packing.table_rows},
            projections={
                width: getattr(self, f"projection_{width}") for width in self._packing.num_projections
            },
            sparse=self.sparse,
            padded=self.padding_id is not None,
        )

    @property
    def _first_table(self) -> Tensor:
        return getattr(self, f"table_{next(iter(self._packing.table_rows))}")

    @property
    def _indices(self) -> Indices:
        """What the plan says, beside the tables, wherever they have come to since the last time."""
        device = self._first_table.device
        if self._held_indices.features.device != device:
            self._held_indices = Indices.of(self._packing, self._order_starts, device)
        return self._held_indices

    def _hold_order(self, order: Mapping[str, Any]) -> None:
        """Hold the rank of every id of the features whose ids are not ranks already."""
        for name in order:
            self._number_of(name)
        self._order_starts, parts, held = [-1] * self.plan.num_features, [], 0
        for number, feature in enumerate(self.plan.features):
            if feature.name not in order:
                continue
            ranks = ranks_of_ids(order[feature.name], feature.rows, feature.name)
            if not torch.equal(ranks, torch.arange(feature.rows, device="cpu")):
                self._order_starts[number] = held
                parts.append(ranks.to(torch.int32 if feature.rows < 2**31 else torch.int64))
                held += feature.rows
        self.register_buffer("rank_of_id", torch.cat(parts) if parts else None)
        self._place_order()

    def _place_order(self) -> None:
        """Put the order beside the tables; where these have no memory yet, it stays as it is."""
        device = self._first_table.device
        if self.rank_of_id is not None and device.type != "meta":
            self.rank_of_id = self.rank_of_id.to(device)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        """Change weights as nn.Module does; the order, which no one can draw anew, only moves along."""
        order, self.rank_of_id = self.rank_of_id, None
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch has no type for it
        self.rank_of_id = order
        self._place_order()
        return self

    def _hold_layout(self) -> None:
        """Describe blocks and features, for plain PyTorch and for the kernels, which work on the CPU."""
        self._held_indices = Indices.of(self._packing, self._order_starts, self._first_table.device)
        layouts = self._packing.block_layout, self._packing.feature_layout(self._order_starts)
        self._block_layout, self._feature_layout = (
            torch.tensor(layout, dtype=torch.int64, device="cpu") for layout in layouts
        )
        self._layout = Layout(self._block_layout, self._feature_layout, self.base_dim)


def _describe_row(packing: Packing, names: tuple[str, ...], width: int, table_row: int) -> str:
    feature, rank = packing.feature_row(width, table_row)
    return f"row {rank} of feature {names[feature]!r}"


def _fitting(target: Tensor, values: Any, name: str) -> tuple[Tensor, Tensor]:
    """The target with the values to copy there, if they have its shape."""
    if values is None:
        raise ValueError(f"{name} must have shape {tuple(target.shape)}, got None")
    tensor = torch.as_tensor(values)
    if tensor.shape != target.shape:
        raise ValueError(f"{name} must have shape {tuple(target.shape)}, got {tuple(tensor.shape)}")
    return target, tensor


def _uniform_bound(init: Init, *, fan_in: int, fan_out: int) -> float:
    """The bound of the uniform distribution: sqrt(6 / (fan_in + fan_out)), or sqrt(6 / fan) for He."""
    fan = {"xavier": fan_in + fan_out, "he_fan_in": fan_in, "he_fan_out": fan_out}[init]
    return math.sqrt(6 / fan)
