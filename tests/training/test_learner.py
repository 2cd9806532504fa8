"""A model in one process keeps the contract of learners; tests/distributed has the one of many."""

from dataclasses import replace

import pytest
import torch

from learner_contract import check_learner
from mixdim.training import Group, LocalLearner, Trainer, preset
from mixdim.training.optimizers import OPTIMIZERS
from training_data import OwnModel, clicks, ratings, small_model

MODELS = {
    "own": (lambda data, width: OwnModel(data, width=width, dropout=0.0), ratings),
    "dlrm": (lambda data, width: small_model("dlrm", data, base_dim=2 * width), clicks),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name != "sgd"])
def test_a_model_in_one_process_keeps_the_contract(tmp_path, name, optimizer):
    build, data = MODELS[name]
    dataset, options = data(), replace(preset("paper-cf"), optimizer=optimizer, lr=0.05)
    batches = [dataset.rows(slice(30 * i, 30 * i + 30)) for i in range(6)]

    def make(seed):
        model = build(dataset, 5 if seed is None else 4)
        generator = torch.Generator().manual_seed(seed or 0)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.uniform_(-0.5, 0.5, generator=generator)
        return LocalLearner(model, options)

    def loss_of(learner, number):
        return (learner.forward(batches[number]) - batches[number].target).square().mean()

    check_learner(make, loss_of, tmp_path, Group.alone())


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"lr": 0.5}, "made with lr=0.01, but options have 0.5"),
        ({"table_lr": 0.5}, "made with table_lr=0.01, but options have 0.5"),
        ({"weight_decay": 0.5}, "made with weight_decay=0.0, but options have 0.5"),
        ({"optimizer": "adagrad"}, "made with optimizer='amsgrad', but options have 'adagrad'"),
    ],
)
def test_the_trainer_refuses_options_that_the_learner_was_not_made_with(other, message):
    data, options = ratings(), preset("paper-cf")
    learner = LocalLearner(OwnModel(data, width=4), options)
    Trainer(learner, data, replace(options, epochs=3, table_lr=options.lr))
    with pytest.raises(ValueError, match=message):
        Trainer(learner, data, replace(options, **other))
