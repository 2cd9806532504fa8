"""Linear layers and activations by the kernels, with their gradients. Knows nothing about modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from mixdim.kernels.library import address, call, outside_of_graphs
from mixdim.kernels.structs import FINE, require_shape

# Below, packing weights and finding out what to do cost more than they save.
LEAST_BATCH, LEAST_PRODUCTS = 512, 2**25


class LinearLayer(NamedTuple):
    """A linear layer and the activation after it: x where x > 0, slope * x elsewhere."""

    weight: Tensor  # (outputs, inputs)
    bias: Tensor | None  # (outputs,)
    slope: float  # 0 for ReLU, 1 for no activation


def plain_layers(x: Tensor, layers: Sequence[LinearLayer]) -> Tensor:
    """(batch, inputs of the first) -> (batch, outputs of the last): the specification."""
    for weight, bias, slope in layers:
        x = F.linear(x, weight, bias)
        x = F.relu(x) if slope == 0 else x if slope == 1 else F.leaky_relu(x, slope)
    return x


@outside_of_graphs
def kernel_layers(x: Tensor, layers: Sequence[LinearLayer]) -> Tensor:
    """The same by the kernels. Eager code only."""
    parameters = [tensor for layer in layers for tensor in layer[:2]]
    tensors = [tensor for tensor in (x, *parameters) if tensor is not None]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        slopes = [layer.slope for layer in layers]
        return _KernelLayers.apply(x, slopes, *parameters)  # type: ignore[no-untyped-call]  # torch has no type for it
    out = torch.empty(len(x), len(layers[-1].weight))
    _Structs(x, layers, [None] * (len(layers) - 1) + [out]).call("mixdim_mlp")
    return out


class _Structs:
    """The structs of mlp.h; keeps alive what they point to."""

    def __init__(
        self, x: Tensor, layers: Sequence[LinearLayer], values: Sequence[Tensor | None]
    ) -> None:
        x = x.contiguous()
        batch, inputs = x.shape
        require_shape(x, "the input", (batch, inputs))
        rows = []
        for (weight, bias, _), value in zip(layers, values, strict=True):
            outputs = len(weight)
            require_shape(weight, "weight", (outputs, inputs))
            if bias is not None:
                require_shape(bias, "bias", (outputs,))
            if value is not None:
                require_shape(value, "the values of a layer", (batch, outputs))
            rows.append([address(weight), address(bias), address(value), inputs, outputs])
            inputs = outputs
        self.kept = (x, layers, values)
        self.layers = np.array(rows)
        self.slopes = np.array([layer.slope for layer in layers], np.float32)
        self.mlp = np.array([address(x), address(self.layers), address(self.slopes), batch, len(rows)])

    def call(self, name: str, *arguments: np.ndarray | Tensor | None) -> None:
        if call(name, self.mlp, *arguments) != FINE:
            raise MemoryError(f"no memory for the gradients of layers with a batch of {self.mlp[3]:,}")


class _KernelLayers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, slopes: list[float], *parameters: Tensor | None) -> Tensor:
        layers = _layers(slopes, parameters)
        values = [torch.empty(len(x), len(layer.weight)) for layer in layers]
        _Structs(x, layers, values).call("mixdim_mlp")
        ctx.slopes = slopes
        ctx.save_for_backward(x, *parameters, *values)
        return values[-1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        x, *kept = ctx.saved_tensors
        num_parameters = 2 * len(ctx.slopes)
        parameters, values = kept[:num_parameters], kept[num_parameters:]
        needed = (ctx.needs_input_grad[0], *ctx.needs_input_grad[2:])
        inputs = [t if wanted else None for t, wanted in zip((x, *parameters), needed, strict=True)]
        layers = _layers(ctx.slopes, parameters)
        if torch.is_grad_enabled():  # somebody wants derivatives of these derivatives
            found = _plain_gradients(gradients[0], x, layers, inputs)
        else:
            found = _kernel_gradients(gradients[0], x, layers, values, inputs)
        return found[0], None, *found[1:]


def _layers(slopes: Sequence[float], parameters: Sequence[Tensor | None]) -> list[LinearLayer]:
    layers = []
    for weight, bias, slope in zip(parameters[::2], parameters[1::2], slopes, strict=True):
        assert weight is not None
        layers.append(LinearLayer(weight, bias, slope))
    return layers


@outside_of_graphs
def _kernel_gradients(
    gradient: Tensor,
    x: Tensor,
    layers: Sequence[LinearLayer],
    values: Sequence[Tensor],
    inputs: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """The gradients of the inputs that are given: x, then the weight and the bias of each layer."""
    gradient = gradient.contiguous()
    require_shape(gradient, "the gradient", tuple(values[-1].shape))
    found = [None if t is None else torch.empty(t.shape) for t in inputs]
    to = np.array([address(tensor) for tensor in found[1:]])
    _Structs(x, layers, values).call("mixdim_mlp_back", gradient, found[0], to)
    return found


def _plain_gradients(
    gradient: Tensor, x: Tensor, layers: Sequence[LinearLayer], inputs: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """The same as operations that can be differentiated again."""
    given = [tensor for tensor in inputs if tensor is not None]
    found = iter(torch.autograd.grad(plain_layers(x, layers), given, gradient, create_graph=True))
    return [None if tensor is None else next(found) for tensor in inputs]


def is_large(x: Tensor) -> bool:
    """Whether an input is a batch for which packing weights may pay."""
    return x.dim() == 2 and len(x) >= LEAST_BATCH


def is_simple_mlp(x: Tensor, layers: Sequence[LinearLayer]) -> bool:
    """Whether the kernels can compute these layers of a large batch, and it pays."""
    if _something_else_is_computed():
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
        type(tensor) in (Tensor, Parameter)
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
