"""A sequence of layers that the kernels compute when they can. Knows nothing about first weights."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from mixdim.kernels.backend import MlpCall, dispatch
from mixdim.kernels.mlp import LinearLayer

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Layers(nn.Sequential):
    """An nn.Sequential that the kernels compute, if they can: linear layers with ReLU or LeakyReLU."""

    def forward(self, input: Tensor) -> Tensor:
        """Return what the modules return, one after the other: (batch, inputs) -> (batch, outputs)."""
        found = dispatch("mlp", MlpCall(input, lambda: _linear_layers(self)))
        if found is not None:
            return found
        return super().forward(input)  # type: ignore[no-untyped-call]  # torch has no type for it

    def _get_name(self) -> str:
        return "Sequential"


def _linear_layers(modules: Iterable[nn.Module]) -> list[LinearLayer] | None:
    """Linear layers and what is activated after them; None if there is anything else, such as a hook."""
    layers: list[LinearLayer] = []
    for module in modules:
        if any(getattr(module, hooks) for hooks in _HOOKS):
            return None
        if type(module) is nn.Linear:
            layers.append(LinearLayer(module.weight, module.bias, slope=1.0))
            continue
        slope = _slope(module)
        if not layers or layers[-1].slope != 1 or slope is None:
            return None
        layers[-1] = layers[-1]._replace(slope=slope)
    return layers or None


def _slope(activation: nn.Module) -> float | None:
    """What an activation multiplies numbers below zero with, if that is all it does."""
    if type(activation) is nn.ReLU:
        return 0.0
    # The kernels see the sign of what was activated in the result: not with a negative slope.
    if type(activation) is nn.LeakyReLU and activation.negative_slope > 0:
        return activation.negative_slope
    return None
