"""Which form of lookup and interaction is cheaper, from a layer's blocks and the batch size alone.

*Fused* lifts every sample's vectors and multiplies them; *split* multiplies stored rows through small Gram
matrices (see split.h). Both are exact. Knows nothing about tensors.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import Literal

import numpy as np

from mixdim.kernels.structs import Layout

Form = Literal["fused", "split"]
SWITCH = "MIXDIM_INTERACTION"  # forces one of the forms: for tests and comparisons
LANES = 8
CHUNK = 32  # kChunk32 of split.h

# What things cost beside a multiply-add of a large matrix product, measured on two cores with AVX2.
DENSE = 2.0  # one number of a dense vector with a lifted row, there and back
PAIR, PAIR_VECTOR = 25.0, 12.0  # a pair of features of a sample, and each vector of its product
FUSED_PAIR = 100.0


def padded(width: np.ndarray) -> np.ndarray:
    """Rounded up to a whole number of vectors."""
    return (width + LANES - 1) // LANES * LANES


class SplitForm:
    """The columns of all blocks in the split form, and the order of the features.

    Arrays of blocks are in the order of the layout's blocks.
    """

    def __init__(self, layout: Layout, base_dim: int) -> None:
        self.layout, self.base_dim = layout, base_dim
        self.feature, starts, ends, self.dim, *_ = layout.blocks.T
        self.sizes = ends - starts
        # With hardly more rows than numbers in a row, each row gets a column of its own.
        self.is_one_hot = self.sizes <= 2 * self.dim
        self.width = np.where(self.is_one_hot, self.sizes, self.dim)
        self.is_lifted = self.is_one_hot | (self.dim > LANES)
        self.num_features = len(layout.features)
        # One-hot features first, then wide ones: their rows are few, and they meet all later columns.
        per_feature = np.bincount(self.feature)
        mean_width = np.bincount(self.feature, padded(self.width)) / per_feature
        one_hot = np.bincount(self.feature, self.is_one_hot) == per_feature
        self.order = np.lexsort((-mean_width, ~one_hot))
        self.position = np.argsort(self.order)[self.feature]
        by_position = np.argsort(self.position, kind="stable")
        ends_of_columns = np.cumsum(padded(self.width)[by_position])
        self.column = np.empty_like(self.width)
        self.column[by_position] = ends_of_columns - padded(self.width)[by_position]
        self.columns = int(ends_of_columns[-1])
        last = np.zeros(self.num_features, np.int64)
        np.maximum.at(last, self.position, self.column + padded(self.width))
        self.later = last[self.position]
        z_width = np.where(self.is_lifted, 0, self.width)
        self.z_column = np.where(self.is_lifted, -1, np.cumsum(z_width) - z_width)
        self.z_columns = int(z_width.sum())
        self.stride = (base_dim + CHUNK - 1) // CHUNK * CHUNK

    @cached_property
    def pair_columns(self) -> np.ndarray:
        """Where the product of positions j and i < j goes, then of j and the dense vector, for all j."""
        numbers = np.arange(self.num_features)
        j, i = np.tril_indices(self.num_features)
        slots = np.stack([self.order[j] + 1, np.where(i == j, 0, self.order[i] + 1)])
        high, low = slots.max(0), slots.min(0)
        assert len(numbers) == 0 or low.min() == 0
        return self.base_dim + high * (high - 1) // 2 + low

    def cost(self, batch: int) -> float:
        """Of a training step, in multiply-adds of a large matrix product."""
        D, W = self.base_dim, self.columns  # noqa: N806  # the letters of split.h
        hits = batch / np.bincount(self.feature)[self.feature]  # bands have about equal mass
        entries = np.minimum(self.sizes, hits)
        grams = 1.5 * W * W * D
        y = 3 * (~self.is_one_hot * entries * self.width * (W - self.later)).sum()
        lifted = 3 * (self.is_lifted * np.where(self.is_one_hot, self.sizes, entries) * self.dim).sum() * D
        dense = 3 * D * (hits * np.where(self.is_lifted, DENSE, self.width)).sum()
        vectors = hits * np.where(self.is_one_hot, 0, padded(self.width) / LANES) * self.position
        pairs = PAIR_VECTOR * vectors.sum() + PAIR * batch * self.num_features * (self.num_features + 1) / 2
        return float(grams + y + lifted + dense + pairs)

    def fused_cost(self, batch: int) -> float:
        """The same of the fused form."""
        D, slots = self.base_dim, self.num_features + 1  # noqa: N806
        hits = batch / np.bincount(self.feature)[self.feature]
        lifting = (2.6 * hits * self.dim + 2 * np.minimum(self.sizes, hits) * self.dim).sum() * D
        pairs = batch * (2.55 * D * slots**2 + FUSED_PAIR * slots * (slots - 1) / 2)
        return float(lifting + pairs + 16 * batch * self.num_features * D)


def form_of(split: SplitForm, batch: int) -> Form:
    """The cheaper form for a batch of this size, or the one that the environment forces."""
    forced = os.environ.get(SWITCH, "")
    if forced in ("fused", "split"):
        return forced  # type: ignore[return-value]  # checked in the line above
    if forced:
        raise ValueError(f"{SWITCH} must be fused or split, got {forced!r}")
    return "split" if split.cost(batch) < split.fused_cost(batch) else "fused"
