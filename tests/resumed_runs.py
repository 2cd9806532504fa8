"""A run in one life or in several, killed at a call of its progress, and what must be the same then."""

import json
from dataclasses import replace

import torch

import mixdim
from mixdim.training import preset
from training_data import raw_bytes

# 6 steps an epoch, an evaluation after 3 and 6 of them, and steps without a checkpoint between.
OPTIONS = replace(
    preset("paper-cf"),
    batch_size=150,
    epochs=2,
    lr=0.05,
    patience=None,
    evaluations_per_epoch=2,
    checkpoint_every=4,
)
TIMES = {"seconds", "train_seconds", "journal_length"}


class Kill(BaseException):
    """Like a kill: nothing more is written."""


class Killer:
    """A progress callback that kills at its `at`-th call; it is called in every step and evaluation."""

    def __init__(self, at=None):
        self.at, self.calls = at, 0

    def __call__(self, *told):
        self.calls += 1
        if self.calls == self.at:
            raise Kill


def fit_anew(make, dataset, out, *, kill_at=None, resume=False, options=OPTIONS, seed=3):
    """What a new process would do; returns the model, what came out, and the number of calls."""
    torch.manual_seed(seed)
    model, killer = make(), Killer(kill_at)
    try:
        fitted = mixdim.fit(model, dataset, options=options, out=out, resume=resume, progress=killer)
    except Kill:
        return None
    return model, fitted, killer.calls


def without_times(record):
    return {name: value for name, value in record.items() if name not in TIMES}


def everything(out):
    """What a run leaves: the bytes of its tensors, and all that was told, without times."""
    files = sorted((out / "checkpoint").rglob("*.safetensors"))
    states = sorted((out / "checkpoint").rglob("state.json"))
    return {
        "tensors": {f"{file.parent.name}": file.read_bytes() for file in files},
        "states": [without_times(json.loads(path.read_bytes())["body"]["state"]) for path in states],
        "told": [
            without_times(json.loads(line)) for line in (out / "metrics.jsonl").read_text().splitlines()
        ],
    }


def assert_same(resumed, out, expected, expected_out):
    assert everything(out) == everything(expected_out)
    assert raw_bytes(resumed[0]) == raw_bytes(expected[0])
    assert (resumed[1].test, resumed[1].validation) == (expected[1].test, expected[1].validation)
