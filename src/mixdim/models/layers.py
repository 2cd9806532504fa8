"""A sequence of layers that the kernels compute when they can. Knows nothing about first weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from mixdim import kernels
from mixdim.kernels.mlp import LinearLayer, kernel_layers

# Below, packing weights and finding out what to do cost more than they save.
LEAST_BATCH, LEAST_PRODUCTS = 512, 2**25
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Layers(nn.Sequential):
    """An nn.Sequential that the kernels compute, if they can: linear layers with ReLU or LeakyReLU."""

    def forward(self, input: Tensor) -> Tensor:
        """Return what the modules return, one after the other: (batch, inputs) -> (batch, outputs)."""
        layers = _linear_layers(self)
        if layers is not None and _kernels_take(input, layers):
            return kernel_layers(input, layers)
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


def _kernels_take(x: Tensor, layers: Sequence[LinearLayer]) -> bool:
    """Whether the kernels can compute these layers, and may, and it pays."""
    if torch.compiler.is_compiling() or kernels.exporting() or not kernels.available():
        return False
    if x.dim() != 2 or len(x) < LEAST_BATCH or _something_else_is_computed():
        return False
    if len(x) * sum(layer.weight.numel() for layer in layers) < LEAST_PRODUCTS:
        return False
    width = x.shape[1]
    for weight, bias, _ in layers:
        if weight.shape[1] != width:
            return False  # and plain PyTorch says what is wrong
        width = weight.shape[0]
        if not _is_simple(weight) or not (bias is None or _is_simple(bias)):
            return False
    return _is_simple(x, contiguous=False)


def _is_simple(tensor: Tensor, *, contiguous: bool = True) -> bool:
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.dtype is torch.float32
        and tensor.is_cpu
        and (not contiguous or tensor.is_contiguous())
    )


def _something_else_is_computed() -> bool:
    """Whether PyTorch would round to fewer bits, call somebody, or differentiate in another way."""
    return (
        torch.is_autocast_enabled("cpu")
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or torch.nn.modules.module._has_any_global_hook()
    )
