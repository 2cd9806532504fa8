import tomllib
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from mixdim._util.options import opt
from mixdim.runs.config import RunConfig, run_options
from mixdim.runs.model_options import MODEL_OPTIONS
from mixdim.runs.models import MODELS, RunModel, build_model, check_fits
from mixdim.runs.train import plan_of, train_run
from training_data import clicks, clicks_with_bags, ratings, raw_bytes, small_config

DATA = {"dlrm": clicks, "mf": ratings, "ncf": ratings}


def built(config, dataset):
    return build_model(config, plan_of(config, dataset), num_dense=dataset.num_dense, mean=3.5)


@pytest.mark.parametrize("name", MODELS)
def test_the_options_of_a_model_are_options_of_a_run_and_have_defaults(name):
    assert MODELS[name].defaults.keys() <= run_options().keys()
    resolved = RunConfig(model=name, base_dim=4, preset="paper-cf").resolved_for("rating")
    assert resolved.model_options == MODELS[name].defaults
    assert None not in MODELS[name].defaults.values()
    assert resolved.bands == MODELS[name].bands


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


@dataclass(frozen=True)
class ConstantOptions:
    shift: float = opt(0.0, "Added to the mean.")


def test_a_new_model_is_one_entry_and_its_options_are_one_dataclass(tmp_path, monkeypatch):
    entry = RunModel(
        lambda plan, given, shift: Constant(given.mean + shift),
        ConstantOptions,
        bands=2,
        reads=lambda dataset: True,
        takes="anything",
    )
    monkeypatch.setitem(MODELS, "constant", entry)
    monkeypatch.setitem(MODEL_OPTIONS, "constant", ConstantOptions)
    config = RunConfig(data=str(ratings().path), model="constant", temperature=0.0, base_dim=2, epochs=1)
    for shift, config_of_shift in ((0.0, config), (2.0, RunConfig.of(shift=2).merged_with(config))):
        trained = train_run(config_of_shift, tmp_path / f"run-{shift}")
        assert trained.summary["shift"] == shift
        written = tomllib.loads((tmp_path / f"run-{shift}" / "config.toml").read_text())
        assert (written["model"], written["shift"]) == ("constant", shift)
    with pytest.raises(ValueError, match="model must be one of dlrm, mf, ncf, constant, got 'gbdt'"):
        RunConfig(model="gbdt").resolved_for("rating")
