"""Which path a lookup takes: the kernels, plain PyTorch, or each for its blocks. Knows no storages.

The kernels serve narrow blocks of float32 on a CPU; plain PyTorch serves everything. Letters: a batch
has B samples and F features, a bag lookup has V values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mixdim import kernels
from mixdim.kernels.lookup import lookup as kernel_lookup
from mixdim.kernels.rounded_lookup import rounded_lookup
from mixdim.kernels.structs import LayerOptions
from mixdim.layer.bags import Pooling, check_bags, checked_offsets, reduce_bags, unroll_bags
from mixdim.layer.lookup import lookup, lookup_each, lookup_sum

if TYPE_CHECKING:
    from mixdim.layer.mixed_tables import MixedTables


def takes_kernels(layer: MixedTables, ids: Tensor, row_weights: Tensor | None = None) -> bool:
    """Whether the kernels can look up those of these ids that are in narrow blocks."""
    part = layer.kernel_part
    if not kernels.available() or not part.fits:
        return False
    if torch.compiler.is_compiling() and not part.is_all:
        return False
    if layer.sparse and torch.is_grad_enabled() and torch.compiler.is_dynamo_compiling():
        return False  # PyTorch cannot trace a sparse gradient whose length depends on the ids
    if kernels.tracing() or (kernels.exporting() and not layer.check_ids):
        return False  # so that the graph has only operators of PyTorch
    return (
        ids.dtype in (torch.int32, torch.int64)
        and ids.is_cpu
        and all(p.dtype is torch.float32 and p.is_cpu and p.is_contiguous() for p in layer.parameters())
        and (row_weights is None or not row_weights.requires_grad)
        and (layer.rank_of_id is None or layer.rank_of_id.dtype == torch.int32)
    )


def takes_rounded_kernel(layer: MixedTables, ids: Tensor, row_weights: Tensor | None = None) -> bool:
    """Whether one kernel can look up all these ids, some or all of them in rounded blocks."""
    if not kernels.available() or torch.compiler.is_compiling() or kernels.exporting():
        return False
    if not layer.rounded_part.is_all:
        return False
    tensors, needed = _rounded_tensors(layer), layer.rounded_part.layout.needed
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return False  # a shared row beside rounded ones may be trained
    return (
        type(ids) is Tensor
        and ids.dtype in (torch.int32, torch.int64)
        and ids.is_cpu
        and all(
            tensor.dtype is one.dtype and tensor.is_cpu and tensor.is_contiguous()
            for tensor, one in zip(tensors, needed, strict=True)
        )
        and (row_weights is None or not row_weights.requires_grad)
        and (layer.rank_of_id is None or layer.rank_of_id.dtype == torch.int32)
    )


def _rounded_tensors(layer: MixedTables) -> list[Tensor]:
    """The tensors that the kernel of rounded blocks needs, in its order."""
    return [getattr(layer, needed.name) for needed in layer.rounded_part.layout.needed]


def _look_up_rounded(
    layer: MixedTables, ids: Tensor, offsets: Tensor | None = None, row_weights: Tensor | None = None
) -> Tensor:
    """Look up or sum by the kernel of rounded blocks: -> (B, F, base_dim)."""
    options = LayerOptions(layer.rank_of_id, layer.base_dim, layer.padding_id, layer.routing.names)
    tensors, layout = _rounded_tensors(layer), layer.rounded_part.layout
    return rounded_lookup((ids, offsets, row_weights), options, layout, tensors)


def look_up(layer: MixedTables, ids: Tensor) -> Tensor:
    """Look up single ids: (B, F) -> (B, F, base_dim)."""
    if takes_rounded_kernel(layer, ids):
        return _look_up_rounded(layer, ids)
    by_kernels, part = takes_kernels(layer, ids), layer.kernel_part
    if by_kernels and part.is_all:
        return kernel_lookup(ids, None, None, layer.kernel_arguments())
    rows = layer.routing.rows(ids, layer.indices.features, layer.rank_of_id).t()
    if not by_kernels:
        return lookup(layer.tables(), rows)
    found = kernel_lookup(part.ids(rows), None, None, layer.kernel_arguments())
    return part.add_to(lookup(layer.tables(beside_kernels=True), rows), found)


def look_up_bags(
    layer: MixedTables,
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
        rows = layer.routing.bags_of_rows(bags, layer.rank_of_id)
        vectors = lookup_each(layer.tables(), rows.values, layer.packing.blocks)
        return reduce_bags(rows, vectors, pooling)
    summed = _sum_bags(layer, values, offsets, weights)
    if pooling == "sum":
        return summed
    bags = unroll_bags(values, offsets, None, layer.num_features)
    counted = layer.routing.without_padding(bags)
    return summed / counted.lengths().clamp(min=1)[:, :, None]


def _sum_bags(layer: MixedTables, values: Tensor, offsets: Tensor, weights: Tensor | None) -> Tensor:
    """Look up and add up bags of ids: -> (B, F, base_dim)."""
    weights_of_kernels = None if weights is None else weights.to(torch.float32)
    if takes_rounded_kernel(layer, values, weights):
        return _look_up_rounded(layer, values, offsets, weights_of_kernels)
    by_kernels, part = takes_kernels(layer, values, weights), layer.kernel_part
    if by_kernels and part.is_all:
        return kernel_lookup(values, offsets, weights_of_kernels, layer.kernel_arguments())
    bags = unroll_bags(values, offsets, weights, layer.num_features)
    rows = layer.routing.bags_of_rows(bags, layer.rank_of_id)
    if not by_kernels:
        return lookup_sum(layer.tables(), rows)
    found = kernel_lookup(*part.bags(rows), layer.kernel_arguments())
    return part.add_to(lookup_sum(layer.tables(beside_kernels=True), rows), found)


def _concat(layer: MixedTables, values: Tensor, num_bags: int) -> Tensor:
    """Look up bags of one length and put their vectors side by side."""
    features = layer.num_features
    batch, length = num_bags // features, values.shape[0] // max(num_bags, 1)
    ids = values.view(features, batch * length).t()  # (B * length, F)
    vectors = look_up(layer, ids).view(batch, length, features, layer.base_dim)
    return vectors.transpose(1, 2).reshape(batch, features, length * layer.base_dim)
