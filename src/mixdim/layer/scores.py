"""Dot products of vectors of two tables: the score of matrix factorisation."""

from __future__ import annotations

import torch
from torch import Tensor

from mixdim.kernels.scores import dot_scores as kernel_scores
from mixdim.kernels.structs import Lookup
from mixdim.layer.embedding import MixedDimEmbedding
from mixdim.layer.ids import require_integers


def dot_scores(
    users: MixedDimEmbedding, user_ids: Tensor, items: MixedDimEmbedding, item_ids: Tensor
) -> Tensor:
    """Return the dot product of the vectors of each user and item: (B,), (B,) -> (B,).

    It equals `(users(user_ids) * items(item_ids)).sum(-1)`. The fast path never makes these vectors:
    with the projections P and Q of their blocks it is u P (v Q)^T = u (P Q^T) v^T, and P Q^T is small.

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
    if users.base_dim != items.base_dim:
        raise ValueError(
            f"users and items must have one base_dim, got {users.base_dim} and {items.base_dim}"
        )
    if (
        torch.compiler.is_compiling()
        or not users.takes_kernels(user_ids)
        or not items.takes_kernels(item_ids)
    ):
        return (users(user_ids) * items(item_ids)).sum(-1)
    # Rows and columns of all blocks' projections; a block of full width stands for the identity.
    # In float64: PyTorch adds up in an order that depends on the number of threads.
    gram = (users.projection_rows().double() @ items.projection_rows().double().t()).float()
    user_side = Lookup(user_ids[:, None], None, None, users.kernel_arguments())
    item_side = Lookup(item_ids[:, None], None, None, items.kernel_arguments())
    return kernel_scores(user_side, item_side, gram)
