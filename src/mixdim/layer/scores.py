"""Dot products of vectors of two tables: the score of matrix factorisation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mixdim.kernels.scores import dot_scores as kernel_scores
from mixdim.kernels.structs import Lookup
from mixdim.layer.embedding import MixedDimEmbedding
from mixdim.layer.ids import require_integers


def dot_scores(users: nn.Module, user_ids: Tensor, items: nn.Module, item_ids: Tensor) -> Tensor:
    """Return the dot product of the vectors of each user and item: (B,), (B,) -> (B,).

    It equals `(users(user_ids) * items(item_ids)).sum(-1)`, for any two modules from ids to vectors. Of
    two `mixdim.MixedDimEmbedding`, the fast path never makes these vectors: with the projections P and Q
    of their blocks it is u P (v Q)^T = u (P Q^T) v^T, and P Q^T is small.

    >>> import mixdim
    >>> plan = mixdim.plan({"user": 100, "item": 80}, temperature=0.3, base_dim=8)
    >>> users, items = MixedDimEmbedding(plan["user"]), MixedDimEmbedding(plan["item"])
    >>> dot_scores(users, torch.tensor([0, 99]), items, torch.tensor([79, 0])).shape
    torch.Size([2])
    """
    for ids, name in ((user_ids, "user_ids"), (item_ids, "item_ids")):
        require_integers(ids, name)
    if user_ids.dim() != 1 or user_ids.shape != item_ids.shape:
        raise ValueError(
            "user_ids and item_ids must have one dimension and one length, "
            f"got shapes {tuple(user_ids.shape)} and {tuple(item_ids.shape)}"
        )
    if _takes_kernels(users, user_ids) and _takes_kernels(items, item_ids):
        assert isinstance(users, MixedDimEmbedding)
        assert isinstance(items, MixedDimEmbedding)
        _require_one_width(users.base_dim, items.base_dim)
        # Rows and columns of all blocks' projections; a block of full width stands for the identity.
        # In float64: PyTorch adds up in an order that depends on the number of threads.
        gram = (users.projection_rows().double() @ items.projection_rows().double().t()).float()
        user_side = Lookup(user_ids[:, None], None, None, users.kernel_arguments())
        item_side = Lookup(item_ids[:, None], None, None, items.kernel_arguments())
        return kernel_scores(user_side, item_side, gram)
    user_vectors, item_vectors = users(user_ids), items(item_ids)
    _require_one_width(user_vectors.shape[-1], item_vectors.shape[-1])
    return (user_vectors * item_vectors).sum(-1)


def _takes_kernels(table: nn.Module, ids: Tensor) -> bool:
    if torch.compiler.is_compiling() or not isinstance(table, MixedDimEmbedding):
        return False
    return table.takes_kernels(ids)


def _require_one_width(of_users: int, of_items: int) -> None:
    if of_users != of_items:
        raise ValueError(f"users and items must have one base_dim, got {of_users} and {of_items}")
