"""Lookups of a layer: by the kernels, by plain PyTorch, or each for its blocks. Knows no storages.

Plain PyTorch serves everything; `dispatch` says what the kernels serve. Letters: a batch has B samples
and F features, a bag lookup has V values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mixdim.kernels.backend import LookupCall, dispatch
from mixdim.layer.bags import Bags, Pooling, check_bags, checked_offsets, reduce_bags, unroll_bags
from mixdim.layer.lookup import lookup, lookup_each, lookup_sum
from mixdim.layer.reading import tell_rows

if TYPE_CHECKING:
    from mixdim.kernels.structs import Lookup
    from mixdim.layer.embedding_base import MixedEmbeddingBase
    from mixdim.layer.kernel_view import KernelView


def look_up(layer: MixedEmbeddingBase, ids: Tensor) -> Tensor:
    """Look up single ids: (B, F) -> (B, F, base_dim)."""
    found = _whole_by_kernels(layer, ids, None, None)
    if found is not None:
        return found
    rows = layer.ids(ids, layer.indices.features).t()
    tell_rows(layer, rows)
    view = layer.training_view
    if view is None or view.is_whole:
        return lookup(layer.tables(), rows)
    found = _by_kernels(layer, view, lambda: layer.kernel_lookup(view, view.ids(rows)))
    if found is None:
        return lookup(layer.tables(), rows)
    return view.add_to(lookup(layer.tables(beside=view), rows), found)


def _whole_by_kernels(
    layer: MixedEmbeddingBase, ids: Tensor, offsets: Tensor | None, weights: Tensor | None
) -> Tensor | None:
    """Look up or sum all blocks by the kernels: what they see without gradients, or with them."""
    for view in dict.fromkeys((layer.serving_view, layer.training_view)):
        if view is not None and view.is_whole:
            request = partial(layer.kernel_lookup, view, ids, offsets, weights)
            found = _by_kernels(layer, view, request)
            if found is not None:
                return found
    return None


def _by_kernels(
    layer: MixedEmbeddingBase, view: KernelView, request: Callable[[], Lookup]
) -> Tensor | None:
    call = LookupCall(request, view.is_whole, view.has_codes, layer.sparse, layer.check_ids)
    return dispatch("lookup", call)


def look_up_bags(
    layer: MixedEmbeddingBase,
    values: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    pooling: Pooling | None = None,
) -> Tensor:
    """Look up and pool bags, as the layer does unless told: (V,), (F * B + 1,) -> (B, F, base_dim)."""
    pooling = layer.pooling if pooling is None else pooling
    if weights is not None and pooling != "sum":
        raise ValueError(f"weights need pooling='sum', this layer has pooling={pooling!r}")
    check_bags(values, offsets, weights, layer.num_features)
    one_length = pooling == "concat"
    if layer.check_ids:
        offsets = checked_offsets(offsets, values.shape[0], one_length)
    if one_length:
        return _concat(layer, values, offsets.shape[0] - 1)
    offsets = offsets.to(torch.int64)
    if pooling == "max" or pooling == "product":
        bags = unroll_bags(values, offsets, weights, layer.num_features)
        rows = layer.ids.bags(bags)
        tell_rows(layer, rows.values)
        vectors = lookup_each(layer.tables(), rows.values, layer.layout.blocks)
        return reduce_bags(rows, vectors, pooling)
    summed = _sum_bags(layer, values, offsets, weights)
    if pooling == "sum":
        return summed
    bags = unroll_bags(values, offsets, None, layer.num_features)
    counted = layer.ids.without_padding(bags)
    return summed / counted.lengths().clamp(min=1)[:, :, None]


def _sum_bags(
    layer: MixedEmbeddingBase, values: Tensor, offsets: Tensor, weights: Tensor | None
) -> Tensor:
    """Look up and add up bags of ids: -> (B, F, base_dim)."""
    found = _whole_by_kernels(
        layer, values, offsets, None if weights is None else weights.to(torch.float32)
    )
    if found is not None:
        return found
    bags = unroll_bags(values, offsets, weights, layer.num_features)
    rows = layer.ids.bags(bags)
    tell_rows(layer, rows.values)
    view = layer.training_view
    if view is None or view.is_whole:
        return lookup_sum(layer.tables(), rows)
    found = _by_kernels(layer, view, lambda: layer.kernel_lookup(view, *view.bags(rows)))
    if found is None:
        return lookup_sum(layer.tables(), rows)
    return view.add_to(lookup_sum(layer.tables(beside=view), rows), found)


def _concat(layer: MixedEmbeddingBase, values: Tensor, num_bags: int) -> Tensor:
    """Look up bags of one length and put their vectors side by side."""
    features = layer.num_features
    batch, length = num_bags // features, values.shape[0] // max(num_bags, 1)
    ids = values.view(features, batch * length).t()  # (B * length, F)
    vectors = look_up(layer, ids).view(batch, length, features, layer.base_dim)
    return vectors.transpose(1, 2).reshape(batch, features, length * layer.base_dim)


def look_up_by_feature(
    layer: MixedEmbeddingBase, ids: Tensor, bags: Mapping[str, tuple[Tensor, Tensor]]
) -> Tensor:
    """Look up one feature after the other, in plain PyTorch: -> (B, F, base_dim).

    Columns of `ids` are the features without bags; `bags` has values and offsets of the others. A graph
    that is traced so takes a batch of any size, where one of `look_up_bags` needs two samples at least.
    """
    columns, planes = iter(ids.unbind(1)), []
    for feature, name in enumerate(layer.plan):
        if name in bags:
            planes.append(_pooled(layer, feature, *bags[name], ids.shape[0]))
        else:
            planes.append(_vectors(layer, feature, next(columns)))
    return torch.stack(planes, dim=1)


def _vectors(layer: MixedEmbeddingBase, feature: int, ids: Tensor) -> Tensor:
    """The vectors of ids of one feature: (V,) -> (V, base_dim)."""
    rows = layer.ids(ids, layer.indices.features[feature])
    return lookup_each(layer.tables(), rows, layer.layout.of_feature[feature])


def _pooled(
    layer: MixedEmbeddingBase, feature: int, values: Tensor, offsets: Tensor, batch: int
) -> Tensor:
    """The pooled bags of one feature: (V,), (B + 1,) -> (B, base_dim)."""
    if layer.pooling == "concat":
        raise ValueError("bags to export need pooling sum, mean, max, product, got 'concat'")
    samples = torch.searchsorted(offsets, torch.arange(values.shape[0]), right=True) - 1
    bags = Bags(values, torch.zeros_like(values), samples, None, 1, batch)
    bags = layer.ids.without_padding(bags)
    vectors = _vectors(layer, feature, bags.values)
    if layer.pooling == "max" or layer.pooling == "product":
        return reduce_bags(bags, vectors, layer.pooling).squeeze(1)
    summed = vectors.new_zeros(batch, layer.base_dim).index_add(0, bags.samples, vectors)
    return summed if layer.pooling == "sum" else summed / bags.lengths().clamp(min=1)
