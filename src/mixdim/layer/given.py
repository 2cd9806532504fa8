"""Numbers that a user gives for weights, checked. Knows no layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def tensor_of_shape(values: Any, shape: tuple[int, ...], name: str) -> Tensor:
    """Values as a tensor, if they have a shape."""
    found = None if values is None else torch.as_tensor(values)
    if found is None or found.shape != shape:
        got = None if found is None else tuple(found.shape)
        raise ValueError(f"{name} must have shape {tuple(shape)}, got {got}")
    return found


def as_array(values: Any) -> np.ndarray:
    """Numbers in a tensor, an array or a list, as an array."""
    return values.numpy(force=True) if isinstance(values, Tensor) else np.asarray(values)


def finite_numbers(values: Any, shape: tuple[int, ...], name: str) -> Tensor:
    """Finite float64 numbers of a shape."""
    array = as_array(values)
    if array.shape != shape or array.dtype.kind not in "biuf":
        raise ValueError(f"{name} must be numbers of shape {shape}, got {array.dtype} {array.shape}")
    tensor = torch.tensor(array, dtype=torch.float64)
    if not bool(tensor.isfinite().all()):
        raise ValueError(f"{name} must be finite")
    return tensor


def weights_of_rows(values: Any, rows: int, name: str) -> Tensor:
    """How much each row counts, in float64: finite numbers, not negative."""
    weights = finite_numbers(values, (rows,), name)
    if bool((weights < 0).any()):
        raise ValueError(f"{name} must not be negative")
    return weights
