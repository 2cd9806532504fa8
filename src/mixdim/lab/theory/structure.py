"""Which rows and columns of a matrix are a block. Knows nothing about what is in the blocks.

The paper's letters: row block i has n_i rows, column block j has m_j columns, M^(ij) is where they meet.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mixdim._util.arguments import whole_number

SUM_TOLERANCE = 1e-9  # how far block_probs may sum from 1: rounding, not a mistake


def checked_sizes(sizes: Any, name: str) -> np.ndarray:
    """Return the sizes of the blocks along one side, all at least 1.

    >>> checked_sizes([3, 0], "row_sizes")
    Traceback (most recent call last):
    ValueError: row_sizes[1] must be at least 1, got 0
    """
    values = np.asarray(sizes)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"{name} must be a non-empty list of block sizes, got shape {values.shape}")
    return np.array([whole_number(size, f"{name}[{i}]") for i, size in enumerate(values)])


def checked_matrix(values: Any, name: str, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """Return `values` as a finite float64 matrix, of the given shape if any."""
    matrix = np.asarray(values)
    if matrix.dtype.kind not in "iuf":
        raise TypeError(f"{name} must be numbers, got {matrix.dtype} values")
    matrix = matrix.astype(np.float64, copy=False)
    if shape is not None and matrix.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {matrix.shape}")
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(f"{name} must be a matrix with rows and columns, got shape {matrix.shape}")
    wrong = ~np.isfinite(matrix)
    if wrong.any():
        row, column = np.argwhere(wrong)[0].tolist()
        raise ValueError(f"{name} must be finite, got {matrix[row, column]} at ({row}, {column})")
    return matrix


def checked_probs(block_probs: Any, row_sizes: Any, col_sizes: Any) -> np.ndarray:
    """Return the probability of each block (the paper's Pi): (row blocks, column blocks), summing to 1.

    >>> checked_probs([[0.5], [0.4]], [3, 2], [4])
    Traceback (most recent call last):
    ValueError: block_probs must sum to 1, got 0.9
    """
    rows, columns = checked_sizes(row_sizes, "row_sizes"), checked_sizes(col_sizes, "col_sizes")
    probs = checked_matrix(block_probs, "block_probs", (len(rows), len(columns)))
    if (probs < 0).any():
        i, j = np.argwhere(probs < 0)[0].tolist()
        raise ValueError(f"block_probs must not be negative, got {probs[i, j]} at ({i}, {j})")
    if abs(probs.sum() - 1) > SUM_TOLERANCE:
        raise ValueError(f"block_probs must sum to 1, got {probs.sum():.12g}")
    return probs


def checked_ranks(block_ranks: Any, row_sizes: Any, col_sizes: Any) -> np.ndarray:
    """Return the rank of each block, between 0 and the smaller side of the block.

    >>> checked_ranks([[4]], [3], [5])
    Traceback (most recent call last):
    ValueError: block_ranks[0, 0] must be from 0 to 3, the smaller side of a 3 x 5 block, got 4
    """
    rows, columns = checked_sizes(row_sizes, "row_sizes"), checked_sizes(col_sizes, "col_sizes")
    ranks = np.asarray(block_ranks)
    if ranks.shape != (len(rows), len(columns)):
        raise ValueError(f"block_ranks must have shape {(len(rows), len(columns))}, got {ranks.shape}")
    if ranks.dtype.kind not in "iu":
        raise TypeError(f"block_ranks must be whole numbers, got {ranks.dtype} values")
    most = np.minimum.outer(rows, columns)
    for i, j in np.argwhere((ranks < 0) | (ranks > most))[:1]:
        raise ValueError(
            f"block_ranks[{i}, {j}] must be from 0 to {most[i, j]}, the smaller side of a "
            f"{rows[i]} x {columns[j]} block, got {ranks[i, j]}"
        )
    return ranks.astype(np.int64)


def split_blocks(matrix: np.ndarray, row_sizes: Any, col_sizes: Any) -> list[list[np.ndarray]]:
    """Cut a matrix into its blocks, as views: `split_blocks(...)[i][j]` is M^(ij) (paper, Sec. 4).

    `np.block` puts them together again.

    >>> split_blocks(np.arange(6).reshape(2, 3), [2], [1, 2])[0][1].tolist()
    [[1, 2], [4, 5]]
    """
    rows, columns = checked_sizes(row_sizes, "row_sizes"), checked_sizes(col_sizes, "col_sizes")
    if matrix.shape != (rows.sum(), columns.sum()):
        raise ValueError(
            f"a matrix of these blocks must have shape {(int(rows.sum()), int(columns.sum()))}, "
            f"got {matrix.shape}"
        )
    bands = np.split(matrix, np.cumsum(rows)[:-1], axis=0)
    return [np.split(band, np.cumsum(columns)[:-1], axis=1) for band in bands]


def block_areas(row_sizes: Any, col_sizes: Any) -> np.ndarray:
    """Return the entries n_i m_j of each block: (row blocks, column blocks)."""
    rows, columns = checked_sizes(row_sizes, "row_sizes"), checked_sizes(col_sizes, "col_sizes")
    return np.outer(rows, columns)
