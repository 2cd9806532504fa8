"""DLRM's dot interaction as an operator of PyTorch, with its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mixdim.kernels.library import call


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
