"""How large all gradients are together, and how they are made smaller. Knows nothing about layers."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


@torch.no_grad()
def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Do what `torch.nn.utils.clip_grad_norm_` does, for row-sparse gradients too; returns the norm.

    The norm is that of all gradients put together; if it is above `max_norm`, all are scaled down in
    place. PyTorch's own fails on row-sparse gradients, and so does Lightning's `gradient_clip_val`: call
    this in `configure_gradient_clipping` there.

    >>> table = torch.nn.Embedding(1000, 4, sparse=True)
    >>> table(torch.tensor([3, 7, 3])).sum().backward()
    >>> round(clip_grad_norm_(table.parameters(), max_norm=1.0).item(), 4)  # 4 ones and 4 twos
    4.4721
    >>> round(table.weight.grad.coalesce().values().norm().item(), 4)
    1.0
    """
    parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    gradients = []
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse and not parameter.grad.is_coalesced():
            parameter.grad = parameter.grad.coalesce()  # a row that is there twice counts as their sum
        gradients.append(parameter.grad._values() if parameter.grad.is_sparse else parameter.grad)
    total = torch.nn.utils.get_total_norm(gradients, norm_type, error_if_nonfinite)
    scale = (max_norm / (total + 1e-6)).clamp(max=1.0)  # as PyTorch's does
    for gradient in gradients:
        gradient.mul_(scale.to(gradient.device))
    return total
