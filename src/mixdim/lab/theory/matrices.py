"""Block matrices and what the theory assumes of them. Knows nothing about sampling or popularity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mixdim.lab.theory.spectra import checked_spectrum, power_law_spectrum
from mixdim.lab.theory.structure import checked_matrix, checked_ranks, checked_sizes, split_blocks

RANK_TOLERANCE = 1e-10  # a singular value below this share of the matrix's largest is rounding


def random_block_matrix(
    row_sizes: Any,
    col_sizes: Any,
    spectra: Sequence[Sequence[Any]],
    *,
    generator: np.random.Generator,
) -> np.ndarray:
    """Draw a matrix whose block (i, j) has singular values `spectra[i][j]` and random singular vectors.

    M^(ij) = U diag(spectra[i][j]) V^T with U and V uniform among matrices of orthonormal columns. The
    rank of a block is the length of its spectrum; for ranks alone, take `flat_spectra(block_ranks)`.

    >>> generator = np.random.default_rng(0)
    >>> matrix = random_block_matrix([4, 2], [5], [[[3.0, 1.0]], [[2.0]]], generator=generator)
    >>> matrix.shape, block_ranks(matrix, [4, 2], [5]).tolist()
    ((6, 5), [[2], [1]])
    """
    rows, columns = checked_sizes(row_sizes, "row_sizes"), checked_sizes(col_sizes, "col_sizes")
    ranks = [[len(spectrum) for spectrum in line] for line in spectra]
    checked_ranks(ranks, rows, columns)

    def block(i: int, j: int) -> np.ndarray:
        if not ranks[i][j]:
            return np.zeros((rows[i], columns[j]))
        values = checked_spectrum(spectra[i][j], f"spectra[{i}][{j}]")
        left = _orthonormal(rows[i], len(values), generator)
        right = _orthonormal(columns[j], len(values), generator)
        return (left * values) @ right.T

    return np.block([[block(i, j) for j in range(len(columns))] for i in range(len(rows))])


def flat_spectra(block_ranks: Any) -> list[list[np.ndarray]]:
    """Return spectra of ones, of the given ranks: every block is as well conditioned as can be."""
    return [[power_law_spectrum(int(rank)) for rank in line] for line in np.asarray(block_ranks)]


def _orthonormal(rows: int, columns: int, generator: np.random.Generator) -> np.ndarray:
    gaussian = generator.standard_normal((rows, columns))
    q, r = np.linalg.qr(gaussian)
    return q * np.sign(np.diag(r))  # without the signs, Q would not be uniformly distributed


def block_ranks(matrix: Any, row_sizes: Any, col_sizes: Any) -> np.ndarray:
    """Return the rank r_ij of every block: (row blocks, column blocks)."""
    matrix = checked_matrix(matrix, "matrix")
    blocks = split_blocks(matrix, row_sizes, col_sizes)
    floor = _rounding_floor(matrix)
    return np.array([[_rank(block, floor) for block in line] for line in blocks])


def is_rank_additive(matrix: Any, row_sizes: Any, col_sizes: Any) -> bool:
    """Whether rank(M) is the sum of the blocks' ranks: the definition of rank additive (App. C).

    >>> is_rank_additive(np.eye(2), [1, 1], [2]), is_rank_additive(np.ones((2, 2)), [1, 1], [2])
    (True, False)
    """
    matrix = checked_matrix(matrix, "matrix")
    total = block_ranks(matrix, row_sizes, col_sizes).sum()
    return bool(_rank(matrix, _rounding_floor(matrix)) == total)


def ranges_are_independent(matrix: Any, row_sizes: Any, col_sizes: Any) -> bool:
    """Whether column spaces along block rows, and row spaces along block columns, are independent.

    Independent: none meets the sum of the others outside 0, that is, the rank of the block row (block
    column) is the sum of its blocks' ranks. This is equivalent to rank additivity. The paper's
    proposition (App. C) asks only that any *two* of them meet at 0. With three or more blocks in a
    line that is not enough: in [e1, e2, e1 + e2] any two columns are independent, and the rank is 2.

    >>> ranges_are_independent([[1, 0, 1], [0, 1, 1]], [2], [1, 1, 1])
    False
    """
    matrix = checked_matrix(matrix, "matrix")
    ranks = block_ranks(matrix, row_sizes, col_sizes)
    whole_rows, whole_cols = [matrix.shape[0]], [matrix.shape[1]]
    row_bands = [line[0] for line in split_blocks(matrix, row_sizes, whole_cols)]
    col_bands = split_blocks(matrix, whole_rows, col_sizes)[0]
    floor = _rounding_floor(matrix)
    return [_rank(band, floor) for band in row_bands] == ranks.sum(axis=1).tolist() and [
        _rank(band, floor) for band in col_bands
    ] == ranks.sum(axis=0).tolist()


def incoherence(matrix: Any) -> float:
    """Return the smallest mu for which the n x m matrix of rank r is mu-incoherent (paper, App. C).

    With M = U S V^T: |U_i|^2 <= mu r / n for all rows and |V_j|^2 <= mu r / m for all columns. It lies
    between 1 (all rows and columns alike) and max(n, m) / r (an entry of its own). The paper prints
    mu r / n for V, too; a flat matrix of 8 x 2 would then have mu = 4.

    >>> incoherence(np.ones((8, 2))), incoherence(np.eye(8)[:, :2])
    (1.0, 4.0)
    """
    matrix = checked_matrix(matrix, "matrix")
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    rank = _rank_of_spectrum(values, _rounding_floor(matrix))
    if rank == 0:
        raise ValueError("matrix must not be all 0: its incoherence is not defined")
    row_leverage = (left[:, :rank] ** 2).sum(axis=1).max() * matrix.shape[0] / rank
    col_leverage = (right[:rank] ** 2).sum(axis=0).max() * matrix.shape[1] / rank
    return round(float(max(row_leverage, col_leverage, 1.0)), 12)


def condition_number(matrix: Any) -> float:
    """Return the largest singular value over the smallest one above 0 (kappa in Sun & Luo, 2016).

    >>> condition_number([[4, 0, 0], [0, 2, 0]])
    2.0
    """
    matrix = checked_matrix(matrix, "matrix")
    values = np.linalg.svd(matrix, compute_uv=False)
    rank = _rank_of_spectrum(values, _rounding_floor(matrix))
    if rank == 0:
        raise ValueError("matrix must not be all 0: its condition number is not defined")
    return float(values[0] / values[rank - 1])


def _rounding_floor(matrix: np.ndarray) -> float:
    return RANK_TOLERANCE * float(np.linalg.norm(matrix, 2))


def _rank(block: np.ndarray, floor: float) -> int:
    return _rank_of_spectrum(np.linalg.svd(block, compute_uv=False), floor)


def _rank_of_spectrum(values: np.ndarray, floor: float) -> int:
    return int((values > floor).sum())
