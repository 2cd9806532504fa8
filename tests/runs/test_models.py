from dataclasses import asdict, fields, replace

import pytest
import torch
from torch import nn

from mixdim.models import MODELS, Model, register
from mixdim.models.base import ANY_FEATURES
from mixdim.runs.config import RunConfig, read_config
from mixdim.runs.models import build_model, check_fits, facts_of, options_of
from mixdim.runs.train import plan_of, train_run
from small_runs import DATA
from training_data import clicks, clicks_with_bags, ratings, raw_bytes, small_config


def built(config, dataset):
    return build_model(config, plan_of(config, dataset), num_dense=dataset.num_dense, mean=3.5)


def test_every_model_is_tried():
    assert DATA.keys() == MODELS.keys()


@pytest.mark.parametrize("name", MODELS)
def test_the_options_of_a_model_are_options_of_a_run_and_go_through_its_file(name, tmp_path):
    model = MODELS[name]
    assert {option.name for option in fields(model.Options)} <= {f.name for f in fields(RunConfig)}
    config = RunConfig(model=name, base_dim=4, preset="paper-cf").effective("rating")
    assert options_of(config) == model.Options()
    assert config.bands == model.bands
    few = RunConfig(model=name, base_dim=4).effective("rating", train_rows=10, num_ids=9)
    chosen = asdict(model.auto(replace(facts_of(ratings()), train_rows=10, num_ids=9)))
    others = {"from_baseline"}  # only if the model contains that of the task
    assert {n: v for n, v in asdict(options_of(few)).items() if n not in others} == {
        n: v for n, v in chosen.items() if n not in others
    }
    (tmp_path / "run.toml").write_text(few.to_toml())
    assert options_of(read_config(tmp_path / "run.toml")) == options_of(few)


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
        with pytest.raises(
            ValueError, match=f"'{name}' takes two features .*: use --model dcn or deepfm or dlrm$"
        ):
            check_fits(RunConfig(model=name), dataset)
        check_fits(RunConfig(model="dlrm"), dataset)


class Constant(Model):
    def __init__(self, value):
        super().__init__()
        self.value = nn.Parameter(torch.tensor(value))

    @classmethod
    def build(cls, plan, facts, options, drawn, layer=None):
        return cls(facts.constant)

    def forward(self, batch):
        return self.value.expand(len(batch.target))


def test_a_new_model_is_one_class(tmp_path, monkeypatch):
    monkeypatch.setattr("mixdim.models.base.MODELS", MODELS.copy())
    register("constant", takes=ANY_FEATURES, bands=2)(Constant)
    train_run(
        RunConfig(data=str(ratings().path), model="constant", temperature=0.0, base_dim=2, epochs=1),
        tmp_path / "run",
    )
    with pytest.raises(ValueError, match="must be one of dcn, deepfm, dlrm, mf, ncf, constant, got 'gb"):
        RunConfig(model="gbdt").effective("rating")
