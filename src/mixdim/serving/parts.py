"""The blocks of an embedding, ready to be written. Knows nothing about graphs and storages.

Small blocks are folded: multiplied by their projection once, so that no lookup has to do it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mixdim.layer.embedding_base import MixedEmbeddingBase
from mixdim.layer.lookup import Tables
from mixdim.models.tables import FeatureTables, plain_weight
from mixdim.planning.feature import Block
from mixdim.storages.rows import table_of
from mixdim.storages.table import HeldBlock

FOLDED_BYTES = 128 * 1024  # a block is folded if it then takes no more than this in float32
# Of a quantized block, less: folded, it is float32 again, and it was quantized for a small file.
FOLDED_QUANTIZED_BYTES = 16 * 1024


@dataclass(frozen=True, eq=False)
class Part(HeldBlock):
    """A block that holds the ranks of a feature from `start` on."""

    feature: int
    start: int


@dataclass(frozen=True, eq=False)
class Embedded:
    """The features of an embedding, their parts, and what their ids mean."""

    names: list[str]
    rows: list[int]
    base_dim: int
    parts: list[list[Part]]  # by feature, from popular to rare
    ranks: dict[int, Tensor]  # of features whose ids are not ranks: the rank of each id
    padding_id: int | None = None
    pooling: str = "sum"

    @property
    def num_features(self) -> int:
        """How many features there are."""
        return len(self.names)


@torch.no_grad()
def embedded(module: nn.Module) -> Embedded:
    """Read an embedding: a layer of mixdim, an nn.Embedding, or one nn.Embedding a feature."""
    if isinstance(module, MixedEmbeddingBase):
        return _of_layer(module)
    if isinstance(module, FeatureTables):
        return _of_tables([plain_weight(table) for table in module])
    return _of_tables([plain_weight(module)])


def _of_tables(tables: Sequence[Tensor]) -> Embedded:
    names, rows = [str(n) for n in range(len(tables))], [len(table) for table in tables]
    parts = [[_dense_part(table, n, 0)] for n, table in enumerate(tables)]
    return Embedded(names, rows, tables[0].shape[1], parts, {})


def _of_layer(layer: MixedEmbeddingBase) -> Embedded:
    folded = layer.plan.folded(FOLDED_BYTES, quantized_bytes=FOLDED_QUANTIZED_BYTES)
    tables, parts, ranks = layer.tables(), [], {}
    for number, feature in enumerate(folded.features):
        is_by_id = feature.name in layer.plan.orders.keys() - folded.orders.keys()
        parts.append(
            [_dense_part(layer.dense_weight(feature.name), number, 0)]
            if is_by_id
            else [_part(tables, number, block) for block in feature.blocks]
        )
        if not is_by_id and not layer.ids.is_identity(number):
            kind = torch.int32 if feature.rows < 2**31 else torch.int64
            ranks[number] = layer.ids.ranks_of(number).to(kind)
    return Embedded(
        list(folded),
        [feature.rows for feature in folded.features],
        layer.base_dim,
        parts,
        ranks,
        layer.padding_id,
        layer.pooling,
    )


def _part(tables: Tables, number: int, folded: Block) -> Part:
    """A block of a folded plan: the one that the layer holds, or the matrix of those in its place."""
    blocks = tables.layout.of_feature[number]
    rows = range(blocks[0].start + folded.start, blocks[0].start + folded.start + folded.size)
    held = [HeldBlock(tables.of_block(block), block) for block in blocks if block.start in rows]
    if len(held) == 1 and held[0].block.storage == folded.storage:
        return Part(held[0].table, held[0].block, number, folded.start)
    matrices = [one.table.dense(one.block) for one in held]
    return _dense_part(torch.cat(matrices), number, folded.start)


def _dense_part(matrix: Tensor, feature: int, start: int) -> Part:
    """Vectors of base_dim as they are."""
    table = table_of(matrix)
    return Part(table, table.blocks[0], feature, start)
