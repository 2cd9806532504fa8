"""The lookup of a layer whose blocks are rounded, or some of them, in one kernel. Without gradients.

Knows nothing about modules or storages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mixdim.kernels.library import outside_of_graphs
from mixdim.kernels.lookup import vectors
from mixdim.kernels.structs import FeatureLayout, LayerOptions, LookupStructs, require_shape

POINTERS = ("table", "projection", "codes", "scales")  # of the struct of a block, in its order


class NeededTensor(NamedTuple):
    """A tensor that blocks read."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


class BlockPlace(NamedTuple):
    """A block: its ranks in the feature, its stored rows, and where they are."""

    start: int
    end: int
    rows: int
    width: int
    bits: int  # of a code; 0 where there are none
    tensors: dict[str, tuple[int, int]]  # by pointer: which of the needed ones, from which byte on


class RoundedLayout(FeatureLayout):
    """Where features and blocks are, and the tensors that they read: all that never changes."""

    def __init__(
        self, features: Tensor, blocks: Sequence[BlockPlace], needed: Sequence[NeededTensor]
    ) -> None:
        super().__init__(features)
        self.needed = list(needed)
        nothing = (len(self.needed), 0)  # one place after the last tensor's address is null
        places = [[block.tensors.get(name, nothing) for name in POINTERS] for block in blocks]
        self._tensor, self._byte = np.array(places, np.int64).transpose(2, 0, 1)
        self._ranks = np.array([block[:4] for block in blocks], np.int64)
        self._bits = np.array([[block.bits] for block in blocks], np.int64)

    def placed_blocks(self, tensors: Sequence[Tensor]) -> np.ndarray:
        """The structs of the blocks, of tensors that have the shapes they must have."""
        for tensor, (name, shape, dtype) in zip(tensors, self.needed, strict=True):
            require_shape(tensor, name, shape, dtype)
        addresses = np.array([*(tensor.data_ptr() for tensor in tensors), 0])
        return np.hstack([self._ranks, addresses[self._tensor] + self._byte, self._bits])


@outside_of_graphs
def rounded_lookup(
    asked: tuple[Tensor, Tensor | None, Tensor | None],
    layer: LayerOptions,
    layout: RoundedLayout,
    tensors: Sequence[Tensor],
) -> Tensor:
    """Look up ids (B, F), or sum bags of V ids with offsets and perhaps weights: -> (B, F, base_dim)."""
    return vectors(LookupStructs(asked, layer, layout, layout.placed_blocks(tensors)))
