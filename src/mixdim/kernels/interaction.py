"""DLRM's dot interaction by the kernels, with its gradient: of given vectors, or of ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mixdim.kernels.library import call
from mixdim.kernels.lookup import (
    LayerArguments,
    LayerStructs,
    layer_gradients,
    raise_index_error,
    table_gradient,
)


def _struct(dense: Tensor, vectors: Tensor) -> np.ndarray:
    batch, num_features, base_dim = vectors.shape
    return np.array([dense.data_ptr(), vectors.data_ptr(), batch, num_features, base_dim])


def _columns(vectors: Tensor) -> int:
    num_features, base_dim = vectors.shape[1:]
    return base_dim + num_features * (num_features + 1) // 2


@torch.library.custom_op("mixdim::dot_interaction", mutates_args=())
def dot_interaction(dense: Tensor, vectors: Tensor) -> Tensor:
    """(B, D), (B, F, D) -> (B, D + (F + 1) * F / 2)."""
    dense, vectors = dense.contiguous(), vectors.contiguous()
    out = torch.empty(len(vectors), _columns(vectors))
    call("mixdim_interact", _struct(dense, vectors), out)
    return out


@dot_interaction.register_fake
def _(dense: Tensor, vectors: Tensor) -> Tensor:
    return vectors.new_empty(vectors.shape[0], _columns(vectors))


@torch.library.custom_op("mixdim::dot_interaction_backward", mutates_args=())
def dot_interaction_backward(gradient: Tensor, dense: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of the dense vector and of the features' vectors."""
    gradient, dense, vectors = gradient.contiguous(), dense.contiguous(), vectors.contiguous()
    dense_gradient, vectors_gradient = torch.empty_like(dense), torch.empty_like(vectors)
    struct = _struct(dense, vectors)
    call("mixdim_interact_back", struct, gradient, dense_gradient, vectors_gradient)
    return dense_gradient, vectors_gradient


@dot_interaction_backward.register_fake
def _(gradient: Tensor, dense: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    return dense.new_empty(dense.shape), vectors.new_empty(vectors.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
    return dot_interaction_backward(gradient, *ctx.saved_tensors)


dot_interaction.register_autograd(_backward, setup_context=_setup_context)


def lookup_interaction(dense: Tensor, ids: Tensor, layer: LayerArguments) -> Tensor:
    """Look ids (B, F) up and let them interact, without ever storing their vectors. Eager code only."""
    parameters = (*layer.tables, *layer.projections)
    return _LookupInteraction.apply(ids, layer, dense, *parameters)  # type: ignore[no-untyped-call]  # torch has no type for it


class _LookupInteraction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, ids: Tensor, layer: LayerArguments, dense: Tensor, *parameters: Tensor
    ) -> Tensor:
        ctx.structs = LayerStructs(ids, None, None, layer)
        dense = dense.contiguous()
        ctx.save_for_backward(dense, *parameters)
        num_features = len(layer.features)
        out = torch.empty(len(ids), layer.base_dim + num_features * (num_features + 1) // 2)
        if call("mixdim_lookup_interact", ctx.structs.layer, ctx.structs.ids, dense, out) >= 0:
            raise_index_error(ctx.structs, None)
        return out

    @staticmethod
    @once_differentiable  # second derivatives are for the plain path: MIXDIM_KERNELS=off
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        dense, *parameters = ctx.saved_tensors
        structs, layer = ctx.structs, ctx.structs.arguments
        dense_gradient = torch.empty_like(dense)
        vectors_gradient = call("mixdim_scratch", structs.num_values * layer.base_dim)
        gradient = gradients[0].contiguous()
        arguments = (structs.layer, structs.ids, dense, gradient, dense_gradient, vectors_gradient)
        call("mixdim_lookup_interact_back", *arguments)
        touched, projections = layer_gradients(structs, vectors_gradient)
        table_gradients = [
            table_gradient(table, *pair, sparse=layer.sparse)
            for table, pair in zip(parameters, touched, strict=False)  # then come the projections
        ]
        return (None, None, dense_gradient, *table_gradients, *projections)
