"""What of a run is kept in a checkpoint, and how it is taken up again.

Everything that decides the weights is in it: weights, optimizer, random state, and the number of steps
done, which is the place in the data. So a run resumed from any checkpoint ends with the same bytes as
one that was never stopped. Knows nothing about when to save.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mixdim.training.checkpoints import Checkpoint, CheckpointError, Checkpoints
from mixdim.training.devices import device_of, random_states, set_random_states
from mixdim.training.inputs import TrainingData
from mixdim.training.optimizers import NamedOptimizer
from mixdim.training.options import TrainingOptions

log = logging.getLogger("mixdim.training")

# What runs did before there was such an option: checkpoints of then do not have it.
LATER_OPTIONS = {"unknown_dropout": False, "table_lr": None, "weight_decay": 0.0}
MAY_CHANGE = {"epochs", "patience", "checkpoint_every"}  # between a run and its resumption


@dataclass
class TrainingState:
    """How far a run has come."""

    step: int = 0
    evaluated_step: int = 0
    best: dict[str, Any] | None = None  # step, epoch and metrics of the best evaluation
    last: dict[str, Any] | None = None  # of the last one
    stale: int = 0  # evaluations since the best
    seconds: float = 0.0  # in all, evaluations and checkpoints included
    train_seconds: float = 0.0  # in training steps alone
    journal_length: int = 0
    losses: list[float] = field(default_factory=list)  # since the last line of the journal

    def take_evaluation(self, metrics: Mapping[str, Any], *, epoch: float, objective: str) -> bool:
        """Note what the validation split says now; returns whether it is the best so far."""
        self.last = {"step": self.step, "epoch": epoch, **metrics}
        self.evaluated_step = self.step
        value, best = metrics[objective], None if self.best is None else self.best[objective]
        is_best = value is None or best is None or value < best
        if is_best:
            self.best = self.last
        self.stale = 0 if is_best else self.stale + 1
        return is_best


def save_everything(
    checkpoints: Checkpoints,
    model: nn.Module,
    optimizer: NamedOptimizer,
    state: TrainingState,
    options: TrainingOptions,
    data: TrainingData,
) -> Path:
    """Write a checkpoint to go on from, and remove those that are not needed any more."""
    tensors, numbers = optimizer.state()
    path = checkpoints.save(
        "step",
        state.step,
        {
            **_prefixed("model/", model.state_dict()),
            **_prefixed("optimizer/", tensors),
            **_prefixed("random/", random_states(device_of(model))),
        },
        {
            **asdict(state),
            "optimizer": numbers,
            "options": asdict(options),
            "data": data.fingerprint,
            "threads": torch.get_num_threads(),
        },
    )
    checkpoints.prune()
    return path


def load_everything(
    found: Checkpoint,
    model: nn.Module,
    optimizer: NamedOptimizer,
    options: TrainingOptions,
    data: TrainingData,
) -> TrainingState:
    """Set model, optimizer and random state to a checkpoint of the same run; returns how far it was.

    All of it is checked first, so that a checkpoint of something else changes nothing.
    """
    kept = ("options", "data", "optimizer", "threads", *asdict(TrainingState()))
    missing = [name for name in kept if name not in found.state]
    random = _without("random/", found.tensors)
    if missing or "torch" not in random:
        raise CheckpointError(f"{found.path} lacks {', '.join(map(repr, missing)) or 'a random state'}")
    _check_same(found, options, data)
    _check_shapes(model, _without("model/", found.tensors), found.path)
    of_optimizer = _without("optimizer/", found.tensors), found.state["optimizer"]
    try:
        optimizer.check_state(*of_optimizer)
    except ValueError as error:
        raise CheckpointError(f"{found.path} is of another model: {error}") from None
    load_weights(model, found)
    optimizer.load_state(*of_optimizer)
    for device in set_random_states(random, device_of(model)):
        log.warning("%s has no random state of %s: it will draw other numbers there", found.path, device)
    if found.state["threads"] != torch.get_num_threads():
        log.warning(
            "the run used %d threads and now has %d: sums may be rounded differently",
            found.state["threads"],
            torch.get_num_threads(),
        )
    return TrainingState(**{name: found.state[name] for name in asdict(TrainingState())})


class BestWeights:
    """The best weights of a run so far: in a checkpoint of their own or, without any, in memory."""

    def __init__(self, checkpoints: Checkpoints | None) -> None:
        self.checkpoints = checkpoints
        self._in_memory: dict[str, Tensor] = {}

    def keep(self, model: nn.Module, state: TrainingState) -> None:
        """Keep the weights as they are now; those that were the best before are not needed any more."""
        weights = model.state_dict()
        if self.checkpoints is None:
            self._in_memory = {name: tensor.clone() for name, tensor in weights.items()}
        else:
            self.checkpoints.save("best", state.step, _prefixed("model/", weights), {"best": state.best})
            self.checkpoints.prune(best_step=state.step)

    def load(self, model: nn.Module, step: int) -> None:
        """Copy what was kept after this step into the model."""
        if self.checkpoints is None:
            model.load_state_dict(self._in_memory)
        else:
            load_weights(model, self.checkpoints.best(step))


def load_weights(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Copy the weights of a checkpoint into a model of the same shape."""
    weights = _without("model/", checkpoint.tensors)
    _check_shapes(model, weights, checkpoint.path)
    model.load_state_dict(weights)


def _check_same(found: Checkpoint, options: TrainingOptions, data: TrainingData) -> None:
    """Refuse to continue a run as another one."""
    for name, now in asdict(options).items():
        before = found.state["options"].get(name, LATER_OPTIONS.get(name))
        if name not in MAY_CHANGE and before != now:
            raise CheckpointError(f"{found.path} is of a run with {name}={before!r}, not {now!r}")
    if found.state["data"] != data.fingerprint:
        raise CheckpointError(f"{found.path} is of a run on other data than this")


def _check_shapes(model: nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    mine = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    theirs = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    for name in sorted(mine.keys() | theirs.keys()):
        if mine.get(name) != theirs.get(name):
            raise CheckpointError(
                f"{path} is of another model: {name!r} has shape {theirs.get(name)} there "
                f"and {mine.get(name)} here"
            )


def _prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def _without(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name[len(prefix) :]: t for name, t in tensors.items() if name.startswith(prefix)}
