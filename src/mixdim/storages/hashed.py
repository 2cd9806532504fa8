"""Rows of a block share a few stored rows, chosen by a hash: less than one parameter a row.

Knows nothing about other storages.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mixdim.arguments import whole_number
from mixdim.storages.storage import Storage
from mixdim.storages.table import Slots, StoredBlock, Table, main_directions

MASK = 2**32 - 1
FIT_STEPS, FIT_TOLERANCE = 200, 1e-10


def hash_rows(rows: Tensor, hashes: int) -> Tensor:
    """Hash the ranks of rows in `hashes` ways, each to [0, 2^32): (...) -> (..., hashes).

    Hash k of a rank is the finaliser of MurmurHash3 (32 bits) of rank xor (rank >> 32) xor
    (k * 0x9E3779B9), all modulo 2^32: the same on every machine, and in every version.

    >>> hash_rows(torch.tensor([0, 1, 2]), hashes=2).tolist()
    [[0, 2462723854], [1364076727, 920564995], [821347078, 3024231355]]
    """
    seeds = torch.arange(hashes, device=rows.device) * 0x9E3779B9
    mixed = ((rows ^ (rows >> 32))[..., None] ^ seeds) & MASK
    # Products beyond 2^63 wrap around, and leave the lower 32 bits as they must be.
    mixed = ((mixed ^ (mixed >> 16)) * 0x85EBCA6B) & MASK
    mixed = ((mixed ^ (mixed >> 13)) * 0xC2B2AE35) & MASK
    return mixed ^ (mixed >> 16)


class HashedTable(Table):
    """The shared rows of all blocks of one width and number of hashes, one below the other."""

    @property
    def hashes(self) -> int:
        """How many shared rows are added up for a row."""
        storage = self.blocks[0].storage
        assert isinstance(storage, Hashed)
        return storage.hashes

    @staticmethod
    def slot_numbers(block: StoredBlock) -> tuple[int, ...]:
        """The first of a block's shared rows, and how many there are."""
        return (block.first_row, block.storage.stored_rows(block.size))

    def take(self, rows: Tensor, slots: Slots) -> Tensor:
        """Add up the shared rows of each row: -> (..., dim)."""
        buckets = hash_rows(rows, self.hashes) % self.of_slots(slots, 1)[..., None]
        table_rows = buckets + self.of_slots(slots, 0)[..., None]  # (..., hashes)
        return F.embedding(table_rows, self.tensors["table"], sparse=self.sparse).sum(-2)

    def fit_dense(self, block: StoredBlock, matrix: Tensor, row_weights: Tensor) -> None:
        """Set a block's shared rows by weighted least squares, and keep the result's main directions.

        With A (size, buckets) saying how often a row adds each shared row, these are the rows X and the
        directions V that minimise |sqrt(weights) (matrix - A X V^T)|^2: X = B V, where B is the solution
        without V, and V the main directions of A B (reduced rank regression).
        """
        parts = self.parts(block)
        ranks = torch.arange(block.size, device=matrix.device)
        buckets = hash_rows(ranks, self.hashes) % len(parts["table"])  # (size, hashes)
        mean = (row_weights @ matrix) / row_weights.sum()
        all_mean = mean.expand(len(parts["table"]), -1) / self.hashes
        at_most = _distance(mean, matrix, row_weights)
        # Should least squares not have converged, the mean row is there to fall back on.
        for shared in (_least_squares(buckets, matrix, row_weights, start=all_mean), all_mean):
            fitted, lifted = shared, None
            if "projection" in parts:
                lifted = main_directions(shared[buckets].sum(1), row_weights, block.storage.dim)
                fitted = shared @ lifted
            vectors = fitted[buckets].sum(1)
            if (
                _distance(vectors if lifted is None else vectors @ lifted.t(), matrix, row_weights)
                <= at_most
            ):
                break
        parts["table"].copy_(fitted)
        if lifted is not None:
            parts["projection"].copy_(lifted.t())


@dataclass(frozen=True)
class Hashed(Storage):
    """Rows share `buckets` rows of width `dim`: each is the sum of `hashes` of them, lifted as usual.

    Which ones, a fixed hash of the row's rank says (`hash_rows`). `Hashed(dim, buckets=1, hashes=1)` is
    the practitioner's "all rare ids share one row".

    >>> Hashed(4, buckets=100).cost(size=10_000, base_dim=16)
    Cost(table=400, projection=64, held_bytes=0)
    """

    buckets: int
    hashes: int = 2

    kind = "hashed"
    Table = HashedTable

    def __post_init__(self) -> None:
        super().__post_init__()
        if whole_number(self.buckets, "buckets") > MASK:
            raise ValueError(f"buckets must be below 2^32, got {self.buckets}")
        whole_number(self.hashes, "hashes")

    @property
    def group(self) -> str:
        """Blocks of one width and number of hashes share a table."""
        return f"hashed{self.hashes}_{self.dim}"

    def stored_rows(self, size: int) -> int:
        """The shared rows, however many rows share them."""
        return self.buckets

    def describe(self, size: int) -> str:
        """Such as "4 hashed, 100 x 2"."""
        return f"{self.dim} hashed, {self.buckets:,} x {self.hashes}"


def _least_squares(buckets: Tensor, matrix: Tensor, row_weights: Tensor, *, start: Tensor) -> Tensor:
    """Minimise the weighted distance of A X to a matrix over X, by conjugate gradients from `start`."""

    def normal(x: Tensor) -> Tensor:  # A^T W A x
        return spread(x[buckets].sum(1))

    def spread(rows: Tensor) -> Tensor:  # A^T W rows
        weighted = rows * row_weights[:, None]
        into = torch.zeros_like(start)
        for hashed in buckets.unbind(1):
            into.index_add_(0, hashed, weighted)
        return into

    x = start.clone()
    residual = spread(matrix) - normal(x)
    direction, size = residual.clone(), (residual**2).sum()
    enough = FIT_TOLERANCE**2 * size
    for _ in range(FIT_STEPS):
        if size <= enough:
            break
        ahead = normal(direction)
        step = size / (direction * ahead).sum()
        x += step * direction
        residual -= step * ahead
        before, size = size, (residual**2).sum()
        direction = residual + (size / before) * direction
    return x


def _distance(fitted: Tensor, matrix: Tensor, row_weights: Tensor) -> float:
    return float((row_weights @ ((fitted - matrix) ** 2)).sum())
