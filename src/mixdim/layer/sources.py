"""Where the weights of a layer's blocks may come from: another layer, a matrix, blocks that are given.

Knows nothing about what is made of them. Rows are read a chunk at a time, so that no table is ever held
twice in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from mixdim.layer.given import tensor_of_shape
from mixdim.layer.idmap import IdMap
from mixdim.layer.layout import LaidBlock
from mixdim.layer.lookup import lookup_each

if TYPE_CHECKING:
    from mixdim.layer.embedding_base import MixedEmbeddingBase

AT_ONCE = 2**18  # numbers of a chunk, 2 MB in float64


class Same(NamedTuple):
    """Parts to copy into a block, and the block that they are of."""

    parts: Mapping[str, Tensor]
    block: LaidBlock | None = None


class Source(Protocol):
    """Weights for the blocks of one feature of a layer."""

    def same(self, block: LaidBlock, start: int) -> Same | None:
        """What to copy into a block that begins at a rank; None if it is to be fitted."""

    def rows(self, block: LaidBlock, start: int) -> Vectors:
        """The vectors of the block's rows."""


@dataclass(frozen=True)
class Vectors:
    """The vectors of some ranks of a feature, chunk by chunk: a `RowSource`."""

    ids: Tensor | range  # of the ranks
    read: Callable[[slice, Tensor], Tensor]  # the places of ids among those, and ids -> vectors
    weights: Tensor | None  # (rows,) of every id; None where all count as much
    base_dim: int
    scale: float = 1.0

    def chunks(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Places, vectors in float64, and weights; where none has any, all count as much."""
        counts = self.weights
        if counts is not None and not any(bool(counts[part].any()) for _, part in self._parts()):
            counts = None
        for here, part in self._parts():
            vectors = self.read(here, part).to(torch.float64)
            yield here, vectors, vectors.new_ones(len(vectors)) if counts is None else counts[part]

    def _parts(self) -> Iterator[tuple[slice, Tensor]]:
        at_once = max(AT_ONCE // self.base_dim // 64, 1) * 64
        for first in range(0, len(self.ids), at_once):
            here = slice(first, min(first + at_once, len(self.ids)))
            part = self.ids[here]
            yield here, torch.arange(part.start, part.stop) if isinstance(part, range) else part


class _OfRanks:
    """What sources of vectors by id have in common: the id of each rank of the target."""

    def __init__(self, ids: IdMap, feature: int, weights: Tensor | None) -> None:
        self.weights = weights
        self.id_of_rank = None if ids.is_identity(feature) else ids.ranks_of(feature).cpu().argsort()

    def ids_of(self, block: LaidBlock, start: int) -> Tensor | range:
        """The ids of a block that begins at a rank."""
        if self.id_of_rank is None:
            return range(start, start + block.size)
        return self.id_of_rank[start : start + block.size]


class LayerSource(_OfRanks):
    """A feature of another layer."""

    def __init__(
        self,
        layer: MixedEmbeddingBase,
        feature: str,
        ids: IdMap,
        number: int,
        weights: Tensor | None = None,
    ) -> None:
        super().__init__(ids, number, weights)
        self.layer, self.number, self.tables = layer, layer.ids.number_of(feature), layer.tables()
        self.blocks = layer.layout.of_feature[self.number]
        self.has_same_ids = _have_same_ranks(layer.ids, self.number, ids, number)

    def same(self, block: LaidBlock, start: int) -> Same | None:
        """A block of the same ranks that is stored alike."""
        first = self.blocks[0].start
        for mine in self.blocks if self.has_same_ids else ():
            is_here = (mine.start - first, mine.size) == (start, block.size)
            if is_here and mine.storage == block.storage:
                return Same(self.tables.of_block(mine).parts(mine), mine)
        return None

    def rows(self, block: LaidBlock, start: int) -> Vectors:
        """Looked up in the layer; in one block, rows that follow each other."""
        read, first = self._read, self.blocks[0].start + start
        for mine in self.blocks if self.has_same_ids else ():
            if mine.start <= first and first + block.size <= mine.end:
                read = partial(self._read_block, mine, first - mine.start)
        return Vectors(self.ids_of(block, start), read, self.weights, self.layer.base_dim)

    def _read_block(self, block: LaidBlock, first: int, here: slice, ids: Tensor) -> Tensor:
        device = self.layer.indices.features.device
        rows = torch.arange(first + here.start, first + here.stop, device=device)
        return self.tables.of_block(block).forward(rows, block.slot).cpu()

    def _read(self, here: slice, ids: Tensor) -> Tensor:
        device = self.layer.indices.features.device
        ranks = self.layer.ids.ranks(ids.to(device), self.layer.indices.features[self.number])
        rows = ranks + self.blocks[0].start
        return lookup_each(self.tables, rows, self.blocks).cpu()


class MatrixSource(_OfRanks):
    """A matrix with a row for each id."""

    def __init__(self, matrix: Tensor, ids: IdMap, number: int, weights: Tensor | None) -> None:
        super().__init__(ids, number, weights)
        self.matrix = matrix
        largest = 1.0
        if matrix.dtype == torch.float64:
            largest = max(abs(float(bound)) for bound in matrix.aminmax())
        is_usual = not (math.isfinite(largest) and largest > 0)
        self.scale = 1.0 if is_usual else 2.0 ** math.frexp(largest)[1]

    def same(self, block: LaidBlock, start: int) -> None:
        """Nothing is stored as a block yet."""

    def rows(self, block: LaidBlock, start: int) -> Vectors:
        """Rows of the matrix."""
        width = self.matrix.shape[1]
        return Vectors(self.ids_of(block, start), self._read, self.weights, width, self.scale)

    def _read(self, here: slice, ids: Tensor) -> Tensor:
        return self.matrix.index_select(0, ids.to(self.matrix.device)).cpu()


@dataclass(frozen=True)
class GivenBlocks:
    """Stored rows and projections of the blocks of a feature, by the rank that each begins with."""

    parts: Mapping[int, Mapping[str, Tensor]]

    @classmethod
    def checked(
        cls,
        feature: str,
        blocks: Sequence[LaidBlock],
        held: Sequence[Mapping[str, Tensor]],
        tables: Sequence[Any],
        projections: Sequence[Any],
    ) -> GivenBlocks:
        """Refuse what does not have the shapes of the parts that are held."""
        if not len(blocks) == len(tables) == len(projections):
            raise ValueError(
                f"feature {feature!r} has {len(blocks)} blocks, got {len(tables)} tables and "
                f"{len(projections)} projections"
            )
        given = {}
        for i, (block, parts) in enumerate(zip(blocks, held, strict=True)):
            named = f"[{i}] of feature {feature!r}"
            if not block.storage.is_trained:
                raise ValueError(
                    f"block {i} of feature {feature!r} is stored as {block.storage}: load weights into "
                    "a layer of the plan before it was quantized, then quantize it"
                )
            found = {"table": tensor_of_shape(tables[i], parts["table"].shape, f"tables{named}")}
            if "projection" in parts:
                shape = parts["projection"].shape
                found["projection"] = tensor_of_shape(projections[i], shape, f"projections{named}")
            elif projections[i] is not None:
                raise ValueError(f"projections{named} must be None: the block has full width")
            given[block.start - blocks[0].start] = found
        return cls(given)

    def same(self, block: LaidBlock, start: int) -> Same:
        """What is given."""
        return Same(self.parts[start])

    def rows(self, block: LaidBlock, start: int) -> Vectors:
        """Never asked for."""
        raise AssertionError("blocks that are given are copied")


def _have_same_ranks(mine: IdMap, number: int, other: IdMap, other_number: int) -> bool:
    if mine.is_identity(number) and other.is_identity(other_number):
        return True
    return torch.equal(mine.ranks_of(number).cpu(), other.ranks_of(other_number).cpu())
