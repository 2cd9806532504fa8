"""Dot products of vectors of two tables: the score of matrix factorisation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mixdim.kernels.backend import ScoresCall, dispatch
from mixdim.kernels.ids import require_integers
from mixdim.kernels.structs import Lookup
from mixdim.layer.embedding import MixedDimEmbedding


def dot_scores(users: nn.Module, user_ids: Tensor, items: nn.Module, item_ids: Tensor) -> Tensor:
    """Return the dot product of the vectors of each user and item: (B,), (B,) -> (B,).

    It equals `(users(user_ids) * items(item_ids)).sum(-1)`, for any two modules from ids to vectors. Of
    two `mixdim.MixedDimEmbedding`, the fast path never makes these vectors: with the projections P and Q
    of their blocks it is u P (v Q)^T = u (P Q^T) v^T, and P Q^T is small.

    >>> import mixdim, torch
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
    found = _by_kernels(users, user_ids, items, item_ids)
    if found is not None:
        return found
    user_vectors, item_vectors = users(user_ids), items(item_ids)
    _require_one_width(user_vectors.shape[-1], item_vectors.shape[-1])
    return (user_vectors * item_vectors).sum(-1)


def _by_kernels(users: nn.Module, user_ids: Tensor, items: nn.Module, item_ids: Tensor) -> Tensor | None:
    """The scores of two layers that the kernels know as wholes."""
    if not isinstance(users, MixedDimEmbedding) or not isinstance(items, MixedDimEmbedding):
        return None
    user_view, item_view = users.training_view, items.training_view
    if user_view is None or item_view is None or not (user_view.is_whole and item_view.is_whole):
        return None

    def gram() -> Tensor:
        # Rows and columns of all blocks' projections; a block of full width stands for the identity. In
        # float64: PyTorch adds up in an order that depends on the number of threads.
        _require_one_width(users.base_dim, items.base_dim)
        return (_lift_rows(users).double() @ _lift_rows(items).double().t()).float()

    def request() -> tuple[Lookup, Lookup]:
        of_users = users.kernel_lookup(user_view, user_ids[:, None])
        return of_users, items.kernel_lookup(item_view, item_ids[:, None])

    return dispatch("scores", ScoresCall(request, gram))


def _lift_rows(table: MixedDimEmbedding) -> Tensor:
    """The projections of all blocks one below the other; the identity for a block of full width."""
    places = [(b.lift_row, b.storage.width(table.base_dim)) for b in table.layout.blocks]
    eye = torch.eye(table.base_dim, device=table.indices.features.device)
    return torch.cat([eye if at < 0 else table.lift[at : at + width] for at, width in places])


def _require_one_width(of_users: int, of_items: int) -> None:
    if of_users != of_items:
        raise ValueError(f"users and items must have one base_dim, got {of_users} and {of_items}")
