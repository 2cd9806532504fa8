"""A model in one process keeps the contract of learners; tests/distributed has the one of many."""

from dataclasses import replace

import pytest
import torch

from learner_contract import check_learner
from mixdim.training import Group, LocalLearner, preset
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
