"""A whole model with its mixdim layers rounded, to serve it. Knows nothing about models."""

from __future__ import annotations

import copy
from typing import TypeVar

from torch import nn

from mixdim.layer.embedding_base import MixedEmbeddingBase

Model = TypeVar("Model", bound=nn.Module)


def quantize(model: Model, bits: int = 8) -> Model:
    """Return a copy of a model in which every mixdim layer is `layer.quantized(bits)`.

    All else is copied as it is, such as the MLPs of a DLRM. The model may also be a layer itself.

    >>> import mixdim, mixdim.models
    >>> plan = mixdim.plan({"user": 100, "item": 80}, temperature=0.3, base_dim=8)
    >>> users, items = (mixdim.MixedDimEmbedding(plan[name]) for name in plan)
    >>> small = quantize(mixdim.models.MatrixFactorization(users, items))
    >>> small.user_embedding.plan.blocks[0].storage
    Rows(dim=8, bits=8)
    """
    layers = [module for module in model.modules() if isinstance(module, MixedEmbeddingBase)]
    if not layers:
        raise ValueError(f"model must have a mixdim layer to quantize, {type(model).__name__} has none")
    # What the memo has, is not copied but taken, wherever the model refers to it.
    return copy.deepcopy(model, {id(layer): layer.quantized(bits) for layer in layers})
