"""How a model lets its features meet: DLRM's dot interaction. Knows nothing about tables."""

from __future__ import annotations

import torch
from torch import Tensor

from mixdim import kernels
from mixdim.kernels.interaction import dot_interaction as kernel_interaction


def dot_interaction(dense: Tensor, vectors: Tensor) -> Tensor:
    """Put the dense vector beside the dot product of every pair of slots: what DLRM's top MLP reads.

    With the dense vector as slot 0 and the features' vectors as the slots after it, the columns are the
    dense vector, then slots (1, 0), (2, 0), (2, 1), (3, 0), ...:
    (B, D), (B, F, D) -> (B, D + (F + 1) * F / 2).

    >>> dense, vectors = torch.tensor([[1.0, 2.0]]), torch.tensor([[[3.0, 4.0], [5.0, 6.0]]])
    >>> dot_interaction(dense, vectors).tolist()
    [[1.0, 2.0, 11.0, 17.0, 39.0]]
    """
    if dense.dim() != 2 or vectors.dim() != 3 or dense.shape != (vectors.shape[0], vectors.shape[2]):
        raise ValueError(
            "dense must have shape (batch, base_dim) and vectors (batch, features, base_dim), "
            f"got {tuple(dense.shape)} and {tuple(vectors.shape)}"
        )
    if kernels.available() and all(
        t.dtype == torch.float32 and t.device.type == "cpu" for t in (dense, vectors)
    ):
        return kernel_interaction(dense, vectors)
    slots = torch.cat([dense[:, None], vectors], dim=1)  # (B, F + 1, D)
    rows, columns = torch.tril_indices(slots.shape[1], slots.shape[1], offset=-1, device=dense.device)
    return torch.cat([dense, (slots @ slots.transpose(1, 2))[:, rows, columns]], dim=1)
