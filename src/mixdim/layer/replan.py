"""From weights of one plan to a layer of another: the only way. Knows nothing about models.

Block by block, the best that there is: a block that is the same is copied; one that differs in bits
alone is quantized; all others are fitted to the vectors of their rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mixdim.layer.embedding import MixedDimEmbedding
from mixdim.layer.embedding_base import MixedEmbeddingBase, empty_layer
from mixdim.layer.fill import Move, fill
from mixdim.layer.given import finite_numbers, weights_of_rows
from mixdim.layer.sources import LayerSource, MatrixSource, Source
from mixdim.layer.transfer import Transfer
from mixdim.planning.feature import UnknownFeatureError
from mixdim.planning.plan import Plan


class Replanned(NamedTuple):
    """A layer of another plan.

    - `error`: by feature, which share of the weighted squares of its vectors is lost: 0 is nothing.
    - `transfer`: what became of each block. `transfer.apply(optimizer)` moves an optimizer's state too.
    """

    layer: MixedEmbeddingBase
    transfer: Transfer
    error: dict[str, float]


@torch.no_grad()
def replan(
    source: MixedEmbeddingBase | Tensor,
    plan: Plan,
    *,
    counts: Mapping[str, Any] | Any = None,
    metric: Mapping[str, Tensor] | Tensor | None = None,
    ids: Any = None,
    **options: Any,
) -> Replanned:
    """Return the layer of `plan` that stands nearest to a layer or a matrix, and what that loses.

    A block that is the same is copied; one with fewer bits is quantized; all others get the best fit of
    the weighted vectors: of rows of their own (`mixdim.Rows`) the weighted SVD, a chunk at a time. Other
    storages are fitted a whole block at a time, in float64.

    - `source`: a layer with the features of the plan, or a matrix (rows, base_dim) for a plan of one.
    - `counts`: how much each id matters, (rows,) by feature or of the only one. If not given, or where
      no id of a block has any, all matter as much.
    - `metric`: H in the distance (e - e')^T H (e - e'), (base_dim, base_dim) by feature or of the only
      one, such as the mean of g g^T over gradients g at the vectors. The usual distance if not given,
      and for blocks whose rows share numbers, such as `mixdim.Hashed`.
    - `ids`: as for the layer; that of the source, unless the plan has orders of its own.
    - `options`: other options of the layer; those of the source if it is a layer.

    >>> import mixdim
    >>> plan = mixdim.plan({"item": 1000}, temperature=0, base_dim=16)
    >>> wide = MixedDimEmbedding(plan)
    >>> narrow = replan(wide, plan.with_storage("item", mixdim.Rows(8)))
    >>> narrow.layer.table_8.shape, 0 < narrow.error["item"] < 1
    (torch.Size([1000, 8]), True)
    """
    weights, metrics = _by_feature(counts, plan, "counts"), _by_feature(metric, plan, "metric")
    layer = _layer_of(source, plan, ids, options)
    moves: list[Move] = []
    error = {}
    for number, feature in enumerate(plan.features):
        name, own = feature.name, weights.get(feature.name)
        if own is not None:
            own = weights_of_rows(own, feature.rows, f"counts of feature {name!r}")
        distance = metrics.get(name)
        if distance is not None:
            sides = (plan.base_dim, plan.base_dim)
            distance = finite_numbers(distance, sides, f"metric of feature {name!r}")
        come_from: Source
        if isinstance(source, Tensor):
            come_from = MatrixSource(source.detach(), layer.ids, number, own)
        else:
            come_from = LayerSource(source, name, layer.ids, number, own)
        found, lost = fill(layer, name, come_from, distance)
        moves += found
        error[name] = lost.share
    old = None if isinstance(source, Tensor) else source
    return Replanned(layer, Transfer(old, layer, tuple(moves)), error)


def _layer_of(
    source: MixedEmbeddingBase | Tensor, plan: Plan, ids: Any, options: dict[str, Any]
) -> MixedEmbeddingBase:
    """An empty layer of a plan, where the source is."""
    if isinstance(source, Tensor):
        if plan.num_features != 1 or source.shape != (plan.num_rows, plan.base_dim):
            raise ValueError(
                f"the plan of a matrix of shape {tuple(source.shape)} must have one feature of so many "
                f"rows and that base_dim, got {plan.num_features} features, {plan.num_rows} rows and "
                f"base_dim {plan.base_dim}"
            )
        if not source.is_floating_point():
            raise TypeError(f"source must be floating point, got {source.dtype}")
        told = {"dtype": source.dtype, "device": source.device, **options}
        return empty_layer(MixedDimEmbedding, plan, ids=ids, **told)
    if not isinstance(source, MixedEmbeddingBase):
        raise TypeError(f"source must be a mixdim layer or a tensor, got {type(source).__name__}")
    rows = {feature.name: feature.rows for feature in plan.features}
    if source.base_dim != plan.base_dim or source.ids.feature_rows != rows:
        raise ValueError(
            f"the plan must have the features and the base_dim {source.base_dim} of the source, "
            f"{source.ids.feature_rows}, got {rows} and base_dim {plan.base_dim}"
        )
    return source.like(plan, ids=ids, **options)


def _by_feature(given: Any, plan: Plan, argument: str) -> dict[str, Any]:
    """What is given by feature, or for the only one."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        if plan.num_features != 1:
            raise TypeError(f"{argument} must be a mapping by feature name, got {type(given).__name__}")
        given = {next(iter(plan)): given}
    for name in given:
        if name not in plan:
            raise UnknownFeatureError.among(name, plan)
    return dict(given)
