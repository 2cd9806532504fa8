"""Multilayer perceptrons: first weights, layers that the kernels compute, the same as an ONNX graph.

Knows nothing about embeddings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from mixdim._util.arguments import whole_number
from mixdim.kernels.backend import MlpCall, dispatch
from mixdim.kernels.mlp import LinearLayer
from mixdim.storages.init import Init, check_init

if TYPE_CHECKING:
    from mixdim.serving.graph import Graph

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# Uniform in [-b, b] with b = sqrt(6 / (fan_in + fan_out)), or sqrt(6 / fan) for He: as for the tables.
_DRAW: dict[Init, Callable[..., Tensor]] = {
    "xavier": nn.init.xavier_uniform_,
    "aligned": nn.init.xavier_uniform_,  # it is about tables
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
        layers += [linear(fan_in, fan_out, init=init, generator=generator), activation()]
    return Layers(*layers[:-1])


def linear(
    fan_in: int,
    fan_out: int,
    *,
    bias: bool = True,
    init: Init = "xavier",
    generator: torch.Generator | None = None,
) -> nn.Linear:
    """A linear layer whose weights are drawn as those of `mlp`; its bias starts at zero."""
    # nn.Linear would draw weights of its own first, and move PyTorch's global generator.
    device = torch.get_default_device()
    layer: nn.Linear = skip_init(nn.Linear, fan_in, fan_out, bias=bias, device=device)
    draw_weights(layer.weight, init=init, generator=generator)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def draw_weights(weight: Tensor, *, init: Init, generator: torch.Generator | None) -> None:
    """Draw a matrix (fan_out, fan_in) in place."""
    check_init(init)
    _DRAW[init](weight, generator=generator)


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


@torch.no_grad()
def zero_last_layer(layers: nn.Module) -> None:
    """Let an MLP begin with the output 0; the layers below learn as soon as the last one has moved."""
    for weight in modules_of(layers)[-1].parameters():
        weight.zero_()


def modules_of(layers: nn.Module) -> list[nn.Module]:
    """The modules of an MLP, one after the other."""
    if not isinstance(layers, nn.Sequential):
        raise ValueError(f"an MLP to export must be an nn.Sequential, got {type(layers).__name__}")
    return list(layers)


def layers_in_graph(graph: Graph, layers: nn.Module | Sequence[nn.Module], values: str) -> str:
    """Linear layers and activations in an ONNX graph: (batch, inputs) -> (batch, outputs)."""
    for module in modules_of(layers) if isinstance(layers, nn.Module) else layers:
        match module:
            case nn.Linear():
                bias = [] if module.bias is None else [graph.weights(module.bias)]
                values = graph.add("Gemm", values, graph.weights(module.weight), *bias, transB=1)
            case nn.ReLU():
                values = graph.add("Relu", values)
            case nn.LeakyReLU():
                values = graph.add("LeakyRelu", values, alpha=module.negative_slope)
            case _:
                raise ValueError(
                    "an MLP to export must have nn.Linear, nn.ReLU and nn.LeakyReLU only, "
                    f"got {type(module).__name__}"
                )
    return values


def single_column(graph: Graph, values: str) -> str:
    """(batch, 1) -> (batch,) in an ONNX graph."""
    return graph.add("Squeeze", values, graph.constant([1]))
