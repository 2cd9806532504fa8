"""The optimizers that a run can name, and their state by parameter name. Knows nothing about files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, Optimizer, SparseAdam
from torch.sparse import check_sparse_tensor_invariants

from mixdim.optim import SparseAMSGrad


class NamedOptimizer:
    """One optimizer for a whole model, whatever mixture of row-sparse and dense gradients it has.

    Its state is a dictionary of tensors and one of numbers, both by parameter name and key, so that it
    can be written without pickle.
    """

    def __init__(self, name: str, model: nn.Module, *, lr: float) -> None:
        self.parameters = dict(model.named_parameters())
        self.parts = _build(name, self.parameters, sparse_parameters(model), lr)

    def step(self) -> None:
        """Update every parameter that has a gradient."""
        # Adagrad puts sparse tensors together, and PyTorch warns unless told whether to check them.
        with check_sparse_tensor_invariants(False):
            for part in self.parts:
                part.step()

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def state(self) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Tensors and numbers, each by "parameter/key"."""
        tensors, numbers = {}, {}
        for name, state in self._states():
            for key, value in state.items():
                if isinstance(value, Tensor):
                    tensors[f"{name}/{key}"] = value
                else:
                    numbers[f"{name}/{key}"] = value
        return tensors, numbers

    def load_state(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, float]) -> None:
        """Take over what `state` returned; tensors are copied."""
        for part in self.parts:
            part.state.clear()
        owner = {name: part for part in self.parts for name in _names(part, self.parameters)}
        for entries in (tensors, numbers):
            for place, value in entries.items():
                name, _, key = place.rpartition("/")
                held = value.clone() if isinstance(value, Tensor) else value
                owner[name].state[self.parameters[name]][key] = held

    def _states(self) -> list[tuple[str, dict[str, Any]]]:
        return [
            (name, part.state[parameter])
            for part in self.parts
            for name, parameter in self.parameters.items()
            if parameter in part.state
        ]


def sparse_parameters(model: nn.Module) -> set[str]:
    """Names of the parameters that get row-sparse gradients: tables of modules with `sparse=True`."""
    found: set[str] = set()
    for prefix, module in model.named_modules():
        if getattr(module, "sparse", False):
            # Only tables are matrices: the projections of a mixed layer have three dimensions.
            named = module.named_parameters(prefix, recurse=False)
            found |= {name for name, parameter in named if parameter.dim() == 2}
    return found


def _build(
    name: str, parameters: Mapping[str, nn.Parameter], sparse: set[str], lr: float
) -> list[Optimizer]:
    everything = list(parameters.items())
    if name == "amsgrad":
        return [SparseAMSGrad(everything, lr=lr)]
    if name == "adagrad":
        return [Adagrad(everything, lr=lr)]
    if name == "sgd":
        return [SGD(everything, lr=lr)]
    assert name == "adam", name
    # PyTorch has no Adam for both kinds of gradient.
    rows = [(n, p) for n, p in everything if n in sparse]
    dense = [(n, p) for n, p in everything if n not in sparse]
    parts: list[Optimizer] = [SparseAdam(rows, lr=lr)] if rows else []
    return [*parts, Adam(dense, lr=lr)] if dense else parts


def _names(part: Optimizer, parameters: Mapping[str, nn.Parameter]) -> list[str]:
    held = {id(parameter) for group in part.param_groups for parameter in group["params"]}
    return [name for name, parameter in parameters.items() if id(parameter) in held]
