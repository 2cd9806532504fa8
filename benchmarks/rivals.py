"""What people use today in place of the layer. Knows nothing about steps and timing."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn

import mixdim


class LoopOverFeatures(nn.Module):
    """The usual implementation: a table and a linear map for each feature, in a loop."""

    def __init__(self, plan: mixdim.Plan, *, sparse: bool = True) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            [nn.EmbeddingBag(b.size, b.dim, mode="sum", sparse=sparse) for b in plan.blocks]
        )
        self.projections = projections([block.dim for block in plan.blocks], plan.base_dim)

    def forward(self, ids: Tensor) -> Tensor:
        """(batch, features) -> (batch, features, base_dim)."""
        offsets = torch.arange(len(ids))
        vectors = [
            projection(table(column.contiguous(), offsets))
            for table, projection, column in zip(self.tables, self.projections, ids.t(), strict=True)
        ]
        return torch.stack(vectors, dim=1)


class UniformTable(nn.Module):
    """One width for all rows, at about the cost of the plan: no projections, and one table for all."""

    starts: Tensor

    def __init__(self, plan: mixdim.Plan) -> None:
        super().__init__()
        self.width = max(1, round(plan.equivalent_uniform_dim))
        self.table = nn.EmbeddingBag(plan.num_rows, self.width, mode="sum", sparse=True)
        rows = torch.tensor([feature.rows for feature in plan.features])
        self.register_buffer("starts", rows.cumsum(0) - rows)

    def forward(self, ids: Tensor) -> Tensor:
        """(batch, features) -> (batch, features, width)."""
        rows = (ids + self.starts).flatten()
        return self.table(rows, torch.arange(len(rows))).view(*ids.shape, self.width)


class MaskedBands(nn.Module):
    """One feature cut into bands, the usual way: a boolean mask for each band."""

    def __init__(self, plan: mixdim.Plan) -> None:
        super().__init__()
        self.embedding_dim, self.blocks = plan.base_dim, plan.blocks
        self.tables = nn.ModuleList([nn.Embedding(b.size, b.dim, sparse=True) for b in plan.blocks])
        self.projections = projections([block.dim for block in plan.blocks], plan.base_dim)

    def forward(self, ids: Tensor) -> Tensor:
        """(batch,) -> (batch, base_dim)."""
        vectors = torch.empty(len(ids), self.embedding_dim)
        for block, table, projection in zip(self.blocks, self.tables, self.projections, strict=True):
            mask = (ids >= block.start) & (ids < block.start + block.size)
            vectors[mask] = projection(table(ids[mask] - block.start))
        return vectors


class FbgemmTables(nn.Module):
    """FBGEMM's tables for all features, updated by Adagrad in the backward pass, and linear maps.

    On the CPU, FBGEMM trains with SGD or Adagrad only, at widths that 4 divides: widths are padded.
    """

    def __init__(self, plan: mixdim.Plan, *, learning_rate: float) -> None:
        super().__init__()
        fbgemm = import_fbgemm()
        self.widths = [-(-block.dim // 4) * 4 for block in plan.blocks]
        host, cpu = fbgemm.EmbeddingLocation.HOST, fbgemm.ComputeDevice.CPU
        self.tables = fbgemm.SplitTableBatchedEmbeddingBagsCodegen(
            [(b.size, width, host, cpu) for b, width in zip(plan.blocks, self.widths, strict=True)],
            optimizer=fbgemm.OptimType.EXACT_ADAGRAD,
            learning_rate=learning_rate,
        )
        self.tables.init_embedding_weights_uniform(-0.01, 0.01)
        self.projections = projections(self.widths, plan.base_dim)

    def forward(self, ids: Tensor) -> Tensor:
        """(batch, features) -> (batch, features, base_dim)."""
        rows = self.tables(ids.t().reshape(-1), torch.arange(ids.numel() + 1))  # (batch, sum of widths)
        parts = zip(self.projections, rows.split(self.widths, dim=1), strict=True)
        return torch.stack([projection(part) for projection, part in parts], dim=1)


def import_fbgemm() -> Any:
    """Import FBGEMM's training tables, or say how to get them."""
    try:
        return importlib.import_module("fbgemm_gpu.split_table_batched_embeddings_ops_training")
    except ImportError as error:
        raise SystemExit(
            f"--with-fbgemm needs FBGEMM for CPU: pip install --no-deps fbgemm-gpu-cpu==1.8.0 ({error})"
        ) from None


def bmm_interaction(dense: Tensor, vectors: Tensor) -> Tensor:
    """DLRM's own dot interaction: all products of the slots, then the lower triangle."""
    slots = torch.cat([dense[:, None], vectors], dim=1)  # (batch, slots, base_dim)
    products = torch.bmm(slots, slots.transpose(1, 2))
    row, column = torch.tril_indices(slots.shape[1], slots.shape[1], offset=-1)
    return torch.cat([dense, products[:, row, column]], dim=1)


def projections(widths: list[int], base_dim: int) -> nn.ModuleList:
    """Return the linear maps to full width; a block of full width needs none."""
    return nn.ModuleList(
        [nn.Identity() if w == base_dim else nn.Linear(w, base_dim, bias=False) for w in widths]
    )
