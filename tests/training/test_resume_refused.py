"""What does not belong to the run is refused or told, and changes nothing."""

import logging
from dataclasses import replace

import pytest
import torch

import mixdim
from mixdim.data import Dataset
from mixdim.lab.synthetic.generate import generate_movielens_like
from mixdim.training import CheckpointError, Checkpoints
from resumed_runs import OPTIONS, fit_anew
from training_data import OwnModel, ratings, raw_bytes


@pytest.mark.parametrize(
    "change",
    [
        *({"lr": 0.01}, {"optimizer": "adam"}, {"batch_size": 10}, {"seed": 1}, {"shuffle": False}),
        *({"unknown_dropout": True}, {"table_lr": 0.5}, {"weight_decay": 0.1}),
    ],
)
def test_another_option_is_refused_with_both_values(tmp_path, change):
    dataset = ratings()
    fit_anew(lambda: OwnModel(dataset), dataset, tmp_path)
    name, value = next(iter(change.items()))
    with pytest.raises(CheckpointError, match=f"is of a run with {name}=.*, not {value!r}"):
        mixdim.fit(
            OwnModel(dataset), dataset, options=replace(OPTIONS, **change), out=tmp_path, resume=True
        )


def test_another_model_or_other_data_are_refused(tmp_path):
    dataset = ratings()
    fit_anew(lambda: OwnModel(dataset), dataset, tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"of another model: 'head.weight' has shape \(1, 8\)"):
        mixdim.fit(
            OwnModel(dataset, width=5), dataset, options=OPTIONS, out=tmp_path / "run", resume=True
        )
    generate_movielens_like(tmp_path / "data", rows=1_000, scale=0.0005, seed=1)
    other = Dataset(tmp_path / "data")
    with pytest.raises(CheckpointError, match="is of a run on other data than this"):
        mixdim.fit(OwnModel(dataset), other, options=OPTIONS, out=tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t, s: t.update({"optimizer/head.bias/exp_avg": torch.zeros(7)}),
            r"is of another model: 'exp_avg' of parameter 'head.bias' must be as the parameter",
        ),
        (
            lambda t, s: t.update({"optimizer/lost/exp_avg": torch.zeros(7)}),
            r"is of another model: the optimizer has no parameter 'lost'",
        ),
        (lambda t, s: t.pop("random/torch"), "lacks a random state"),
        (lambda t, s: [s.pop("losses"), s.pop("threads")], "lacks 'threads', 'losses'"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_and_changes_nothing(tmp_path, change, message):
    dataset = ratings()
    fit_anew(lambda: OwnModel(dataset), dataset, tmp_path)
    found = Checkpoints(tmp_path / "checkpoint").newest()
    tensors, state = {name: stored.read() for name, stored in found.tensors.items()}, dict(found.state)
    change(tensors, state)
    Checkpoints(tmp_path / "checkpoint").save("step", found.step, tensors, state)
    model = OwnModel(dataset)
    before, drawn = raw_bytes(model), torch.get_rng_state()
    with pytest.raises(CheckpointError, match=message):
        mixdim.fit(model, dataset, options=OPTIONS, out=tmp_path, resume=True)
    assert raw_bytes(model) == before
    assert torch.equal(torch.get_rng_state(), drawn)


def test_another_number_of_threads_is_told(tmp_path, caplog):
    dataset = ratings()
    fit_anew(lambda: OwnModel(dataset), dataset, tmp_path)
    torch.set_num_threads(2)
    try:
        with caplog.at_level(logging.WARNING):
            fit_anew(lambda: OwnModel(dataset), dataset, tmp_path, resume=True)
    finally:
        torch.set_num_threads(1)
    assert "the run used 1 threads and now has 2" in caplog.text
