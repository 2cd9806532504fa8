"""The optimizer's update as one call of the kernels for all parameters. It works in place."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mixdim.kernels.library import call

# The struct Update of amsgrad.h.
UPDATE = np.dtype(
    [
        (name, np.int64)
        for name in ("rows", "gradient", "count", "width", "weight", "mean", "square", "largest")
    ]
    + [(name, np.float64) for name in ("step_size", "rest1", "beta2", "correction2_sqrt", "eps")]
)


def takes(*tensors: Tensor) -> bool:
    """Whether the kernel can update these tensors."""
    return all(t.dtype is torch.float32 and t.is_cpu and t.is_contiguous() for t in tensors)


def update_struct(
    weight: Tensor,
    rows: Tensor | None,
    gradient: Tensor,
    moments: Sequence[Tensor],
    *,
    step: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
) -> tuple[float, ...]:
    """Describe the step of one parameter, or of its `rows`, to the kernel."""
    beta1, beta2 = betas
    return (
        0 if rows is None else rows.data_ptr(),
        gradient.data_ptr(),
        gradient.numel() if rows is None else rows.numel(),
        1 if rows is None else math.prod(weight.shape[1:]),
        weight.data_ptr(),
        *(moment.data_ptr() for moment in moments),
        lr / (1 - beta1**step),
        1 - beta1,
        beta2,
        math.sqrt(1 - beta2**step),
        eps,
    )


def amsgrad(updates: list[tuple[float, ...]]) -> int:
    """Make all updates; return -1, or the first whose gradient is not finite, having changed nothing."""
    return call("mixdim_amsgrad", np.array(updates, UPDATE), len(updates))
