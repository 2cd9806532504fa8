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
from torch import nn

from mixdim.training import learner as learners
from mixdim.training.checkpoint import Checkpoint, CheckpointError, Checkpoints
from mixdim.training.devices import random_states, set_random_states
from mixdim.training.inputs import TrainingData
from mixdim.training.learner import MODEL, OPTIMIZER, Learner, with_prefix, without_prefix
from mixdim.training.options import TrainingOptions
from mixdim.training.shards import StoredTensor, in_memory
from mixdim.training.time_decay import DECAY_SUM, DECAYED_TO, settle

log = logging.getLogger("mixdim.training")

MAY_CHANGE = {"epochs", "patience", "checkpoint_every"}  # between a run and its resumption
RANDOM = "random/"


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
    learner: Learner,
    state: TrainingState,
    options: TrainingOptions,
    data: TrainingData,
) -> Path:
    """Write a checkpoint to go on from, and remove those that are not needed any more."""
    path = checkpoints.save(
        "step",
        state.step,
        {**learner.tensors(), **with_prefix(RANDOM, random_states(learner.device))},
        {
            **asdict(state),
            "optimizer": learner.numbers(),
            "options": asdict(options),
            "data": data.fingerprint,
            "threads": torch.get_num_threads(),
        },
    )
    checkpoints.prune()
    return path


def load_everything(
    found: Checkpoint, learner: Learner, options: TrainingOptions, data: TrainingData
) -> TrainingState:
    """Set model, optimizer and random state to a checkpoint of the same run; returns how far it was.

    All of it is checked first, so that a checkpoint of something else changes nothing.
    """
    kept = ("options", "data", "optimizer", "threads", *asdict(TrainingState()))
    missing = [name for name in kept if name not in found.state]
    random = {name: of.read() for name, of in without_prefix(RANDOM, found.tensors).items()}
    if missing or "torch" not in random:
        raise CheckpointError(f"{found.path} lacks {', '.join(map(repr, missing)) or 'a random state'}")
    _check_same(found, options, data)
    try:
        learner.load(found.tensors, found.state["optimizer"])
    except ValueError as error:
        raise CheckpointError(f"{found.path} is of another model: {error}") from None
    for device in set_random_states(random, learner.device):
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
        self._in_memory: dict[str, StoredTensor] = {}

    def keep(self, learner: Learner, state: TrainingState) -> None:
        """Keep the weights as they are now; those that were the best before are not needed any more."""
        weights = {name: held for name, held in learner.tensors().items() if name.startswith(MODEL)}
        if self.checkpoints is None:
            self._in_memory = {name: in_memory(held) for name, held in weights.items()}
        else:
            self.checkpoints.save("best", state.step, weights, {"best": state.best})
            self.checkpoints.prune(best_step=state.step)

    def load(self, learner: Learner, step: int) -> None:
        """Copy what was kept after this step into the model."""
        if self.checkpoints is None:
            learner.load(self._in_memory, None)
        else:
            found = self.checkpoints.best(step)
            try:
                learner.load(found.tensors, None)
            except ValueError as error:
                raise CheckpointError(f"{found.path} is of another model: {error}") from None


def load_weights(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Copy the weights of a checkpoint into a model of the same shape."""
    try:
        learners.load_weights(model, checkpoint.tensors)
    except ValueError as error:
        raise CheckpointError(f"{checkpoint.path} is of another model: {error}") from None
    parameters = dict(model.named_parameters())
    for place, decay_sum in checkpoint.state.get("optimizer", {}).items():
        name, _, key = place.rpartition("/")
        if key == DECAY_SUM:  # in the middle of an epoch
            decayed_to = checkpoint.tensors[f"{OPTIMIZER}{name}/{DECAYED_TO}"].read()
            settle(parameters[name], decayed_to, decay_sum)


def _check_same(found: Checkpoint, options: TrainingOptions, data: TrainingData) -> None:
    """Refuse to continue a run as another one."""
    for name, now in asdict(options).items():
        before = found.state["options"].get(name)
        if name not in MAY_CHANGE and before != now:
            raise CheckpointError(f"{found.path} is of a run with {name}={before!r}, not {now!r}")
    if found.state["data"] != data.fingerprint:
        raise CheckpointError(f"{found.path} is of a run on other data than this")
