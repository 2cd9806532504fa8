"""Factors of blocks, put together into mixed tables and projections. Knows nothing about completion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mixdim.lab.theory.factorization import Factors


class MixedSide(NamedTuple):
    """One side of a mixed factorisation: `tables[i] @ projections[i]` are the vectors of block i."""

    tables: list[np.ndarray]  # (rows of the block, width of the block)
    projections: list[np.ndarray]  # (width of the block, base_dim), of zeros and ones

    def dense(self) -> np.ndarray:
        """The vectors of all blocks, one below the other: (rows, base_dim)."""
        return np.concatenate([t @ p for t, p in zip(self.tables, self.projections, strict=True)])


def assemble(factors: Sequence[Sequence[Factors]]) -> tuple[MixedSide, MixedSide]:
    """Put the factors of all blocks together: the second half of Alg. 4 (paper, App. C).

    Returns the row side (W and P_W) and the column side (V and P_V), with base_dim the sum of all
    ranks: `rows.dense() @ columns.dense().T` is the matrix of the blocks `left @ right.T`. Block (i, j)
    owns the dimensions from s_ij = sum of the ranks before it in row-major order, on both sides. (The
    paper's s_ij for P_V is misprinted; its example of four blocks follows this rule.)

    >>> ones = Factors(np.ones((2, 1)), np.ones((3, 1)))
    >>> rows, columns = assemble([[ones], [ones]])
    >>> [projection.tolist() for projection in rows.projections]
    [[[1.0, 0.0]], [[0.0, 1.0]]]
    >>> (rows.dense() @ columns.dense().T).shape
    (4, 3)
    """
    ranks = np.array([[block.left.shape[1] for block in line] for line in factors])
    if ranks.ndim != 2 or 0 in ranks.shape:
        raise ValueError(
            "factors must be a rectangle of blocks: factors[i][j] for each row and column block"
        )
    starts = (np.cumsum(ranks) - ranks.ravel()).reshape(ranks.shape)
    identity = np.eye(ranks.sum())

    def side(tables: Sequence[Sequence[np.ndarray]], starts: np.ndarray) -> MixedSide:
        owned = [
            np.concatenate(
                [np.arange(s, s + table.shape[1]) for table, s in zip(line, own, strict=True)]
            )
            for line, own in zip(tables, starts, strict=True)
        ]
        return MixedSide([np.hstack(line) for line in tables], [identity[dims] for dims in owned])

    lefts = [[block.left for block in line] for line in factors]
    rights = [[block.right for block in column] for column in zip(*factors, strict=True)]
    return side(lefts, starts), side(rights, starts.T)
