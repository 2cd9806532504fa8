import tomllib
from dataclasses import asdict, dataclass, replace

import pytest
import torch
from torch import nn

from mixdim._util.options import opt, options_of
from mixdim.models import MODELS, Model, register
from mixdim.models.base import ANY_FEATURES
from mixdim.runs.config import RunConfig, read_config, run_options
from mixdim.runs.model_options import MODEL_OPTIONS
from mixdim.runs.models import build_model, check_fits, facts_of
from mixdim.runs.models import options_of as options_of_run
from mixdim.runs.plans import plan_of
from small_runs import DATA, trained
from training_data import clicks, clicks_with_bags, ratings, raw_bytes, small_config


def built(config, dataset):
    return build_model(config, plan_of(config, dataset), num_dense=dataset.num_dense, mean=3.5)


def test_every_model_is_tried():
    assert DATA.keys() == MODELS.keys()


@pytest.mark.parametrize("name", MODELS)
def test_the_options_of_a_model_are_options_of_a_run_and_go_through_its_file(name, tmp_path):
    model = MODELS[name]
    assert vars(model.Options()).keys() <= run_options().keys()
    config = RunConfig(model=name, base_dim=4, preset="paper-cf").resolved_for("rating")
    assert options_of_run(config) == model.Options()
    assert config.bands == model.bands
    few = RunConfig(model=name, base_dim=4).resolved_for("rating", train_rows=10, num_ids=9)
    chosen = asdict(model.auto(replace(facts_of(ratings()), train_rows=10, num_ids=9)))
    others = {"from_baseline", "vectors"}  # the task decides these too
    assert {n: v for n, v in few.model_options.items() if n not in others} == {
        n: v for n, v in chosen.items() if n not in others
    }
    (tmp_path / "run.toml").write_text(few.to_toml())
    assert options_of_run(read_config(tmp_path / "run.toml")) == options_of_run(few)


def test_the_options_that_are_read_from_files_are_those_of_the_models():
    assert MODEL_OPTIONS.keys() == MODELS.keys()
    for name, model in MODELS.items():
        assert options_of(MODEL_OPTIONS[name]) == options_of(model.Options)
        from_data = {n for n, option in options_of(model.Options).items() if option.from_data}
        rows = [facts_of(ratings()), replace(facts_of(ratings()), train_rows=10**9, num_ids=1)]
        chosen = [vars(model.auto(facts)).items() for facts in rows]
        assert {n for some in chosen for n, _ in some - vars(model.Options()).items()} <= from_data


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

    @dataclass(frozen=True)
    class Options:
        shift: float = opt(0.0, "Added to the mean.", panel="Model")

    @classmethod
    def build(cls, plan, facts, options, drawn, layer=None):
        return cls(facts.constant + options.shift)

    def forward(self, batch):
        return self.value.expand(len(batch.target))


def test_a_new_model_is_one_class_with_its_options(tmp_path, monkeypatch):
    monkeypatch.setattr("mixdim.models.base.MODELS", MODELS.copy())
    register("constant", takes=ANY_FEATURES, bands=2)(Constant)
    config = RunConfig(data=str(ratings().path), model="constant", temperature=0.0, base_dim=2, epochs=1)
    for shift, config_of_shift in ((0.0, config), (2.0, RunConfig.of(shift=2).merged_with(config))):
        run = trained(config_of_shift, tmp_path / f"run-{shift}")
        assert run.summary["shift"] == shift
        written = tomllib.loads((tmp_path / f"run-{shift}" / "config.toml").read_text())
        assert (written["model"], written["shift"]) == ("constant", shift)
    with pytest.raises(ValueError, match="must be one of dcn, deepfm, dlrm, mf, ncf, constant, got 'gb"):
        RunConfig(model="gbdt").resolved_for("rating")
