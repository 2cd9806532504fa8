"""How rows become vectors, in plain PyTorch: the specification of every faster path.

Knows nothing about ids, nor how a table stores its rows: it takes rows of the layer, already checked, -1
where there is none, and asks the table of their block. Letters: a batch has B samples and F features, a
group has C whole features, a bag lookup has V values.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from mixdim.layer.bags import Bags
from mixdim.layer.layout import Indices, LaidBlock, Layout
from mixdim.storages.table import Table


class Tables(NamedTuple):
    """What a lookup reads: where blocks are, and the tables of all groups or of those to look up."""

    layout: Layout
    indices: Indices
    of_group: dict[str, Table]  # rows of other groups give zeros
    sparse: bool  # whether tables get row-sparse gradients
    padded: bool  # whether a row may be -1

    def of_block(self, block: LaidBlock) -> Table:
        """The table of a block's group."""
        return self.of_group[block.storage.group]

    def whole(self) -> Iterable[tuple[Table, str, list[LaidBlock]]]:
        """Each table with its group and the blocks in it that are whole features."""
        for group, blocks in self.layout.whole.items():
            if group in self.of_group:
                yield self.of_group[group], group, blocks

    def bands(self) -> Iterable[tuple[int, list[LaidBlock]]]:
        """The features that are cut into bands, each with the blocks to look up."""
        for feature, blocks in self.layout.bands.items():
            if own := [block for block in blocks if block.storage.group in self.of_group]:
                yield feature, own

    def stack(self, planes: dict[int, Tensor]) -> Tensor:
        """Put the features side by side: (B, base_dim) each -> (B, F, base_dim)."""
        num_features = len(self.layout.of_feature)
        if num_features == 1:
            return planes[0].unsqueeze(1)
        zeros = torch.zeros_like(next(iter(planes.values())))
        return torch.stack([planes.get(feature, zeros) for feature in range(num_features)], dim=1)


def lookup(tables: Tables, rows: Tensor) -> Tensor:
    """Look up one row for each sample and feature: (F, B) -> (B, F, base_dim).

    One gather and one batched product per group. Of features cut into bands, the batch does not tell how
    many samples fall into each band, so these go band by band.
    """
    _refuse_to_trace(tables)
    planes: dict[int, Tensor] = {}
    for table, group, blocks in tables.whole():
        here = rows[tables.indices.columns[group]]  # (C, B)
        in_block = here - tables.indices.starts[group][:, None]
        if tables.padded:
            lifted = _lookup_padded(tables, table, in_block, here >= 0)
        else:
            lifted = table.forward(in_block, slice(len(blocks)))  # (C, B, base_dim)
        planes.update(zip((block.feature for block in blocks), lifted.unbind(0), strict=True))
    for feature, own in tables.bands():
        planes[feature] = lookup_each(tables, rows[feature], own)
    return tables.stack(planes)


def lookup_each(tables: Tables, rows: Tensor, blocks: Iterable[LaidBlock]) -> Tensor:
    """Look up rows that lie in any of `blocks`, one block after the other: (V,) -> (V, base_dim).

    A row outside of them all (-1) gives zeros.
    """
    _refuse_to_trace(tables)
    places, vectors = [], []
    for block in blocks:
        here = ((rows >= block.start) & (rows < block.end)).nonzero().squeeze(1)
        places.append(here)
        vectors.append(tables.of_block(block).forward(rows[here] - block.start, block.slot))
    lifted = torch.cat(vectors)
    return lifted.new_zeros(rows.shape[0], lifted.shape[1]).index_copy(0, torch.cat(places), lifted)


def lookup_sum(tables: Tables, bags: Bags) -> Tensor:
    """Add up the vectors of each bag of rows: V values -> (B, F, base_dim)."""
    _refuse_to_trace(tables)
    planes: dict[int, Tensor] = {}
    for table, group, blocks in tables.whole():
        positions = tables.indices.positions[group]
        here = bags.where(positions[bags.features] >= 0)
        position = positions[here.features]  # (V,), which is also the slot
        in_block = here.values - tables.indices.starts[group][position]
        numbers, num_bags = position * bags.batch_size + here.samples, len(blocks) * bags.batch_size
        summed = table.pool(in_block, position, numbers, num_bags, here.weights)
        summed = summed.view(len(blocks), bags.batch_size, summed.shape[1])
        lifted = table.lift(summed, slice(len(blocks)))  # (C, B, base_dim)
        planes.update(zip((block.feature for block in blocks), lifted.unbind(0), strict=True))
    for feature, own in tables.bands():
        planes[feature] = torch.stack([_sum_band(tables, block, bags) for block in own]).sum(0)
    return tables.stack(planes)


def table_rows(tables: Tables, rows: Tensor) -> Iterable[tuple[str, Tensor]]:
    """By name of a table, which of its rows these rows of the layer read: some maybe several times.

    Rows are (F, B), of each feature its own, or (V,) of any.
    """
    if rows.dim() == 2 and not tables.padded and not tables.layout.bands:
        for table, group, whole in tables.whole():
            in_block = rows[tables.indices.columns[group]] - tables.indices.starts[group][:, None]
            for name in table.row_sparse:
                yield f"{name}_{group}", table.table_rows(in_block, slice(len(whole))).flatten()
        return
    rows = rows.flatten()
    rows = rows[rows >= 0] if tables.padded else rows
    blocks = tables.layout.blocks
    number = torch.searchsorted(tables.indices.block_ends, rows, right=True)
    start, slot = (
        column[number] for column in (tables.indices.block_starts, tables.indices.block_slots)
    )
    in_block = rows - start
    groups = list(tables.of_group)
    if len(groups) > 1:
        of_block = torch.tensor([groups.index(block.storage.group) for block in blocks])
        of_row = of_block.to(rows.device)[number]
    for place, (group, table) in enumerate(tables.of_group.items()):
        here = slice(None) if len(groups) == 1 else of_row == place
        for name in table.row_sparse:
            yield f"{name}_{group}", table.table_rows(in_block[here], slot[here]).flatten()


def _sum_band(tables: Tables, block: LaidBlock, bags: Bags) -> Tensor:
    """What the rows of one band add to the bags of its feature: (B, base_dim)."""
    here = bags.where((bags.values >= block.start) & (bags.values < block.end))
    table, in_block = tables.of_block(block), here.values - block.start
    summed = table.pool(in_block, block.slot, here.samples, bags.batch_size, here.weights)
    return table.lift(summed, block.slot)


def _lookup_padded(tables: Tables, table: Table, in_block: Tensor, is_row: Tensor) -> Tensor:
    """Look up rows of the first C slots, zeros where there is none: (C, B) -> (C, B, base_dim)."""
    # Padding must not touch any row: a row-sparse optimizer would update it.
    here = is_row.flatten().nonzero().squeeze(1)
    found = table.take(in_block.flatten()[here], here // max(in_block.shape[1], 1))
    stored = found.new_zeros(in_block.numel(), found.shape[1]).index_copy(0, here, found)
    stored = stored.view(*in_block.shape, found.shape[1])
    return table.lift(stored, slice(in_block.shape[0]))


def _refuse_to_trace(tables: Tables) -> None:
    """Say that a graph cannot have row-sparse gradients."""
    if tables.sparse and torch.is_grad_enabled() and torch.compiler.is_dynamo_compiling():
        # PyTorch 2.13 cannot trace a sparse gradient of unknown length, and of known length its default
        # compiler gives wrong values where there are several tables. Without fullgraph=True, this makes
        # torch.compile leave the layer out of its graph, and all is well.
        raise NotImplementedError("torch.compile cannot trace sparse=True: use sparse=False")
