"""DLRM's dot interaction by the kernels, with its gradient: of given vectors, or of ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mixdim.kernels.library import call, outside_of_graphs
from mixdim.kernels.lookup import weight_gradients
from mixdim.kernels.structs import LayerStructs, Lookup, require_shape


def _struct(dense: Tensor, vectors: Tensor) -> np.ndarray:
    batch, num_features, base_dim = vectors.shape
    require_shape(dense, "dense", (batch, base_dim))
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


@outside_of_graphs
def lookup_interaction(dense: Tensor, request: Lookup) -> Tensor:
    """Look ids (B, F) up and let them interact, without ever storing their vectors. Eager code only."""
    return _LookupInteraction.apply(request, dense, *request.parameters)  # type: ignore[no-untyped-call]  # torch has no type for it


class _LookupInteraction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, request: Lookup, dense: Tensor, *parameters: Tensor | None) -> Tensor:
        ctx.layer = layer = request.unchangeable()
        ctx.save_for_backward(dense, *request.changeable())
        structs, dense = LayerStructs(request), dense.contiguous()
        require_shape(dense, "dense", (structs.batch, layer.base_dim))
        num_features = len(layer.features)
        out = torch.empty(len(request.ids), layer.base_dim + num_features * (num_features + 1) // 2)
        structs.raise_if_wrong(call("mixdim_lookup_interact", structs.layer, structs.ids, dense, out))
        return out

    @staticmethod
    @once_differentiable  # second derivatives are for the plain path: MIXDIM_KERNELS=off
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        dense, *kept = ctx.saved_tensors
        return (None, *_backward_of(Lookup.of_kept(ctx.layer, kept), dense, gradients[0]))


@outside_of_graphs
def _backward_of(request: Lookup, dense: Tensor, gradient: Tensor) -> list[Tensor | None]:
    """The gradients of the dense vectors, and of `Lookup.parameters`."""
    structs, dense, gradient = LayerStructs(request), dense.contiguous(), gradient.contiguous()
    require_shape(dense, "dense", (structs.batch, request.layer.base_dim))
    dense_gradient = torch.empty_like(dense)
    numbers = structs.num_values * request.layer.base_dim
    vectors_gradient = call("mixdim_scratch", numbers)
    if numbers and not vectors_gradient:
        raise MemoryError(f"no memory for the gradients of {structs.num_values:,} vectors")
    arguments = (structs.layer, structs.ids, dense, gradient, dense_gradient, vectors_gradient)
    structs.raise_if_wrong(call("mixdim_lookup_interact_back", *arguments))
    return [dense_gradient, *weight_gradients(structs, vectors_gradient)]
