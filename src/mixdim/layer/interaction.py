"""How a model lets its features meet: DLRM's dot interaction. Knows nothing about tables."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mixdim.kernels.backend import InteractCall, dispatch


def dot_interaction(dense: Tensor, vectors: Tensor) -> Tensor:
    """Put the dense vector beside the dot product of every pair of slots: what DLRM's top MLP reads.

    With the dense vector as slot 0 and the features' vectors as the slots after it, the columns are the
    dense vector, then slots (1, 0), (2, 0), (2, 1), (3, 0), ...:
    (B, D), (B, F, D) -> (B, D + (F + 1) * F / 2).

    >>> dense, vectors = torch.tensor([[1.0, 2.0]]), torch.tensor([[[3.0, 4.0], [5.0, 6.0]]])
    >>> dot_interaction(dense, vectors).tolist()
    [[1.0, 2.0, 11.0, 17.0, 39.0]]
    """
    check_interaction_shapes(dense.shape, vectors.shape)
    found = dispatch("interact", InteractCall(dense, vectors))
    if found is not None:
        return found
    slots = torch.cat([dense[:, None], vectors], dim=1)  # (B, F + 1, D)
    rows, columns = torch.tril_indices(slots.shape[1], slots.shape[1], offset=-1, device=dense.device)
    return torch.cat([dense, (slots @ slots.transpose(1, 2))[:, rows, columns]], dim=1)


def check_interaction_shapes(dense: Sequence[int], vectors: Sequence[int]) -> None:
    """Say which shapes fit together, if these do not."""
    if len(dense) != 2 or len(vectors) != 3 or tuple(dense) != (vectors[0], vectors[2]):
        raise ValueError(
            "dense must have shape (batch, base_dim) and vectors (batch, features, base_dim), "
            f"got {tuple(dense)} and {tuple(vectors)}"
        )
