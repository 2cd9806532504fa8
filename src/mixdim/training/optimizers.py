"""The optimizers that a run can name, and their state by parameter name. Knows nothing about files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, Optimizer, SparseAdam
from torch.sparse import check_sparse_tensor_invariants

from mixdim._util.arguments import real_number
from mixdim.optim import MOMENTS, SparseAMSGrad
from mixdim.planning.plan import Plan
from mixdim.training.time_decay import DecayedTable, TimeDecay, is_of_decay

STEP = "step"
DECAY = "decoupled_weight_decay"  # of a group of parameters; PyTorch's own weight_decay is not decoupled
FULL_LR = "initial_lr"  # of a group: its rate before a schedule, as PyTorch's schedulers call it
Named = list[tuple[str, nn.Parameter]]


@dataclass(frozen=True)
class OptimizerKind:
    """An optimizer that a run can name.

    - `parts(parameters, sparse, lr, weight_decay)`: PyTorch's optimizers for the parameters, of which
      those named in `sparse` get row-sparse gradients.
    - `state`: what it keeps of a parameter, each as large as that, beside a count of steps.
    - `from_the_start`: whether it does so before the parameter's first gradient.
    """

    parts: Callable[[Named, set[str], float, float], list[Optimizer]]
    state: tuple[str, ...] = ()
    from_the_start: bool = False

    @property
    def copies(self) -> int:
        """How many times the parameters it keeps beside them: what `Plan.nbytes` counts."""
        return len(self.state)

    @property
    def keys(self) -> set[str]:
        """The names of all that it keeps of a parameter."""
        return {STEP, *self.state} if self.state else set()


def _amsgrad(parameters: Named, _: set[str], lr: float, weight_decay: float) -> list[Optimizer]:
    return [SparseAMSGrad(parameters, lr=lr, weight_decay=weight_decay)]


def _adam(parameters: Named, sparse: set[str], lr: float, weight_decay: float) -> list[Optimizer]:
    """PyTorch has no Adam for both kinds of gradient."""
    rows = [(name, parameter) for name, parameter in parameters if name in sparse]
    dense = [(name, parameter) for name, parameter in parameters if name not in sparse]
    parts: list[Optimizer] = [SparseAdam(_group(rows, weight_decay), lr=lr)] if rows else []
    return [*parts, Adam(_group(dense, weight_decay), lr=lr)] if dense else parts


def _adagrad(parameters: Named, _: set[str], lr: float, weight_decay: float) -> list[Optimizer]:
    return [Adagrad(_group(parameters, weight_decay), lr=lr)]


def _sgd(parameters: Named, _: set[str], lr: float, weight_decay: float) -> list[Optimizer]:
    return [SGD(_group(parameters, weight_decay), lr=lr)]


def _group(parameters: Named, weight_decay: float) -> list[dict[str, Any]]:
    """One group, whose weight decay `NamedParts` applies."""
    return [{"params": parameters, DECAY: weight_decay}]


OPTIMIZERS = {
    "amsgrad": OptimizerKind(_amsgrad, MOMENTS),
    "adam": OptimizerKind(_adam, ("exp_avg", "exp_avg_sq")),
    "adagrad": OptimizerKind(_adagrad, ("sum",), from_the_start=True),
    "sgd": OptimizerKind(_sgd),
}


def check_weight_decays(
    weight_decay: float, table_decay: float | None, lr: float, table_lr: float | None
) -> None:
    """Refuse a weight decay with which weights would change sign, at the largest learning rate."""
    of_tables = lr if table_lr is None else table_lr
    if table_decay is None:
        _check_weight_decay("weight_decay", weight_decay, max(lr, of_tables))
    else:
        _check_weight_decay("weight_decay", weight_decay, lr)
        _check_weight_decay("table_decay", table_decay, of_tables)


def _check_weight_decay(name: str, decay: float, lr: float) -> None:
    if not 0 <= real_number(decay, name) < 1 / lr:
        raise ValueError(
            f"{name} must be at least 0 and below 1 / learning rate = {1 / lr:g}, got {decay:g}"
        )


@torch.no_grad()
def decay_rows(weight: Tensor, rows: Tensor | None, factor: float) -> None:
    """Multiply rows of a weight, of which none is named twice, or with None all of it."""
    if rows is None:
        weight.mul_(factor)
    else:
        weight.index_copy_(0, rows, weight.index_select(0, rows).mul_(factor))


def scale_rates(optimizer: Optimizer, factor: float) -> None:
    """Set the learning rate of each group to this factor of the one that it was made with."""
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault(FULL_LR, group["lr"]) * factor


class NamedParts:
    """PyTorch's optimizers of some parameters, all of one kind, as one.

    Their state is a dictionary of tensors and one of numbers, both by parameter name and key, so that it
    can be written without pickle.
    """

    def __init__(
        self, kind: OptimizerKind, parameters: dict[str, nn.Parameter], parts: list[Optimizer]
    ) -> None:
        self.kind, self.parameters, self.parts = kind, parameters, parts
        self.time_decay: TimeDecay | None = None

    def step(self) -> None:
        """Update every parameter that has a gradient, after its weight decay."""
        if self.time_decay is not None:
            self.time_decay.before_step()
        for part in self.parts:
            for group in part.param_groups:
                if decay := group.get(DECAY, 0.0):
                    _decay(group["params"], 1 - group["lr"] * decay)
        # Adagrad puts sparse tensors together, and PyTorch warns unless told whether to check them.
        with check_sparse_tensor_invariants(False):
            for part in self.parts:
                part.step()
        if self.time_decay is not None:
            self.time_decay.after_step()

    def settle(self) -> None:
        """Bring all rows up to date that are decayed by time."""
        if self.time_decay is not None:
            self.time_decay.settle()

    def scale_rates(self, factor: float) -> None:
        """Take the next steps with this factor of the learning rates; the decay follows the rate."""
        for part in self.parts:
            scale_rates(part, factor)

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
        of_decay = ({}, {}) if self.time_decay is None else self.time_decay.state()
        return tensors | of_decay[0], numbers | of_decay[1]

    def load_state(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, float]) -> None:
        """Take over what `state` returned; tensors are copied to where their parameters are."""
        self.check_state(tensors, numbers)
        tensors, numbers = self._without_decay(tensors, numbers, TimeDecay.load_state)
        for part in self.parts:
            part.state.clear()
        owner = {name: part for part in self.parts for name in _names(part, self.parameters)}
        for place, value in chain(tensors.items(), numbers.items()):
            name, _, key = place.rpartition("/")
            parameter = self.parameters[name]
            held: Any = value
            if isinstance(value, Tensor):
                # PyTorch's optimizers count steps on the CPU, wherever the parameter is.
                held = value.clone() if key == STEP else value.to(parameter.device, copy=True)
            owner[name].state[parameter][key] = held

    def check_state(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, float]) -> None:
        """Say what of a state is not one of these parameters'; nothing is changed."""
        tensors, numbers = self._without_decay(tensors, numbers, TimeDecay.check_state)
        found: dict[str, set[str]] = {}
        for place, value in chain(tensors.items(), numbers.items()):
            name, _, key = place.rpartition("/")
            if name not in self.parameters:
                raise ValueError(f"the optimizer has no parameter {name!r}, got its {key!r}")
            _check_entry(name, key, value, self.parameters[name])
            found.setdefault(name, set()).add(key)
        wanted = self.kind.keys
        for part in self.parts:
            for name in _names(part, self.parameters):
                keys = found.get(name, set() if self.kind.from_the_start else wanted)
                if keys != wanted:
                    raise ValueError(
                        f"the state of parameter {name!r} must have {_listed(wanted)} "
                        f"for {type(part).__name__}, got {_listed(keys)}"
                    )

    def _without_decay(
        self, tensors: Mapping[str, Tensor], numbers: Mapping[str, float], do: Callable[..., None]
    ) -> tuple[Mapping[str, Tensor], Mapping[str, float]]:
        """Hand a state's part that is of the decay by time to it; returns the rest."""
        if self.time_decay is None:
            return tensors, numbers
        of_decay = [{n: v for n, v in part.items() if is_of_decay(n)} for part in (tensors, numbers)]
        do(self.time_decay, *of_decay)
        return (
            {name: tensor for name, tensor in tensors.items() if name not in of_decay[0]},
            {name: number for name, number in numbers.items() if name not in of_decay[1]},
        )

    def _states(self) -> list[tuple[str, dict[str, Any]]]:
        return [
            (name, part.state[parameter])
            for part in self.parts
            for name, parameter in self.parameters.items()
            if parameter in part.state
        ]


class NamedOptimizer(NamedParts):
    """One optimizer for a whole model, whatever mixture of row-sparse and dense gradients it has."""

    def __init__(
        self,
        name: str,
        model: nn.Module,
        *,
        lr: float,
        table_lr: float | None = None,
        weight_decay: float = 0.0,
        table_decay: float | None = None,
        decay_by: str = "request",
    ) -> None:
        """Make it; `table_lr` is for tables of embeddings, if it is another.

        Projections take `lr`: every row of their block moves them in each step, as those of an MLP.

        The `weight_decay` is that of embeddings, unless they have a `table_decay` of their own, and of
        matrices; an MLP's biases have none. By "time",
        every row of a table decays at every step, by "request" those that its gradient names.
        """
        for module in model.modules():
            if isinstance(plan := getattr(module, "plan", None), Plan):
                plan.check_trained()
        kind, parameters = OPTIMIZERS[name], dict(model.named_parameters())
        parts = optimizers_of(
            kind,
            parameters,
            table_parameters(model),
            sparse=sparse_parameters(model),
            lr=lr,
            table_lr=lr if table_lr is None else table_lr,
            weight_decay=weight_decay,
            table_decay=weight_decay if table_decay is None else table_decay,
        )
        super().__init__(kind, parameters, parts)
        if decay_by == "time":
            self.time_decay = _time_decay(model, parameters, parts)


def optimizers_of(
    kind: OptimizerKind,
    parameters: Mapping[str, nn.Parameter],
    tables: Collection[str],
    *,
    sparse: set[str],
    lr: float,
    table_lr: float,
    weight_decay: float,
    table_decay: float,
) -> list[Optimizer]:
    """Make PyTorch's optimizers of all parameters; those in `tables` are tables of embeddings."""
    groups: dict[tuple[float, float], Named] = {}
    for name, parameter in parameters.items():
        decay = table_decay if name in tables else weight_decay * (parameter.dim() > 1)
        rate = table_lr if name in tables else lr
        groups.setdefault((rate, decay), []).append((name, parameter))
    return [
        part for (rate, decay), some in groups.items() for part in kind.parts(some, sparse, rate, decay)
    ]


def _time_decay(
    model: nn.Module, parameters: Mapping[str, nn.Parameter], parts: Iterable[Optimizer]
) -> TimeDecay | None:
    """The decay by time of all tables with row-sparse gradients; optimizers decay what these name."""
    groups = {
        id(parameter): group
        for part in parts
        for group in part.param_groups
        for parameter in group["params"]
    }
    tables = {}
    for name in sorted(sparse_parameters(model)):
        group = groups[id(parameters[name])]
        key = DECAY if DECAY in group else "weight_decay"
        if group[key]:
            tables[name] = DecayedTable(parameters[name], group, key)
    return TimeDecay(model, tables) if tables else None


def sparse_parameters(model: nn.Module) -> set[str]:
    """Names of the parameters that get row-sparse gradients.

    A mixed layer lists its tables; of another module with `sparse=True`, such as nn.Embedding, it is
    the matrices.
    """
    found: set[int] = set()
    for module in model.modules():
        matrices = [parameter for parameter in module.parameters(recurse=False) if parameter.dim() == 2]
        own = matrices if getattr(module, "sparse", False) else []
        found |= {id(table) for table in getattr(module, "row_sparse_tables", own)}
    return {name for name, parameter in model.named_parameters() if id(parameter) in found}


def table_parameters(model: nn.Module) -> set[str]:
    """Names of the tables of embeddings: of mixed layers, without projections, and of nn.Embedding."""
    layers = [
        module
        for module in model.modules()
        if hasattr(module, "row_sparse_tables") or isinstance(module, nn.Embedding | nn.EmbeddingBag)
    ]
    lifts = {id(getattr(layer, "lift", None)) for layer in layers}
    found = {id(parameter) for layer in layers for parameter in layer.parameters()} - lifts
    return {name for name, parameter in model.named_parameters() if id(parameter) in found}


def _decay(parameters: Iterable[nn.Parameter], factor: float) -> None:
    """Decay what gets a gradient: of a row-sparse one, the rows that it names."""
    for parameter in parameters:
        if (gradient := parameter.grad) is not None:
            rows = gradient._indices()[0].unique() if gradient.is_sparse else None
            decay_rows(parameter, rows, factor)


def _check_entry(name: str, key: str, value: Any, parameter: nn.Parameter) -> None:
    """A kernel writes into these: they must be as large as the parameter."""
    if key == STEP:
        steps = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
        if isinstance(steps, bool) or not isinstance(steps, int | float) or steps < 0:
            raise ValueError(f"{key!r} of parameter {name!r} must be a number of steps, got {steps!r}")
    elif not isinstance(value, Tensor):
        raise ValueError(f"{key!r} of parameter {name!r} must be a tensor, got {value!r}")
    elif (value.shape, value.dtype) != (parameter.shape, parameter.dtype):
        raise ValueError(
            f"{key!r} of parameter {name!r} must be as the parameter, {parameter.dtype} of shape "
            f"{tuple(parameter.shape)}, got {value.dtype} of shape {tuple(value.shape)}"
        )


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(keys))) or "nothing"


def _names(part: Optimizer, parameters: Mapping[str, nn.Parameter]) -> list[str]:
    held = {id(parameter) for group in part.param_groups for parameter in group["params"]}
    return [name for name, parameter in parameters.items() if id(parameter) in held]
