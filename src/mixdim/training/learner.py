"""A model and its optimizer, as the trainer sees them: in one process, or spread over many.

Knows nothing about data, files or when to do what. `mixdim.distributed` has the spread one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.autograd import backward

from mixdim.training.devices import device_of
from mixdim.training.optimizers import NamedOptimizer
from mixdim.training.options import TrainingOptions
from mixdim.training.shards import Held, Shard, StoredTensor

MODEL, OPTIMIZER = "model/", "optimizer/"


class Rates(NamedTuple):
    """What of `TrainingOptions` the optimizer of a learner was made with."""

    optimizer: str
    lr: float
    table_lr: float
    weight_decay: float
    table_decay: float

    @classmethod
    def of(cls, options: TrainingOptions) -> Rates:
        """Those that options name."""
        table_lr = options.lr if options.table_lr is None else options.table_lr
        decay = options.weight_decay
        table_decay = decay if options.table_decay is None else options.table_decay
        return cls(options.optimizer, options.lr, table_lr, decay, table_decay)

    def check(self, options: TrainingOptions) -> None:
        """Refuse options that name others."""
        for name, own, named in zip(self._fields, self, Rates.of(options), strict=True):
            if own != named:
                raise ValueError(f"the learner was made with {name}={own!r}, but options have {named!r}")


class Learner(Protocol):
    """A model that learns.

    Its tensors are named as those of the model in one process, wherever they are: `model/NAME` by the
    name in `state_dict`, and `optimizer/NAME/KEY` by the name of the parameter.
    """

    @property
    def model(self) -> nn.Module:
        """The module, to put it into training or evaluation mode and to call it."""

    @property
    def rates(self) -> Rates:
        """How it steps: the trainer refuses options that say otherwise."""

    @property
    def device(self) -> torch.device | None:
        """Where batches are wanted; None: anywhere."""

    def forward(self, batch: Any, seen: Any = None) -> Tensor:
        """Return the output of each sample: (batch,); tell `seen` what the model looks up for them."""

    def scale_rates(self, factor: float) -> None:
        """Take the next steps with this factor of the learning rates; told before `backward`."""

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of a loss."""

    def step(self) -> None:
        """Update the parameters; may raise FloatingPointError."""

    def zero_grad(self) -> None:
        """Forget the gradients."""

    def settle(self) -> None:
        """Bring up to date what steps have put off, before weights are measured or kept."""

    def tensors(self) -> dict[str, Held]:
        """Return the tensors of model and optimizer as they are, not copied."""

    def numbers(self) -> dict[str, float]:
        """Return what of the optimizer's state is no tensor, by "parameter/key"."""

    def load(self, stored: Mapping[str, StoredTensor], numbers: Mapping[str, float] | None) -> None:
        """Take over the tensors and numbers of a learner of the same model and optimizer.

        Without `numbers`, the weights alone. All is checked before anything is changed: a ValueError
        says what does not fit.
        """

    def not_finite(self) -> str | None:
        """Return the name of a parameter, of which this process holds a part, that is not finite."""


class LocalLearner:
    """A model that one process holds."""

    def __init__(self, model: nn.Module, options: TrainingOptions) -> None:
        self.model, self.rates = model, Rates.of(options)
        self.optimizer = NamedOptimizer(
            options.optimizer,
            model,
            lr=options.lr,
            table_lr=options.table_lr,
            weight_decay=options.weight_decay,
            table_decay=options.table_decay,
            decay_by=options.decay_by,
        )

    @property
    def device(self) -> torch.device | None:
        """Where the model is."""
        return device_of(self.model)

    def forward(self, batch: Any, seen: Any = None) -> Tensor:
        """Call the model."""
        output: Tensor = self.model(batch) if seen is None else self.model(batch, seen)
        return output

    def scale_rates(self, factor: float) -> None:
        """Take the next steps with this factor of the learning rates."""
        self.optimizer.scale_rates(factor)

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of a loss."""
        backward([loss])

    def step(self) -> None:
        """Update the parameters."""
        self.optimizer.step()

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self.optimizer.zero_grad()

    def settle(self) -> None:
        """Decay what is behind."""
        self.optimizer.settle()

    def tensors(self) -> dict[str, Held]:
        """Return all tensors as they are."""
        return {
            **with_prefix(MODEL, self.model.state_dict()),
            **with_prefix(OPTIMIZER, self.optimizer.state()[0]),
        }

    def numbers(self) -> dict[str, float]:
        """Return what of the optimizer's state is no tensor."""
        return self.optimizer.state()[1]

    def load(self, stored: Mapping[str, StoredTensor], numbers: Mapping[str, float] | None) -> None:
        """Take over tensors and numbers."""
        if numbers is None:
            load_weights(self.model, stored)
            return
        check_weights(self.model, stored)
        found = without_prefix(OPTIMIZER, stored)
        tensors = {name: of_state.read() for name, of_state in found.items()}
        self.optimizer.check_state(tensors, numbers)
        load_weights(self.model, stored)
        self.optimizer.load_state(tensors, numbers)

    def not_finite(self) -> str | None:
        """Return the name of a parameter that is not finite."""
        return not_finite(self.model.named_parameters())


def load_weights(model: nn.Module, stored: Mapping[str, StoredTensor], prefix: str = MODEL) -> None:
    """Copy stored weights into a model of the same shape."""
    check_weights(model, stored, prefix)
    own, rest = model.state_dict(), {}
    for name, weights in without_prefix(prefix, stored).items():
        if weights.is_packed:  # a table of a mixed layer, brought into order where it is
            weights.fill(Shard(own[name], weights.shape))
        else:
            rest[name] = weights.read()
    model.load_state_dict({**own, **rest})


def check_weights(model: nn.Module, stored: Mapping[str, StoredTensor], prefix: str = MODEL) -> None:
    """Say which stored weights are not those of a model."""
    mine = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    check_shapes(mine, {n: t.shape for n, t in without_prefix(prefix, stored).items()})


def check_shapes(mine: Mapping[str, tuple[int, ...]], theirs: Mapping[str, tuple[int, ...]]) -> None:
    """Say which tensor is missing, or has another shape."""
    for name in sorted(mine.keys() | theirs.keys()):
        if mine.get(name) != theirs.get(name):
            raise ValueError(f"{name!r} has shape {theirs.get(name)} there and {mine.get(name)} here")


def not_finite(parameters: Any) -> str | None:
    """Return the name of a tensor, of pairs of both, that holds numbers that are not finite."""
    for name, tensor in parameters:
        if tensor.numel() and not all(map(math.isfinite, tensor.detach().aminmax())):
            return str(name)
    return None


def with_prefix(prefix: str, named: Mapping[str, Any]) -> dict[str, Any]:
    """Put a prefix before each name."""
    return {prefix + name: value for name, value in named.items()}


def without_prefix(prefix: str, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return what has a prefix, by the rest of the name."""
    return {name[len(prefix) :]: value for name, value in named.items() if name.startswith(prefix)}
