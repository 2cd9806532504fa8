"""The optimizer's update as one call of the kernels for all parameters. It works in place."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from mixdim.kernels.library import call, outside_of_graphs

# The struct Update of amsgrad.h.
_PLACES = ("rows", "gradient", "count", "width", "limit", "weight", "mean", "square", "largest")
_NUMBERS = ("step_size", "rest1", "beta2", "correction2_sqrt", "eps", "kept")
UPDATE = np.dtype([(n, np.int64) for n in _PLACES] + [(n, np.float64) for n in _NUMBERS])


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
    weight_decay: float = 0.0,
) -> tuple[float, ...]:
    """Describe the step of one parameter, or of its `rows`, to the kernel."""
    beta1, beta2 = betas
    return (
        0 if rows is None else rows.data_ptr(),
        gradient.data_ptr(),
        gradient.numel() if rows is None else rows.numel(),
        1 if rows is None else math.prod(weight.shape[1:]),
        weight.numel() if rows is None else len(weight),
        weight.data_ptr(),
        *(moment.data_ptr() for moment in moments),
        lr / (1 - beta1**step),
        1 - beta1,
        beta2,
        math.sqrt(1 - beta2**step),
        eps,
        1 - lr * weight_decay,
    )


@outside_of_graphs
def amsgrad(updates: list[tuple[float, ...]]) -> int:
    """Make all updates and return -1, or having changed nothing, the number of one that cannot be made.

    That is n where the gradient of update n is not finite, and -2 - n where its rows are not rows of the
    parameter, ascending, each once.
    """
    return call("mixdim_amsgrad", np.array(updates, UPDATE), len(updates))
