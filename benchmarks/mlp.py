"""One training step of MLPs, of their input too: `mixdim.models.mlp` beside nn.Sequential.

The MLPs of DLRM and of neural collaborative filtering; no optimizer, which is the same for all.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from interleaved import Contest, Step, arguments, run
from mixdim.models.mlp import mlp

RIVAL = "nn.Sequential"
PAIRS = 27 * 26 // 2  # of DLRM's 26 features and its dense vector


class Shape(NamedTuple):
    """The widths of an MLP, and what is activated how."""

    name: str
    widths: tuple[int, ...]
    activation: Callable[[], nn.Module]
    last: bool  # whether the last layer is activated too
    batch_size: int


class Inputs(NamedTuple):
    """A batch (batch, widths[0]) and the gradient of the output: (batch, widths[-1])."""

    batch: Tensor
    pull: Tensor


def shapes(base_dims: list[int], *, batch_size: int) -> list[Shape]:
    found = []
    for base_dim in base_dims:
        for size, bottom, top in [
            ("large", (512, 256, 64), (512, 256)),
            ("small", (128, 64), (128, 64)),
        ]:
            widths = (13, *bottom, base_dim)
            found.append(Shape(f"DLRM's {size} bottom", widths, nn.ReLU, True, batch_size))
            widths = (base_dim + PAIRS, *top, 1)
            found.append(Shape(f"DLRM's {size} top", widths, nn.ReLU, False, batch_size))
        widths = (2 * base_dim, 128, 128, 32, 1)
        found.append(Shape("neural CF", widths, nn.LeakyReLU, False, 8 * batch_size))
    return found


def make_inputs(shape: Shape) -> Inputs:
    generator = torch.Generator().manual_seed(0)
    batch = torch.randn(shape.batch_size, shape.widths[0], generator=generator)
    return Inputs(batch, torch.randn(shape.batch_size, shape.widths[-1], generator=generator))


def build(shape: Shape) -> nn.Sequential:
    generator = torch.Generator().manual_seed(0)
    model = mlp(shape.widths, activation=shape.activation, generator=generator)
    return model.append(shape.activation()) if shape.last else model


def step_of(model: nn.Module, inputs: Inputs) -> Step:
    batch = inputs.batch.clone().requires_grad_()

    def step() -> None:
        model(batch).backward(inputs.pull)
        batch.grad = None
        model.zero_grad(set_to_none=True)

    return step


def own(shape: Shape, inputs: Inputs) -> Step:
    return step_of(build(shape), inputs)


def sequential(shape: Shape, inputs: Inputs) -> Step:
    return step_of(nn.Sequential(*build(shape)), inputs)


def in_place(shape: Shape, inputs: Inputs) -> Step:
    """nn.Sequential whose activations overwrite what they are given."""
    model = nn.Sequential(*build(shape))
    for module in model:
        if isinstance(module, nn.ReLU | nn.LeakyReLU):
            module.inplace = True
    return step_of(model, inputs)


def transposed(shape: Shape, inputs: Inputs) -> Step:
    """nn.Sequential with weights kept transposed."""
    model = nn.Sequential(*build(shape))
    for module in model:
        if isinstance(module, nn.Linear):
            module.weight = nn.Parameter(module.weight.detach().t().contiguous().t())
    return step_of(model, inputs)


def onednn(shape: Shape, inputs: Inputs) -> Step:
    """The linear layer of oneDNN, with ReLU fused forward; backward in operators of PyTorch."""
    return step_of(_OneDnn(build(shape)), inputs)


class _OneDnn(nn.Module):
    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.linear = nn.ModuleList(layer for layer in layers if isinstance(layer, nn.Linear))
        self.activated = [i % 2 == 0 and i + 1 < len(layers) for i in range(len(layers))][::2]
        others = [layer for layer in layers if not isinstance(layer, nn.Linear)]
        self.slope = getattr(others[0], "negative_slope", None)

    def forward(self, x: Tensor) -> Tensor:
        for layer, activated in zip(self.linear, self.activated, strict=True):
            slope = self.slope if activated else 1.0
            x = _OneDnnLayer.apply(x, layer.weight, layer.bias, slope)  # type: ignore[no-untyped-call]  # torch has no type for it
        return x


class _OneDnnLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, slope: float | None) -> Tensor:
        attribute = "none" if slope == 1 else "relu" if slope is None else "leaky_relu"
        scalars = [slope] if attribute == "leaky_relu" else []
        y = torch.ops.mkldnn._linear_pointwise(x, weight, bias, attribute, scalars, "")
        ctx.save_for_backward(x, weight, y)
        ctx.slope = slope
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (gradient,) = gradients
        x, weight, y = ctx.saved_tensors
        if ctx.slope is None:
            gradient = torch.ops.aten.threshold_backward(gradient, y, 0)
        elif ctx.slope != 1:
            gradient = torch.ops.aten.leaky_relu_backward(gradient, y, ctx.slope, True)
        return gradient @ weight, gradient.t() @ x, gradient.sum(0), None


def keep_memory() -> None:
    """Let glibc keep freed memory, so that fresh tensors cost no page faults."""
    libc = ctypes.CDLL("libc.so.6")
    trim_threshold, mmap_threshold = -1, -3
    libc.mallopt(mmap_threshold, 1 << 30)
    libc.mallopt(trim_threshold, (1 << 31) - 1)


def main() -> None:
    parser = arguments(__doc__, rounds=21)
    parser.add_argument("--base-dims", type=int, nargs="+", default=[32, 128, 578])
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument(
        "--settings", action="store_true", help="also PyTorch with other settings and operators"
    )
    parser.add_argument(
        "--keep-memory", action="store_true", help="let glibc keep freed memory, for all"
    )
    options = parser.parse_args()
    if options.keep_memory:
        keep_memory()
    contenders = {"mixdim.models.mlp": own, RIVAL: sequential}
    if options.settings:
        others = {"in place": in_place, "transposed weights": transposed, "oneDNN, fused ReLU": onednn}
        contenders |= others
    batch_size = options.batch_size // (8 if options.quick else 1)
    contests = [
        Contest(
            f"{shape.name} {'-'.join(map(str, shape.widths))}, batch {shape.batch_size}",
            partial(make_inputs, shape),
            {name: partial(contender, shape) for name, contender in contenders.items()},
            RIVAL,
        )
        for shape in shapes(options.base_dims, batch_size=batch_size)
    ]
    run(contests, options)


if __name__ == "__main__":
    main()
