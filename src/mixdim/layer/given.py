"""Numbers that a user gives for weights, checked. Knows no layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def fitting(target: Tensor, values: Any, name: str) -> tuple[Tensor, Tensor]:
    """The target with the values to copy there, if they have its shape."""
    if values is None:
        raise ValueError(f"{name} must have shape {tuple(target.shape)}, got None")
    tensor = torch.as_tensor(values)
    if tensor.shape != target.shape:
        raise ValueError(f"{name} must have shape {tuple(target.shape)}, got {tuple(tensor.shape)}")
    return target, tensor


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
