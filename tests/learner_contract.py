"""What every learner can do, whether one process holds it or many: see `mixdim.training.Learner`."""

import math
from pathlib import Path

import pytest
import torch

from mixdim.training.checkpoint import open_checkpoint, write_checkpoint
from mixdim.training.learner import MODEL, OPTIMIZER
from mixdim.training.shards import in_memory, shards_of


def check_learner(make, loss_of, folder, group):
    """Check all of it; every rank of a group calls this.

    `make(seed)` makes a learner, `make(None)` one of another shape; `loss_of(learner, number)` is the
    loss of this rank's share of some batch.
    """
    folder = Path(folder)

    def train(learner, *numbers):
        for number in numbers:
            learner.backward(loss_of(learner, number))
            learner.step()
            learner.zero_grad()

    def saved(learner, name):
        write_checkpoint(folder / name, learner.tensors(), {"optimizer": learner.numbers()}, group=group)
        return {file.name: file.read_bytes() for file in (folder / name).iterdir()}

    def held(learner, prefix=""):
        tensors = {n: shards_of(h) for n, h in learner.tensors().items() if n.startswith(prefix)}
        return {name: [shard.tensor.tolist() for shard in shards] for name, shards in tensors.items()}

    # A learner that takes up the state of another goes on as that does, to the last bit.
    one, other = make(1), make(2)
    train(one, 0, 1, 2)
    assert {name.partition("/")[0] + "/" for name in one.tensors()} == {MODEL, OPTIMIZER}
    expected = saved(one, "one")
    found = open_checkpoint(folder / "one", group)
    assert saved(other, "other") != expected
    other.load(found.tensors, found.state["optimizer"])
    assert saved(other, "other") == expected
    train(one, 3, 4)
    train(other, 3, 4)
    assert saved(one, "one later") == saved(other, "other later") != expected

    # Without numbers, the weights alone; also from memory.
    weights, best = make(2), {n: in_memory(h) for n, h in one.tensors().items() if n.startswith(MODEL)}
    before = held(weights, OPTIMIZER)
    weights.load(found.tensors, None)
    assert held(weights, OPTIMIZER) == before
    train(one, 5)
    assert held(one, MODEL) != held(other, MODEL)
    one.load(best, None)
    assert held(one, MODEL) == held(other, MODEL)

    # What does not fit is refused, and changes nothing.
    stranger, before = make(None), held(make(None))
    for numbers in (found.state["optimizer"], None):
        with pytest.raises(ValueError, match=r"has shape .* there and .* here|other blocks there"):
            stranger.load(found.tensors, numbers)
    unchanged = held(other)
    for name in [n for n, t in found.tensors.items() if n.startswith(OPTIMIZER) and t.shape]:
        damaged = {**found.tensors, name: in_memory(torch.zeros(7, 2))}
        with pytest.raises(ValueError, match=r"must be as the parameter|has shape \(7, 2\) there"):
            other.load(damaged, found.state["optimizer"])
    assert (held(stranger), held(other)) == (before, unchanged)

    # A parameter that is not finite is named.
    assert other.not_finite() is None
    states = {name.removeprefix(OPTIMIZER).rpartition("/")[0] for name in one.tensors()}
    for name, tensor in one.tensors().items():
        for shard in shards_of(tensor) if name.removeprefix(MODEL) in states else ():
            if shard.tensor.numel():
                kept = shard.tensor.flatten()[0].item()
                shard.tensor.view(-1)[0] = math.nan
                assert one.not_finite() == name.removeprefix(MODEL)
                shard.tensor.view(-1)[0] = kept
    assert one.device == torch.device("cpu")
