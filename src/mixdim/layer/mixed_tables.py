"""The parameters of a plan and what looks them up: what both faces of the layer share.

The layer holds all tensors, under names that never change; routing and tables say what they mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from mixdim.kernels.structs import LayerArguments
from mixdim.layer.bags import Pooling, check_pooling
from mixdim.layer.data_parallel import refuse_plain_data_parallel
from mixdim.layer.given import as_array, finite_numbers, fitting
from mixdim.layer.indices import Indices
from mixdim.layer.kernel_part import KernelPart
from mixdim.layer.lookup import Tables
from mixdim.layer.packing import pack
from mixdim.layer.paths import takes_kernels
from mixdim.layer.rounded_part import RoundedPart
from mixdim.layer.routing import Routing
from mixdim.planning.plan import Plan
from mixdim.storages.init import Init, check_init


class MixedTables(nn.Module):
    """The parameters of all blocks of a plan: what both faces of the layer share.

    Blocks of one storage and width share their parameters: `table_4` is (rows, 4) and `projection_4` is
    (blocks, 4, base_dim); there is no projection at full width. Of hashed blocks they are
    `table_hashed2_4` and `projection_hashed2_4`, with the number of hashes.

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
        check_init(init)
        self.sparse, self.pooling, self.init = sparse, pooling, init

        self.plan, self.packing = plan, pack(plan)
        self.routing = Routing(plan, self.packing, padding_id=padding_id, check_ids=check_ids)
        self._hold_parameters(dtype, device)
        self._hold_order(order)
        self.kernel_part = KernelPart(self.packing, self.routing.order_starts)
        self._kernel_tensors = {
            name: [f"{name}_{g}" for g in self.kernel_part.groups if name in self._tensor_names[g]]
            for name in ("table", "projection")
        }
        self._describe_rows()
        self.reset_parameters(generator)

    def _hold_parameters(self, dtype: torch.dtype | None, device: torch.device | str | None) -> None:
        """Make room for the tensors of all tables: first the tables', then the projections."""
        self._tensor_names: dict[str, list[str]] = {group: [] for group in self.packing.groups}
        self._of_fixed_type: list[str] = []
        wanted = [
            (name, group, held)
            for group, blocks in self.packing.groups.items()
            for name, held in blocks[0].storage.table_type.holds(blocks, self.base_dim).items()
        ]
        for name, group, held in sorted(wanted, key=lambda entry: entry[0] != "table"):
            own_type = None if held.dtype is None else getattr(torch, held.dtype)
            tensor = torch.empty(held.shape, dtype=own_type or dtype, device=device)
            if held.is_trained:
                self.register_parameter(f"{name}_{group}", nn.Parameter(tensor))
            else:
                self.register_buffer(f"{name}_{group}", tensor)
            self._tensor_names[group].append(name)
            if held.dtype is not None:
                self._of_fixed_type.append(f"{name}_{group}")

    def _hold_order(self, order: Mapping[str, Any] | None) -> None:
        """Hold the ranks of ids; with another order than the plan's, it is that of this layer's plan."""
        ranks = self.routing.ranks_to_hold(self.plan.orders if order is None else order)
        if order is not None:
            named = tuple((name, as_array(ids)) for name, ids in order.items())
            self.plan = replace(self.plan, named_orders=named)
        self.register_buffer("rank_of_id", ranks)
        self._place_order()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # torch has no type for it
        self._describe_rows()  # a copied parameter loses its attributes

    def _describe_rows(self) -> None:
        """Let tables say whose a row is, for errors of an optimizer, and how large gradients can be."""
        names = tuple(self.plan)
        for group, blocks in self.packing.groups.items():
            for name in blocks[0].storage.table_type.row_sparse:
                table = getattr(self, f"{name}_{group}")
                table.describe_row = partial(self.packing.describe_row, group, names=names)
                table.gradient_rows_per_id = blocks[0].storage.gradient_rows_per_id

    @property
    def base_dim(self) -> int:
        """Width of every vector that leaves the layer."""
        return self.plan.base_dim

    @property
    def num_features(self) -> int:
        """How many features there are."""
        return self.plan.num_features

    @property
    def padding_id(self) -> int | None:
        """The id that stands for no id."""
        return self.routing.padding_id

    @property
    def check_ids(self) -> bool:
        """Whether an id out of range raises an IndexError."""
        return self.routing.check_ids

    @check_ids.setter
    def check_ids(self, check: bool) -> None:
        self.routing.check_ids = check

    @property
    def num_parameters(self) -> int:
        """Parameters that this module really has; its plan says the same number."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def row_sparse_tables(self) -> list[nn.Parameter]:
        """The parameters that get row-sparse gradients: all tables if `sparse`, else none."""
        if not self.sparse:
            return []
        return [
            getattr(self, f"{name}_{group}")
            for group, blocks in self.packing.groups.items()
            for name in blocks[0].storage.table_type.row_sparse
        ]

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw all weights anew, uniformly, each block's table and projection by its own shape."""
        tables = self.tables()
        for block in self.packing.blocks:
            tables.of_block(block).draw(block, self.init, generator)

    @torch.no_grad()
    def load_blocks(self, feature: str, tables: Sequence[Any], projections: Sequence[Any]) -> None:
        """Copy given weights into the blocks of a feature, from popular to rare.

        Block i of the plan takes `tables[i]`, its stored rows: (size, dim), by rank of popularity, where
        each row has its own. And `projections[i]`, (dim, base_dim), None for a block of full width.
        Nothing is copied unless all of it fits.
        """
        own, blocks = self.tables(), self.packing.of_feature[self.routing.number_of(feature)]
        if not len(blocks) == len(tables) == len(projections):
            raise ValueError(
                f"feature {feature!r} has {len(blocks)} blocks, got {len(tables)} tables and "
                f"{len(projections)} projections"
            )
        copies: list[tuple[Tensor, Tensor]] = []
        for i, (block, table, projection) in enumerate(zip(blocks, tables, projections, strict=True)):
            if not block.storage.is_trained:
                raise ValueError(
                    f"block {i} of feature {feature!r} is stored as {block.storage}: load weights into "
                    "a layer of the plan before it was quantized, then quantize it"
                )
            parts = own.of_block(block).parts(block)
            copies.append(fitting(parts["table"], table, f"tables[{i}] of feature {feature!r}"))
            name = f"projections[{i}] of feature {feature!r}"
            if "projection" in parts:
                copies.append(fitting(parts["projection"], projection, name))
            elif projection is not None:
                raise ValueError(f"{name} must be None: the block has the full width {self.base_dim}")
        for target, values in copies:
            target.copy_(values)

    @torch.no_grad()
    def fit_dense(self, feature: str, matrix: Any, row_weights: Any = None) -> None:
        """Set the blocks of a feature so that `dense_weight(feature)` comes near a given matrix.

        `matrix` (rows, base_dim) has one row an id, and `row_weights` (rows,), such as counts, says how
        much each matters: the sum of weight * squared distance is made small, block by block. Where rows
        are stored on their own (`mixdim.Rows`) it is the least possible: the weighted SVD.
        """
        number, tables = self.routing.number_of(feature), self.tables()
        rows = self.plan.features[number].rows
        matrix = finite_numbers(matrix, (rows, self.base_dim), f"matrix of feature {feature!r}")
        weights = torch.ones(rows) if row_weights is None else row_weights
        weights = finite_numbers(weights, (rows,), f"row_weights of feature {feature!r}")
        if bool((weights < 0).any()):
            raise ValueError(f"row_weights of feature {feature!r} must not be negative")
        id_of_rank = self._ranks(torch.arange(rows, device=self._device), number).argsort()
        by_rank, weights = (values.to(self._device)[id_of_rank] for values in (matrix, weights))
        blocks, start = self.packing.of_feature[number], 0
        for block in blocks:
            if reason := tables.of_block(block).why_not_to_fit:
                raise ValueError(f"feature {feature!r} cannot be fitted: {reason}")
        for block in blocks:
            here = slice(start, start := start + block.size)
            mass = weights[here] / weights[here].max()
            mass = mass if bool(weights[here].any()) else torch.ones_like(mass)
            tables.of_block(block).fit_dense(block, by_rank[here], mass)

    @torch.no_grad()
    def quantized(self, bits: int = 8) -> Self:
        """The same layer with its narrow blocks rounded to 8 or 4 bits: a new one, not to be trained.

        Its plan is `plan.quantized(bits)`, and its options are those of this layer. No stored number
        changes by more than half the scale of its group; what other storages hold is copied.

        >>> import mixdim
        >>> layer = mixdim.MixedDimEmbedding(mixdim.plan({"x": 50}, temperature=0, base_dim=4))
        >>> small = layer.quantized()
        >>> bool((small.dense_weight() - layer.dense_weight()).abs().max() < 0.005 * layer.table_4.max())
        True
        """
        layer = type(self)(
            self.plan.quantized(bits),
            sparse=self.sparse,
            pooling=self.pooling,
            init=self.init,
            padding_id=self.padding_id,
            check_ids=self.check_ids,
            dtype=next((parameter.dtype for parameter in self.parameters()), None),
            device="meta",  # nothing is drawn there
        )
        layer.to_empty(device=self._device).train(self.training)
        layer.rank_of_id = None if self.rank_of_id is None else self.rank_of_id.clone()
        mine, others = self.tables(), layer.tables()
        for block, other in zip(self.packing.blocks, layer.packing.blocks, strict=True):
            try:
                others.of_block(other).fill(other, mine.of_block(block).parts(block))
            except ValueError as error:
                name = self.plan.features[block.feature].name
                raise ValueError(f"feature {name!r} cannot be quantized: {error}") from None
        return layer

    def dense_weight(self, feature: str | None = None) -> Tensor:
        """Return the matrix the layer stands for, one row an id: (rows, base_dim).

        Without a name, the matrices of all features one below the other. It is differentiable, and
        as large as the layer would be without mixed dimensions.
        """
        if feature is None:
            return torch.cat([self.dense_weight(name) for name in self.plan])
        number, tables = self.routing.number_of(feature), self.tables()
        blocks = self.packing.of_feature[number]
        by_rank = torch.cat([tables.of_block(block).dense(block) for block in blocks])
        ids = torch.arange(len(by_rank), device=by_rank.device)
        weight = by_rank[self._ranks(ids, number)]
        if self.padding_id is None:
            return weight
        return weight.masked_fill((ids == self.padding_id)[:, None], 0.0)

    def extra_repr(self) -> str:
        """What `print(layer)` shows."""
        widths = ", ".join(self.packing.groups)
        return (
            f"{self.num_features} features, {self.plan.num_rows:,} rows, "
            f"base_dim={self.base_dim}, widths {widths}, {self.num_parameters:,} parameters"
        )

    def takes_kernels(self, ids: Tensor, row_weights: Tensor | None = None) -> bool:
        """Whether the kernels can look all these ids up; if not, plain PyTorch does, or helps."""
        return self.kernel_part.is_all and takes_kernels(self, ids, row_weights)

    def kernel_arguments(self) -> LayerArguments:
        """What the kernels are told about this layer: about its narrow blocks."""
        if self.sparse:
            refuse_plain_data_parallel()
        part = self.kernel_part
        return LayerArguments(
            tables=[getattr(self, name) for name in self._kernel_tensors["table"]],
            projections=[getattr(self, name) for name in self._kernel_tensors["projection"]],
            rank_of_id=self.rank_of_id if part.is_all else None,
            blocks=part.block_layout,
            features=part.feature_layout,
            base_dim=self.base_dim,
            padding_id=self.padding_id if part.is_all else -1,
            names=self.routing.names,
            sparse=self.sparse,
            layout=part.layout,
        )

    @cached_property
    def rounded_part(self) -> RoundedPart:
        """What one kernel reads of a layer with rounded blocks."""
        return RoundedPart(self.packing, self.routing.order_starts)

    def projection_rows(self) -> Tensor:
        """The projections of all blocks one below the other; the identity for a block of full width."""
        tables = self.tables()
        eye = torch.eye(self.base_dim, device=self._device, dtype=self._first_table.dtype)
        parts = (tables.of_block(block).parts(block) for block in self.packing.blocks)
        return torch.cat([part.get("projection", eye) for part in parts])

    def _ranks(self, ids: Tensor, feature: int) -> Tensor:
        return self.routing.ranks(ids, self.indices.features[feature], self.rank_of_id)

    def tables(self, *, beside_kernels: bool = False) -> Tables:
        """Collect what a lookup reads: all tables, or those that the kernels do not serve."""
        if self.sparse:
            refuse_plain_data_parallel()
        left_out = self.kernel_part.groups if beside_kernels else ()
        indices = self.indices
        of_group = {
            group: blocks[0].storage.table_type(
                blocks=blocks,
                base_dim=self.base_dim,
                tensors={name: getattr(self, f"{name}_{group}") for name in self._tensor_names[group]},
                numbers=indices.slot_numbers[group],
                sparse=self.sparse,
            )
            for group, blocks in self.packing.groups.items()
            if group not in left_out
        }
        return Tables(self.packing, indices, of_group, self.sparse, self.padding_id is not None)

    @property
    def _first_table(self) -> Tensor:
        group, names = next(iter(self._tensor_names.items()))
        return getattr(self, f"{names[0]}_{group}")

    @property
    def _device(self) -> torch.device:
        return self._first_table.device

    @property
    def indices(self) -> Indices:
        """What the plan says, beside the tables, wherever they have come to since the last time."""
        return self.routing.indices(self._device)

    def _place_order(self) -> None:
        """Put the order beside the tables; where these have no memory yet, it stays as it is."""
        if self.rank_of_id is not None and self._device.type != "meta":
            self.rank_of_id = self.rank_of_id.to(self._device)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        """Change weights as nn.Module does; the order, which no one can draw anew, only moves along.

        So does what has a type of its own, whatever type weights get.
        """
        order, self.rank_of_id = self.rank_of_id, None
        fixed = {name: getattr(self, name) for name in self._of_fixed_type}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch has no type for it
        for name, tensor in fixed.items():
            if getattr(self, name).dtype != tensor.dtype:
                setattr(self, name, tensor.to(getattr(self, name).device))
        self.rank_of_id = order
        self._place_order()
        return self
