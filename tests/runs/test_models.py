from dataclasses import fields, replace

import pytest
import torch
from torch import nn

from mixdim.runs.config import RunConfig
from mixdim.runs.models import MODELS, RunModel, build_model, check_fits
from mixdim.runs.train import plan_of, train_run
from training_data import clicks, clicks_with_bags, ratings, raw_bytes, small_config

DATA = {"dlrm": clicks, "mf": ratings, "ncf": ratings}


def built(config, dataset):
    return build_model(config, plan_of(config, dataset), num_dense=dataset.num_dense, mean=3.5)


@pytest.mark.parametrize("name", MODELS)
def test_the_options_of_a_model_are_options_of_a_run_and_have_defaults(name):
    assert MODELS[name].options.keys() <= {field.name for field in fields(RunConfig)}
    effective = RunConfig(model=name, base_dim=4, preset="paper-cf").effective("rating")
    for option, default in MODELS[name].options.items():
        assert default is not None
        assert getattr(effective, option) == default
    assert effective.bands == MODELS[name].bands


@pytest.mark.parametrize("name", MODELS)
def test_the_seed_decides_the_weights_and_a_model_of_shapes_alone_has_the_same_ones(name):
    dataset = DATA[name]()
    config = small_config(name, dataset)
    assert raw_bytes(built(config, dataset)) == raw_bytes(built(config, dataset))
    other = built(replace(config, seed=1), dataset)
    assert raw_bytes(built(config, dataset)) != raw_bytes(other)
    with torch.device("meta"):
        shapes = built(config, dataset).state_dict()
    assert {key: t.shape for key, t in shapes.items()} == {
        key: t.shape for key, t in other.state_dict().items()
    }


@pytest.mark.parametrize("name", ["mf", "ncf"])
def test_models_of_pairs_refuse_other_features_and_name_a_model_that_reads_them(name):
    check_fits(RunConfig(model=name), ratings())
    for dataset in (clicks(), clicks_with_bags()):
        with pytest.raises(ValueError, match=f"model '{name}' takes two features .* use --model dlrm$"):
            check_fits(RunConfig(model=name), dataset)
        check_fits(RunConfig(model="dlrm"), dataset)


class Constant(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = nn.Parameter(torch.tensor(value))

    def forward(self, batch):
        return self.value.expand(len(batch.target))


def test_a_new_model_is_one_entry(tmp_path, monkeypatch):
    entry = RunModel(
        lambda plan, given: Constant(given.mean),
        options={},
        bands=2,
        reads=lambda dataset: True,
        takes="anything",
    )
    monkeypatch.setitem(MODELS, "constant", entry)
    train_run(
        RunConfig(data=str(ratings().path), model="constant", temperature=0.0, base_dim=2, epochs=1),
        tmp_path / "run",
    )
    with pytest.raises(ValueError, match="model must be one of dlrm, mf, ncf, constant, got 'gbdt'"):
        RunConfig(model="gbdt").effective("rating")
