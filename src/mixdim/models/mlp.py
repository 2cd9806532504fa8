"""Multilayer perceptrons and how their weights are drawn. Knows nothing about embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from mixdim._util.arguments import whole_number
from mixdim.models.layers import Layers
from mixdim.storages.init import Init, check_init

# Uniform in [-b, b] with b = sqrt(6 / (fan_in + fan_out)), or sqrt(6 / fan) for He: as for the tables.
_DRAW: dict[Init, Callable[..., Tensor]] = {
    "xavier": nn.init.xavier_uniform_,
    "he_fan_in": partial(nn.init.kaiming_uniform_, mode="fan_in", nonlinearity="relu"),
    "he_fan_out": partial(nn.init.kaiming_uniform_, mode="fan_out", nonlinearity="relu"),
}


def mlp(
    widths: Sequence[int],
    *,
    activation: Callable[[], nn.Module] = nn.ReLU,
    init: Init = "xavier",
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """Linear layers with an activation between each two: (batch, widths[0]) -> (batch, widths[-1]).

    Nothing follows the last layer; `mlp(...).append(nn.ReLU())` activates it too. Weights are drawn
    uniformly, as `init` says, from `generator`; biases start at zero.

    >>> mlp([13, 8, 1], activation=nn.LeakyReLU)
    Sequential(
      (0): Linear(in_features=13, out_features=8, bias=True)
      (1): LeakyReLU(negative_slope=0.01)
      (2): Linear(in_features=8, out_features=1, bias=True)
    )
    """
    if len(widths) < 2:
        raise ValueError(f"widths must have an input and an output at least, got {tuple(widths)}")
    for width in widths:
        whole_number(width, f"each of the widths {tuple(widths)}")
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        # nn.Linear would draw weights of its own first, and move PyTorch's global generator.
        linear = skip_init(nn.Linear, fan_in, fan_out)
        draw_weights(linear.weight, init=init, generator=generator)
        nn.init.zeros_(linear.bias)
        layers += [linear, activation()]
    return Layers(*layers[:-1])


def draw_weights(weight: Tensor, *, init: Init, generator: torch.Generator | None) -> None:
    """Draw a matrix (fan_out, fan_in) in place."""
    check_init(init)
    _DRAW[init](weight, generator=generator)
