"""The parameters of a plan and what looks them up: what both faces of the layer share.

The layer holds all tensors, under names that never change; its layout and tables say what they mean.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from mixdim.kernels.structs import Codes, LayerArguments, Lookup
from mixdim.layer.bags import Pooling, check_pooling
from mixdim.layer.data_parallel import refuse_plain_data_parallel
from mixdim.layer.fill import fill
from mixdim.layer.given import as_array, finite_numbers, weights_of_rows
from mixdim.layer.idmap import IdMap, KernelIds
from mixdim.layer.kernel_view import KernelView, kernel_views
from mixdim.layer.layout import LIFT, Indices, Layout
from mixdim.layer.lookup import Tables
from mixdim.layer.reading import Reader, tell_ids
from mixdim.layer.sources import GivenBlocks, LayerSource, MatrixSource
from mixdim.planning.plan import Plan
from mixdim.storages.codes import all_levels
from mixdim.storages.init import BlockInit, Init, check_init, seed_from

AnyLayer = TypeVar("AnyLayer", bound="MixedEmbeddingBase")


class MixedEmbeddingBase(nn.Module):
    """The parameters of all blocks of a plan: what both faces of the layer share.

    Blocks of one storage and width share a table: `table_4` is (rows, 4), that of hashed blocks with two
    hashes `table_hashed2_4`. All projections are rows of one tensor, `lift` (rows, base_dim); there is
    none at full width.

    - `sparse`: tables get row-sparse gradients (projections always get dense ones).
    - `pooling`: what becomes of a bag: "sum", "mean", "max", "product" or "concat".
    - `init`, `generator`: how weights are drawn, "xavier", "he_fan_in" or "he_fan_out", and from what.
    - `padding_id`: an id that stands for no id: it gives zeros, takes no gradient and does not count
      in a bag. It may lie outside the rows, such as -1.
    - `ids`: an `IdMap`; or for features with bands whose ids are not in descending order of popularity,
      their ids from popular to rare. If not given, `plan.orders`; `{}` says that ids are ranks of
      popularity already. It is saved with the state.
    - `check_ids`: whether an id out of range raises an IndexError. Only switch it off for ids that
      have been checked already, for instance to export a graph of nothing but PyTorch's operators.
    """

    ids: IdMap
    layout: Layout
    lift: Tensor
    codes: Tensor
    steps: Tensor
    reader: Reader | None = None  # who must know which rows are read, before they are

    def __init__(
        self,
        plan: Plan,
        *,
        sparse: bool = False,
        pooling: Pooling = "sum",
        init: Init = "xavier",
        generator: torch.Generator | None = None,
        padding_id: int | None = None,
        ids: IdMap | Mapping[str, Any] | None = None,
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

        self.plan, self.layout = plan, Layout.of(plan)
        self._hold_tensors(dtype, device)
        self._hold_ids(ids)
        self.ids.set_padding(padding_id)
        self.ids.check_ids = check_ids
        self._indices: Indices | None = None
        # What kernels see without gradients, and with them.
        self.serving_view, self.training_view = kernel_views(self.layout, self.ids.order_starts)
        self._describe_rows()
        self.reset_parameters(generator)

    def _hold_tensors(self, dtype: torch.dtype | None, device: torch.device | str | None) -> None:
        """Make room for the tensors of all tables, and for the lift."""
        self._of_fixed_type: list[str] = []
        for name, spec in self.layout.tensors.items():
            own_type = None if spec.dtype is None else getattr(torch, spec.dtype)
            tensor = torch.empty(spec.shape, dtype=own_type or dtype, device=device)
            if spec.is_trained:
                self.register_parameter(name, nn.Parameter(tensor))
            else:
                self.register_buffer(name, tensor)
            if own_type is not None:
                self._of_fixed_type.append(name)

    def _hold_ids(self, ids: IdMap | Mapping[str, Any] | None) -> None:
        """Hold the way from ids to rows; orders that are given are those of this layer's plan."""
        rows = {feature.name: feature.rows for feature in self.plan.features}
        if isinstance(ids, IdMap):
            if ids.feature_rows != rows:
                raise ValueError(f"ids must be of the plan's features {rows}, got {ids.feature_rows}")
            self.ids = ids
        else:
            self.ids = IdMap.ordered(rows, self.plan.orders if ids is None else ids)
        if isinstance(ids, Mapping):
            named = tuple((name, as_array(order)) for name, order in ids.items())
            self.plan = replace(self.plan, named_orders=named)
        if self._device.type != "meta":
            self.ids.to(self._device)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # torch has no type for it
        self._describe_rows()  # a copied parameter loses its attributes

    def _describe_rows(self) -> None:
        """Let tables say whose a row is, for errors of an optimizer, and how large gradients can be."""
        names = tuple(self.plan)
        for group, blocks in self.layout.groups.items():
            for name in blocks[0].storage.table_type.row_sparse:
                table = getattr(self, f"{name}_{group}")
                table.describe_row = partial(self.layout.describe_row, group, names=names)
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
        return self.ids.padding_id

    @property
    def check_ids(self) -> bool:
        """Whether an id out of range raises an IndexError."""
        return self.ids.check_ids

    @check_ids.setter
    def check_ids(self, check: bool) -> None:
        self.ids.check_ids = check

    @property
    def num_parameters(self) -> int:
        """Parameters that this module really has; its plan says the same number."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def nbytes(self) -> int:
        """Bytes of all that it holds, the map of ids included."""
        return sum(tensor.nbytes for tensor in self.state_dict().values())

    @property
    def row_sparse_tables(self) -> list[nn.Parameter]:
        """The parameters that get row-sparse gradients: all tables if `sparse`, else none."""
        if not self.sparse:
            return []
        return [
            getattr(self, f"{name}_{group}")
            for group, blocks in self.layout.groups.items()
            for name in blocks[0].storage.table_type.row_sparse
        ]

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw all weights anew, uniformly, each block's table and projection by its own shape.

        They follow from one number that is taken from the generator, and from where they are: see
        `mixdim.storages.init`.
        """
        if self._device.type == "meta":
            return
        tables, seed = self.tables(), seed_from(generator)
        for block in self.layout.blocks:
            init = BlockInit(self.init, seed, block.feature, block.number)
            tables.of_block(block).draw(block, init)

    def load_blocks(self, feature: str, tables: Sequence[Any], projections: Sequence[Any]) -> None:
        """Copy given weights into the blocks of a feature, from popular to rare.

        Block i of the plan takes `tables[i]`, its stored rows: (size, dim), by rank of popularity, where
        each row has its own. And `projections[i]`, (dim, base_dim), None for a block of full width.
        Nothing is copied unless all of it fits.
        """
        blocks = self.layout.of_feature[self.ids.number_of(feature)]
        own = self.tables()
        held = [own.of_block(block).parts(block) for block in blocks]
        fill(self, feature, GivenBlocks.checked(feature, blocks, held, tables, projections))

    def fit_dense(self, feature: str, matrix: Any, row_weights: Any = None) -> None:
        """Set the blocks of a feature so that `dense_weight(feature)` comes near a given matrix.

        `matrix` (rows, base_dim) has one row an id, and `row_weights` (rows,), such as counts, says how
        much each matters: the sum of weight * squared distance is made small, block by block. Where rows
        are stored on their own (`mixdim.Rows`) it is the least possible: the weighted SVD.
        """
        number = self.ids.number_of(feature)
        rows = self.plan.features[number].rows
        matrix = finite_numbers(matrix, (rows, self.base_dim), f"matrix of feature {feature!r}")
        if row_weights is not None:
            row_weights = weights_of_rows(row_weights, rows, f"row_weights of feature {feature!r}")
        fill(self, feature, MatrixSource(matrix, self.ids, number, row_weights))

    def quantized(self, bits: int = 8) -> Self:
        """The same layer with its rows as codes of 1 to 8 bits a number: a new one, not to be trained.

        Its plan is `plan.quantized(bits)`, and its options are those of this layer. Steps are those of
        least squared error over all rows; what other storages hold is copied.

        >>> import mixdim
        >>> layer = mixdim.MixedDimEmbedding(mixdim.plan({"x": 50}, temperature=0, base_dim=4))
        >>> small = layer.quantized()
        >>> bool((small.dense_weight() - layer.dense_weight()).norm() < 0.01 * layer.table_4.norm())
        True
        """
        layer = self.like(self.plan.quantized(bits))
        for number, name in enumerate(self.plan):
            source = LayerSource(self, name, layer.ids, number)
            fill(layer, name, source)
        return layer

    def like(self, plan: Plan, *, ids: Any = None, **options: Any) -> Self:
        """An empty layer of another plan, of the same features, with the options of this one.

        Ids are those of this layer, unless they are given.
        """
        told = {
            "sparse": self.sparse,
            "pooling": self.pooling,
            "init": self.init,
            "padding_id": self.padding_id,
            "check_ids": self.check_ids,
            "dtype": next((parameter.dtype for parameter in self.parameters()), None),
            "device": self._device,
            "ids": copy.deepcopy(self.ids) if ids is None else ids,
            **options,
        }
        return empty_layer(type(self), plan, **told).train(self.training)

    def dense_weight(self, feature: str | None = None) -> Tensor:
        """Return the matrix the layer stands for, one row an id: (rows, base_dim).

        Without a name, the matrices of all features one below the other. It is differentiable, and
        as large as the layer would be without mixed dimensions.
        """
        if feature is None:
            return torch.cat([self.dense_weight(name) for name in self.plan])
        number, tables = self.ids.number_of(feature), self.tables()
        blocks = self.layout.of_feature[number]
        by_rank = torch.cat([tables.of_block(block).dense(block) for block in blocks])
        ids = torch.arange(len(by_rank), device=by_rank.device)
        weight = by_rank[self._ranks(number)]
        if self.padding_id is None:
            return weight
        return weight.masked_fill((ids == self.padding_id)[:, None], 0.0)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"

    def extra_repr(self) -> str:
        """What `print(layer)` shows."""
        widths = ", ".join(self.layout.groups)
        return (
            f"{self.num_features} features, {self.plan.num_rows:,} rows, "
            f"base_dim={self.base_dim}, widths {widths}, {self.num_parameters:,} parameters"
        )

    def kernel_lookup(
        self,
        view: KernelView,
        ids: Tensor,
        offsets: Tensor | None = None,
        row_weights: Tensor | None = None,
    ) -> Lookup:
        """Describe a lookup to the kernels: of ids, or of their own where they do not see all blocks."""
        if self.sparse:
            refuse_plain_data_parallel()
        mapped = KernelIds(ids, -1, None)  # rows that the view has numbered
        if view.is_whole:
            tell_ids(self, ids, offsets)
            mapped = self.ids.for_kernels(ids, lambda: self.features_of(ids, offsets))
        layer = LayerArguments(
            tables=[getattr(self, name) for name in view.table_names],
            lift=getattr(self, LIFT, None),
            rank_of_id=mapped.rank_of_id,
            blocks=view.blocks,
            features=view.features,
            base_dim=self.base_dim,
            padding_id=mapped.padding_id,
            names=self.ids.names,
            sparse=self.sparse,
            layout=view.layout,
            codes=self._codes if view.has_codes else None,
        )
        return Lookup(mapped.ids, offsets, row_weights, layer)

    @property
    def _codes(self) -> Codes:
        """What kernels read of blocks of codes."""
        return Codes(self.codes, self.steps, getattr(self, "coded_lift", None), all_levels())

    def features_of(self, ids: Tensor, offsets: Tensor | None) -> Tensor:
        """The feature of each id: (F,) for single ids (B, F), (V,) for those of bags."""
        features = self.indices.features
        if offsets is None:
            return features
        lengths, batch = offsets.diff(), max((len(offsets) - 1) // self.num_features, 1)
        return features.repeat_interleave(batch).repeat_interleave(lengths, output_size=len(ids))

    def _ranks(self, feature: int) -> Tensor:
        """The rank of every id of a feature, beside the tables."""
        return self.ids.ranks_of(feature).to(self._device)

    def tables(
        self, *, beside: KernelView | None = None, of: Mapping[str, Tensor] | None = None
    ) -> Tables:
        """Collect what a lookup reads: all tables, or those that the kernels do not serve.

        `of` are other tensors in the place of the layer's own, by name.
        """
        if self.sparse:
            refuse_plain_data_parallel()
        own = of if of is not None else {name: getattr(self, name) for name in self.layout.tensors}
        indices, lift = self.indices, self.layout.projections(own.get(LIFT))
        projections = {group: {"projection": rows} for group, rows in lift.items()}
        of_group = {
            group: blocks[0].storage.table_type(
                blocks=blocks,
                base_dim=self.base_dim,
                tensors=self.layout.tensors_of(group, own) | projections.get(group, {}),
                numbers=indices.slot_numbers[group],
                sparse=self.sparse,
            )
            for group, blocks in self.layout.groups.items()
            if beside is None or group not in beside.groups
        }
        return Tables(self.layout, indices, of_group, self.sparse, self.padding_id is not None)

    @property
    def _device(self) -> torch.device:
        return getattr(self, next(iter(self.layout.tensors))).device

    @property
    def indices(self) -> Indices:
        """What the plan says, beside the tables, wherever they have come to since the last time."""
        if self._indices is None or self._indices.features.device != self._device:
            self._indices = self.layout.indices(self._device)
        return self._indices

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        """Change weights as nn.Module does; what has a type of its own keeps it."""
        fixed = {name: getattr(self, name) for name in self._of_fixed_type}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch has no type for it
        for name, tensor in fixed.items():
            if getattr(self, name).dtype != tensor.dtype:
                setattr(self, name, tensor.to(getattr(self, name).device))
        return self


def empty_layer(
    kind: type[AnyLayer], plan: Plan, *, device: torch.device | str | None = None, **options: Any
) -> AnyLayer:
    """A layer whose numbers are not drawn: of zeros."""
    device = torch.get_default_device() if device is None else device
    layer = kind(plan, device="meta", **options)
    layer.to_empty(device=device)
    with torch.no_grad():
        for name in layer.layout.tensors:
            getattr(layer, name).zero_()
    return layer
