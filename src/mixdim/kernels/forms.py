"""Which form of lookup and interaction is cheaper, from a layer's blocks and the batch size alone.

*Fused* lifts every sample's vectors and multiplies them; *split* multiplies stored rows through a small
Gram matrix (see split.h). Both are exact. Knows nothing about tensors.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import Literal, cast, get_args

import numpy as np

from mixdim.kernels.structs import KernelLayout

Form = Literal["fused", "split"]
SWITCH = "MIXDIM_INTERACTION"  # forces one of the forms: for tests and comparisons
LANES = 8
CHUNK = 32  # kChunkColumns of split.h
MANY_ROWS = 8192  # measured at batch 4096: with more, too few samples share a row

# What things cost a training step, beside a multiply-add of a large matrix product, which is 1: measured
# on two cores with AVX2 (benchmarks/dlrm.py with MIXDIM_INTERACTION=fused or split compares the forms).
PRODUCT = 1.3  # a multiply-add of the products here, which are smaller
DENSE = 30.0  # a number of a dense vector with a lifted row, there and back
ELEMENT, VECTOR = 600.0, 100.0  # an element of a sample (see split_pairs_back.h), and each vector of it
FUSED_PAIR = 300.0  # a pair of features of a sample
START = 1e7  # of the split form: structs, memory, threads


def padded(width: np.ndarray) -> np.ndarray:
    """Rounded up to a whole number of vectors: to 1, 2, or a multiple of 4 of them."""
    part = np.where(width <= LANES, LANES, np.where(width <= 2 * LANES, 2 * LANES, 4 * LANES))
    return (width + part - 1) // part * part


class SplitForm:
    """The columns of all blocks in the split form, and the order of the features.

    Arrays of blocks are in the order of the layout's blocks.
    """

    def __init__(self, layout: KernelLayout, base_dim: int) -> None:
        self.layout, self.base_dim = layout, base_dim
        self._is_cheaper: dict[int, bool] = {}  # by batch size
        self.feature, self.dim, self.sizes = layout.feature, layout.width, layout.rows
        self.num_features = len(layout.features)
        # With hardly more rows than numbers in a row, each row gets a column of its own: one-hot. If all
        # blocks of a feature can be; these features come first.
        wide = np.bincount(self.feature, self.sizes > 2 * self.dim)
        self.is_one_hot = (wide == 0)[self.feature]
        self.num_one_hot = int((wide == 0).sum())
        self.width = np.where(self.is_one_hot, self.sizes, self.dim)
        # To lift pays where a row serves several samples, or has many numbers.
        self.is_lifted = self.is_one_hot | (
            self.dim > np.where(self.sizes > MANY_ROWS, 2 * LANES, LANES)
        )
        z_width = np.where(self.is_lifted, 0, self.width)
        self.z_column = np.where(self.is_lifted, -1, np.cumsum(z_width) - z_width)
        self.z_columns = int(z_width.sum())
        self.padded = np.where(self.is_one_hot, self.width, padded(self.width))
        # Then wide ones: their rows are few, and they meet all later columns. Bands are of any width:
        # they come last, vector by vector.
        num_blocks = np.bincount(self.feature)
        mean_width = np.bincount(self.feature, self.padded) / num_blocks
        self.order = np.lexsort((-mean_width, num_blocks > 1, wide > 0))
        self.position = np.argsort(self.order)[self.feature]
        self._place_columns()
        self._count_elements()
        self.stride = (base_dim + CHUNK - 1) // CHUNK * CHUNK

    def _place_columns(self) -> None:
        """Put columns feature after feature; before the narrow ones comes a vector of zeros."""
        widths, self.column = self.padded, np.zeros_like(self.width)
        hot = int((widths * self.is_one_hot).sum())
        self.narrow = (hot + 2 * LANES - 1) // LANES * LANES if hot else 0
        by_position = np.argsort(self.position, kind="stable")
        starts = np.cumsum(widths[by_position]) - widths[by_position]
        self.column[by_position] = starts + np.where(self.is_one_hot[by_position], 0, self.narrow - hot)
        self.columns = int(widths.sum()) + self.narrow - hot
        self.later = np.zeros(self.num_features, np.int64)  # by position
        np.maximum.at(self.later, self.position, self.column + widths)

    def _count_elements(self) -> None:
        """Find whose the elements of narrow columns are, and their vectors: see split_pairs_back.h."""
        narrow = np.argsort(self.column)[self.is_one_hot.sum() :]
        vectors, owner = self.padded[narrow] // LANES, self.position[narrow]
        is_band = np.bincount(self.position)[owner] > 1
        size = np.where(is_band, 1, np.minimum(vectors, 4))
        self._owner, self._size = np.repeat(owner, vectors // size), np.repeat(size, vectors // size)
        # Every feature before its owner has a use for an element.
        hot = self.num_one_hot
        self.num_elements = int(self._owner.sum()) + hot * (hot - 1) // 2
        self.num_vectors = int((self._owner * self._size).sum())

    @cached_property
    def _later(self) -> list[np.ndarray]:
        """The positions of the features that each element of a position is with."""
        positions, hot = np.arange(self.num_features), self.num_one_hot
        return [
            np.concatenate([positions[i + 1 : hot], self._owner[self._owner > i]]) for i in positions
        ]

    @cached_property
    def elements(self) -> np.ndarray:
        """How many elements of 4, 2 and 1 vectors each position has: (F, 3)."""
        positions = range(self.num_features)
        sizes = [[(self._size[self._owner > i] == n).sum() for n in (4, 2, 1)] for i in positions]
        return np.array(sizes, np.int64)

    @cached_property
    def element_start(self) -> np.ndarray:
        """How many elements the positions before each have: (F + 1,)."""
        return np.cumsum([0, *map(len, self._later)])

    @cached_property
    def element_column(self) -> np.ndarray:
        """Where each element goes in the output."""
        slots = self.order + 1
        columns = [_pair_column(slots[i], slots[later]) for i, later in enumerate(self._later)]
        return (self.base_dim + np.concatenate(columns)).astype(np.int32)

    @cached_property
    def pair_column(self) -> np.ndarray:
        """Where the products of each position with those before it go."""
        slots = self.order + 1
        columns = [_pair_column(slots[j], slots[:j]) for j in range(self.num_features)]
        return (self.base_dim + np.concatenate(columns)).astype(np.int32)

    @cached_property
    def dense_column(self) -> np.ndarray:
        """Where the product of each position and the dense vector goes: (F,)."""
        return self.base_dim + _pair_column(self.order + 1, np.zeros_like(self.order))

    def cost(self, batch: int) -> float:
        """Of a training step, in multiply-adds of a large matrix product."""
        D, W = self.base_dim, self.columns  # noqa: N806  # the letters of split.h
        hits = batch / np.bincount(self.feature)[self.feature]  # bands have about equal mass
        entries = np.where(self.is_one_hot, self.sizes, np.minimum(self.sizes, hits))
        y = np.where(self.is_one_hot, 0, entries * self.width * (W - self.later[self.position]))
        lifted = np.where(self.is_lifted, entries * self.dim, batch * self.width) * D  # or z
        products = 1.5 * W * W * D + 3 * (y + lifted).sum()
        dense = (self.is_lifted * hits).sum() * D
        elements = batch * (ELEMENT * self.num_elements + VECTOR * self.num_vectors)
        return float(PRODUCT * products + DENSE * dense + elements + START)

    def is_cheaper(self, batch: int) -> bool:
        """Whether a training step with a batch of this size costs less than in the fused form."""
        if batch not in self._is_cheaper:  # at most a few sizes, and small batches ask often
            self._is_cheaper[batch] = self.cost(batch) < self.fused_cost(batch)
        return self._is_cheaper[batch]

    def fused_cost(self, batch: int) -> float:
        """The same of the fused form."""
        D, slots = self.base_dim, self.num_features + 1  # noqa: N806
        hits = batch / np.bincount(self.feature)[self.feature]
        lifting = (2.6 * hits * self.dim + 2 * np.minimum(self.sizes, hits) * self.dim).sum() * D
        pairs = batch * (2.55 * D * slots**2 + FUSED_PAIR * slots * (slots - 1) / 2)
        return float(lifting + pairs + 16 * batch * self.num_features * D)


def _pair_column(slots: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Where dot_interaction puts the product of two slots, after the dense vector, which is slot 0."""
    high = np.maximum(slots, others)
    return high * (high - 1) // 2 + np.minimum(slots, others)


def forced() -> Form | None:
    """The form that the environment forces, if it does."""
    form = os.environ.get(SWITCH) or None
    if form not in (None, *get_args(Form)):
        raise ValueError(f"{SWITCH} must be {' or '.join(get_args(Form))}, got {form!r}")
    return cast("Form | None", form)


def form_of(split: SplitForm, batch: int) -> Form:
    """The cheaper form for a batch of this size, or the one that is forced."""
    return forced() or ("split" if split.is_cheaper(batch) else "fused")
