"""One feature of a layer set from a source: block by block copied, quantized or fitted."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from mixdim.layer.layout import LaidBlock
from mixdim.layer.sources import Source
from mixdim.storages.fitting import Lost, Metric

if TYPE_CHECKING:
    from mixdim.layer.embedding_base import MixedEmbeddingBase


class Move(NamedTuple):
    """What became of a block: it has what another one had, or was fitted."""

    feature: str
    source: LaidBlock | None  # None if it was fitted
    target: LaidBlock


@torch.no_grad()
def fill(
    layer: MixedEmbeddingBase, feature: str, source: Source, metric: Tensor | None = None
) -> tuple[list[Move], Lost]:
    """Set the blocks of a feature from a source; returns what became of each, and what is lost."""
    blocks, tables = layer.layout.of_feature[layer.ids.number_of(feature)], layer.tables()
    first, root = blocks[0].start, None if metric is None else Metric.of(metric)
    found = [(block, source.same(block, block.start - first)) for block in blocks]
    for block, same in found:
        if same is None and (reason := tables.of_block(block).why_not_to_fit):
            raise ValueError(f"feature {feature!r} cannot be fitted: {reason}")
    moves, lost = list[Move](), Lost()
    for block, same in found:
        table = tables.of_block(block)
        try:
            if same is None:
                lost += table.fit(block, source.rows(block, block.start - first), root)
            else:
                table.fill(block, same.parts)
                if same.block is not None:  # the energy of what is kept
                    lost += table.lost(block, source.rows(block, block.start - first), root)
        except ValueError as error:
            what = "quantized" if block.storage.is_quantized else "fitted"
            raise ValueError(f"feature {feature!r} cannot be {what}: {error}") from None
        moves.append(Move(feature, None if same is None else same.block, block))
    return moves, lost
