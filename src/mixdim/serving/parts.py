"""What an embedding holds, part by part, ready to be written. Knows nothing about graphs.

Small tables are folded: multiplied by their projection once, so that nobody does it at every lookup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from mixdim.layer.mixed_tables import MixedTables
from mixdim.models.tables import FeatureTables
from mixdim.storages import Rows, Storage

FOLDED_BYTES = 128 * 1024  # a table is folded that then takes no more than this in float32
# Of a rounded table, less: folded, it is float32 again, and to round it was to have a small file.
FOLDED_ROUNDED_BYTES = 16 * 1024


@dataclass(frozen=True, eq=False)
class Part:
    """Ranks `start` to `start + size` of a feature and what is stored for them."""

    feature: int
    start: int
    size: int
    storage: Storage
    tensors: Mapping[str, Tensor]  # as the table of the storage names its parts
    slot: int = 0  # see `PackedBlock.slot`: a hash depends on it


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


def rows_of(module: nn.Module) -> dict[str, int]:
    """The rows of each feature of an embedding, by name."""
    if isinstance(module, MixedTables):
        return {feature.name: feature.rows for feature in module.plan.features}
    tables = module if isinstance(module, FeatureTables) else [module]
    return {str(number): len(_plain(table)) for number, table in enumerate(tables)}


@torch.no_grad()
def embedded(module: nn.Module) -> Embedded:
    """Read an embedding: a layer of mixdim, an nn.Embedding, or one nn.Embedding a feature."""
    if isinstance(module, MixedTables):
        return _of_layer(module)
    if isinstance(module, FeatureTables):
        return _of_tables([_plain(table) for table in module])
    return _of_tables([_plain(module)])


def _plain(module: nn.Module) -> Tensor:
    if type(module) is not nn.Embedding or module.max_norm is not None:
        raise ValueError(
            "an embedding to export must be a mixdim layer or an nn.Embedding without max_norm, "
            f"got {module}"
        )
    return module.weight


def _of_tables(tables: Sequence[Tensor]) -> Embedded:
    rows, width = [len(table) for table in tables], tables[0].shape[1]
    parts = [[Part(n, 0, len(table), Rows(width), {"table": table})] for n, table in enumerate(tables)]
    return Embedded([str(n) for n in range(len(tables))], rows, width, parts, {})


def _of_layer(layer: MixedTables) -> Embedded:
    tables, features, ranks = layer.tables(), layer.plan.features, {}
    all_parts: list[list[Part]] = []
    for number, (feature, blocks) in enumerate(zip(features, layer.layout.of_feature, strict=True)):
        first = blocks[0].start
        whole = Part(number, 0, feature.rows, Rows(layer.base_dim), {})
        if _is_folded(feature.rows, [block.storage for block in blocks], layer.base_dim):
            weight = layer.dense_weight(feature.name)  # by id, so it needs no ranks
            all_parts.append([replace(whole, tensors={"table": weight})])
            continue
        parts = []
        for block in blocks:
            table = tables.of_block(block)
            storage, held = block.storage, table.parts(block)
            if _is_folded(block.size, [storage], layer.base_dim):
                storage, held = Rows(layer.base_dim), {"table": table.dense(block)}
            parts.append(Part(number, block.start - first, block.size, storage, held, slot=block.slot))
        all_parts.append(list(_merged(parts, layer.base_dim)))
        if not layer.ids.is_identity(number):
            ranks[number] = layer.ids.ranks_of(number).to(
                torch.int32 if feature.rows < 2**31 else torch.int64
            )
    return Embedded(
        list(layer.plan),
        [feature.rows for feature in features],
        layer.base_dim,
        all_parts,
        ranks,
        layer.padding_id,
        layer.pooling,
    )


def _is_folded(rows: int, storages: Iterable[Storage], base_dim: int) -> bool:
    """Whether rows are stored at full width."""
    is_rounded = any(storage.is_quantized for storage in storages)
    most = FOLDED_ROUNDED_BYTES if is_rounded else FOLDED_BYTES
    return rows * base_dim * torch.float32.itemsize <= most


def _merged(parts: Iterable[Part], base_dim: int) -> Iterable[Part]:
    """Parts of full width that follow each other, as one."""
    last: Part | None = None
    for part in parts:
        if last is not None and part.storage == last.storage == Rows(base_dim):
            table = torch.cat([last.tensors["table"], part.tensors["table"]])
            last = replace(last, size=last.size + part.size, tensors={"table": table})
            continue
        if last is not None:
            yield last
        last = part
    if last is not None:
        yield last
