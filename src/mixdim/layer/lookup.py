"""How rows become vectors, in plain PyTorch: the specification of every faster path.

Knows nothing about ids: it takes rows of the layer, already checked, -1 where there is none. Letters:
a batch has B samples and F features, a width has C whole features, a bag lookup has V values.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mixdim.layer.bags import Bags
from mixdim.layer.indices import Indices
from mixdim.layer.packing import PackedBlock, Packing


class Weights(NamedTuple):
    """What a lookup reads: where blocks are, and by width the packed table and its projections."""

    packing: Packing
    indices: Indices
    tables: dict[int, Tensor]  # width -> (rows, width)
    projections: dict[int, Tensor]  # width -> (blocks, width, base_dim); none at full width
    sparse: bool  # whether tables get row-sparse gradients
    padded: bool  # whether a row may be -1

    def table(self, block: PackedBlock) -> Tensor:
        """The rows of one block: (size, width)."""
        return self.tables[block.dim][block.first_row : block.first_row + block.size]

    def dense(self, block: PackedBlock) -> Tensor:
        """The vectors of all rows of one block: (size, base_dim)."""
        return self.project(self.table(block), block.dim, block.slot)

    def project(self, vectors: Tensor, width: int, slots: slice | int) -> Tensor:
        """Lift vectors of one width to base_dim: (..., C, B, width) or (..., B, width)."""
        # A full-width block needs no lifting, so uniform dimensions cost nothing extra.
        return vectors @ self.projections[width][slots] if width in self.projections else vectors


def lookup(weights: Weights, rows: Tensor) -> Tensor:
    """Look up one row for each sample and feature: (F, B) -> (B, F, base_dim).

    One gather and one batched product per distinct width. Of features cut into bands, the batch does
    not tell how many samples fall into each band, so these go band by band.
    """
    planes: dict[int, Tensor] = {}
    for width, blocks in weights.packing.whole.items():
        here = rows[weights.indices.columns[width]]  # (C, B)
        table_rows = here + weights.indices.shifts[width][:, None]
        if weights.padded:
            table_rows = table_rows.where(here >= 0, -1)
        vectors = _gather(weights, width, table_rows)  # (C, B, width)
        lifted = weights.project(vectors, width, slice(len(blocks)))  # (C, B, base_dim)
        planes.update(zip((block.feature for block in blocks), lifted.unbind(0), strict=True))
    for feature, blocks in weights.packing.bands.items():
        planes[feature] = lookup_each(weights, rows[feature], blocks)
    return torch.stack([planes[feature] for feature in range(len(planes))], dim=1)


def lookup_each(weights: Weights, rows: Tensor, blocks: Iterable[PackedBlock]) -> Tensor:
    """Look up rows that lie in any of `blocks`, one block after the other: (V,) -> (V, base_dim).

    A row outside of them all (-1) gives zeros.
    """
    places, vectors = [], []
    for block in blocks:
        here = ((rows >= block.start) & (rows < block.end)).nonzero().squeeze(1)
        found = _take(weights, block.dim, rows[here] + block.shift)
        places.append(here)
        vectors.append(weights.project(found, block.dim, block.slot))
    lifted = torch.cat(vectors)
    return lifted.new_zeros(rows.shape[0], lifted.shape[1]).index_copy(0, torch.cat(places), lifted)


def lookup_sum(weights: Weights, bags: Bags) -> Tensor:
    """Add up the vectors of each bag of rows: V values -> (B, F, base_dim).

    The narrow vectors are added and their sum is projected: the same by linearity, and cheaper.
    """
    planes: dict[int, Tensor] = {}
    for width, blocks in weights.packing.whole.items():
        positions = weights.indices.positions[width]
        here = bags.where(positions[bags.features] >= 0)
        position = positions[here.features]  # (V,)
        table_rows = here.values + weights.indices.shifts[width][position]
        numbers = position * bags.batch_size + here.samples
        summed = _sum_rows(weights, width, table_rows, numbers, len(blocks) * bags.batch_size, here)
        summed = summed.view(len(blocks), bags.batch_size, width)
        lifted = weights.project(summed, width, slice(len(blocks)))  # (C, B, base_dim)
        planes.update(zip((block.feature for block in blocks), lifted.unbind(0), strict=True))
    for feature, blocks in weights.packing.bands.items():
        parts = [_sum_band(weights, block, bags) for block in blocks]
        planes[feature] = torch.stack(parts).sum(0)
    return torch.stack([planes[feature] for feature in range(len(planes))], dim=1)


def _sum_band(weights: Weights, block: PackedBlock, bags: Bags) -> Tensor:
    """What the rows of one band add to the bags of its feature: (B, base_dim)."""
    here = bags.where((bags.values >= block.start) & (bags.values < block.end))
    table_rows = here.values + block.shift
    summed = _sum_rows(weights, block.dim, table_rows, here.samples, bags.batch_size, here)
    return weights.project(summed, block.dim, block.slot)


def _sum_rows(
    weights: Weights, width: int, table_rows: Tensor, numbers: Tensor, num_bags: int, bags: Bags
) -> Tensor:
    """Add up rows of one table by their bags, whose numbers never fall: (V,) -> (num_bags, width)."""
    table = weights.tables[width]
    return F.embedding_bag(
        table_rows,
        table,
        torch.searchsorted(numbers, torch.arange(num_bags + 1, device=numbers.device)),
        mode="sum",
        per_sample_weights=None if bags.weights is None else bags.weights.to(table.dtype),
        include_last_offset=True,
        sparse=weights.sparse,
    )


def _take(weights: Weights, width: int, table_rows: Tensor) -> Tensor:
    """Take as many rows of one table as the ids happen to ask for: (V,) -> (V, width)."""
    if weights.sparse and torch.is_grad_enabled() and torch.compiler.is_dynamo_compiling():
        # PyTorch 2.13 cannot trace a sparse gradient of unknown length. Without fullgraph=True, this
        # makes torch.compile leave the layer out of its graph, and all is well.
        raise NotImplementedError(
            "torch.compile cannot trace sparse=True with bands or padding: use sparse=False"
        )
    return F.embedding(table_rows, weights.tables[width], sparse=weights.sparse)


def _gather(weights: Weights, width: int, table_rows: Tensor) -> Tensor:
    """Take rows of one table, zeros for -1: (C, B) -> (C, B, width)."""
    if not weights.padded:
        return F.embedding(table_rows, weights.tables[width], sparse=weights.sparse)
    # Padding must not touch any row: a row-sparse optimizer would update it.
    here = (table_rows.flatten() >= 0).nonzero().squeeze(1)
    found = _take(weights, width, table_rows.flatten()[here])
    padded = found.new_zeros(table_rows.numel(), width).index_copy(0, here, found)
    return padded.view(*table_rows.shape, width)
