"""What each width of a block costs and loses. Knows nothing about budgets.

With weighted second moments S = sum of p e e^T of a block, the best vectors of rank d (the weighted SVD)
leave the eigenvalues of S after the d-th; in a metric H, those of H^1/2 S H^1/2.
"""

from __future__ import annotations

import numpy as np
import torch

from mixdim.compression.subject import MetricRoot, Moments
from mixdim.storages.codes import SCALE_BYTES, code_bytes, num_groups
from mixdim.storages.rows import rows_cost


def width_errors(moments: Moments, root: MetricRoot | None) -> np.ndarray:
    """The least error of every width 0, 1, ... D of a block: (D + 1,).

    Width 0 is one row for all, the weighted mean: all energy but that of the mean. Width D is exact.
    """
    _, mass, first, second = moments.seen_by(root)
    energies = torch.linalg.eigvalsh(second).clamp(min=0)  # rising
    lost = energies.cumsum(0).flip(0)  # of widths 0, 1, ... D - 1, were 0 the zero vector
    errors = np.append(lost.numpy(), 0.0)
    of_mean = float(first @ first) / mass if mass else 0.0
    errors[0] = max(errors[0] - of_mean, errors[1])
    return errors


def width_bytes(size: int, width: int, itemsize: int, bits: int | None) -> np.ndarray:
    """The bytes of every width 0, 1, ... D of a block of `size` rows: (D + 1,).

    Tables and projections have `itemsize` bytes a number; with `bits`, tables are `Rows(dim, bits)` with
    projections of float32, and the row that width 0 shares has `itemsize` bytes a number.

    >>> width_bytes(1000, 4, itemsize=4, bits=None).tolist()
    [16, 4016, 8032, 12048, 16000]
    """
    dims = np.arange(width + 1)
    cost = rows_cost(np.full(width + 1, size), dims, width)
    if bits is None:
        return (cost.parameters * itemsize).astype(np.int64)
    values = size * dims
    rounded = code_bytes(values, bits) + num_groups(values, bits) * SCALE_BYTES  # type: ignore[arg-type]  # arrays too
    held = rounded + (cost.projection * torch.float32.itemsize).astype(np.int64)
    return np.where(dims > 0, held, width * itemsize)
