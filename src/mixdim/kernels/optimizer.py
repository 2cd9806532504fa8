"""The optimizer's update as a call of the kernels. It changes its arguments in place."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from mixdim.kernels.library import call


def takes(*tensors: Tensor) -> bool:
    """Whether the kernel can update these tensors."""
    return all(
        t.dtype == torch.float32 and t.device.type == "cpu" and t.is_contiguous() for t in tensors
    )


def amsgrad(
    weight: Tensor,
    rows: Tensor | None,
    gradient: Tensor,
    moments: tuple[Tensor, Tensor, Tensor],
    *,
    step: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
) -> None:
    """Update all of `weight`, or its `rows`, and its mean, square and largest square."""
    step_size = lr / (1 - betas[0] ** step)
    rows = None if rows is None else rows.contiguous()
    settings = np.array([step_size, *betas, math.sqrt(1 - betas[1] ** step), eps])
    count = gradient.numel() if rows is None else len(rows)
    width = 1 if rows is None else math.prod(weight.shape[1:])
    call("mixdim_amsgrad", settings, rows, gradient, count, width, weight, *moments)
