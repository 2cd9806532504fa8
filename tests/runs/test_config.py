"""RunConfig: the options of a run by name, in files, and in the key that names a run."""

import json
from dataclasses import dataclass, fields, replace

import pytest

import mixdim
from mixdim._util.options import opt
from mixdim.models import base
from mixdim.runs import model_options
from mixdim.runs.config import RunConfig, comparable, read_config, run_options
from mixdim.runs.model_options import MODEL_OPTIONS
from mixdim.runs.report.chart import chart_points
from mixdim.runs.sweeps.frame import replicates
from mixdim.runs.sweeps.tables import sweep_table
from report_records import finished

CONFIG = RunConfig(data="d", model="mf", preset="paper-cf", base_dim=8).resolved_for("rating")
DECIDE_NOTHING = ("data", "checkpoint_every", "ranking_users", "tensorboard")


def written(tmp_path, text):
    file = tmp_path / "run.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_options_are_given_by_name_those_of_models_too():
    config = RunConfig.of(model="dlrm", bottom=[8], top=None, lr=1, budget=2_000, seed=None)
    assert config == RunConfig(model="dlrm", model_options={"bottom": (8,)}, lr=1.0, budget="2000")
    assert config.given() == {"model": "dlrm", "bottom": (8,), "budget": "2000", "lr": 1.0}
    assert RunConfig.of(**config.to_dict()) == config
    assert len({config, RunConfig.of(**config.given()), RunConfig()}) == 2


def test_all_options_are_declared_with_a_help_and_stand_with_their_panel():
    options = run_options()
    assert set(options) == {one.name for one in fields(RunConfig)} - {"model_options"} | {
        name for declaration in MODEL_OPTIONS.values() for name in (f.name for f in fields(declaration))
    }
    assert all(option.help.endswith(".") for option in options.values())
    panels = [option.panel for option in options.values()]
    assert sorted(panels, key=panels.index) == panels  # each in one piece


def test_false_and_zero_are_given_and_none_is_not():
    config = RunConfig.of(shuffle=False, patience=0, temperature=0, seed=None)
    assert config.given() == {"shuffle": False, "patience": 0, "temperature": 0.0}
    assert config.merged_with(RunConfig(shuffle=True, patience=5, seed=3)) == replace(config, seed=3)


def test_what_a_config_gives_goes_before_what_another_gives():
    one = RunConfig.of(lr=0.5, bottom=(8,), biases=False)
    merged = one.merged_with(RunConfig.of(lr=0.1, epochs=3, bottom=(4,), top=(4,)))
    assert merged.given() == {"lr": 0.5, "epochs": 3, "bottom": (8,), "top": (4,), "biases": False}


@dataclass(frozen=True)
class NewerOptions(MODEL_OPTIONS["mf"]):
    """The options of a model in some later version."""

    dropout: float = opt(0.5, "Share of zeros.", absent=0.0)
    layers: tuple[int, ...] = opt((8, 4), "Widths.", absent=(8, 4))


@pytest.fixture
def newer(monkeypatch):
    monkeypatch.setitem(MODEL_OPTIONS, "mf", NewerOptions)


@pytest.mark.usefixtures("newer")
def test_an_option_of_a_model_is_one_field(tmp_path):
    assert run_options()["dropout"].help == "mf: Share of zeros (default: 0.5)."
    file = read_config(written(tmp_path, "dropout = 0.25\nlayers = [2]"))
    assert file.model_options == {"dropout": 0.25, "layers": (2,)}
    assert "# mf: Widths (default: 8,4).\nlayers = [2]\n" in file.to_toml(comments=True)


def test_models_that_share_an_option_agree_in_its_kind(monkeypatch):
    shared = run_options()["mean"]
    assert shared.help == "mf, ncf: Add the mean target to every score (default: yes)."
    other = dataclass(frozen=True)(
        type("Other", (), {"__annotations__": {"mean": "float"}, "mean": opt(0.5, "A mean.")})
    )
    monkeypatch.setitem(model_options.MODEL_OPTIONS, "other", other)
    with pytest.raises(TypeError, match="mean of other must be true or false, as of mf"):
        run_options()


# Files.


@pytest.mark.parametrize("task", ["binary", "rating"])
def test_a_resolved_config_is_read_back_as_it_was(tmp_path, task):
    own = {"binary": {"bottom": (8, 4), "top": ()}, "rating": {"biases": True, "slice_by": "user"}}
    config = RunConfig.of(data="/a b/ü", budget="2^15", lr=1e-3, **own[task])
    config = config.resolved_for(task, train_rows=1_000)
    for comments in (False, True):
        again = read_config(written(tmp_path, config.to_toml(comments=comments)))
        assert again == config
        assert again.resolved_for(task, train_rows=5) == config


@pytest.mark.parametrize("model", [None, "mf", "unheard-of"])
def test_nothing_that_is_given_is_left_out_of_a_file_with_comments(tmp_path, model):
    config = RunConfig.of(model=model, bottom=(8,), biases=False)
    assert read_config(written(tmp_path, config.to_toml(comments=True))) == config


def test_a_file_may_write_names_with_hyphens_and_a_budget_as_a_number(tmp_path):
    config = read_config(written(tmp_path, "batch-size = 64\nbudget = 2_000\nlr = 1"))
    assert config == RunConfig(batch_size=64, budget="2000", lr=1.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rate = 1", "there is no option 'learning_rate'; the options are data, model"),
        ("model_options = 1", "there is no option 'model_options'"),
        ("[training]\nlr = 1", "there is no option 'training'"),
        ("lr = 'fast'", "lr must be a number, got 'fast'"),
        ("lr = true", "lr must be a number, got True"),
        ("epochs = 2.5", "epochs must be a whole number, got 2.5"),
        ("model = 3", "model must be text, got 3"),
        ("shuffle = 1", "shuffle must be true or false, got 1"),
        ("bands = 'deciles'", "bands must be a whole number or octaves, got 'deciles'"),
        ("bottom = [8, 'x']", "bottom must be a list of whole numbers, got"),
        ("lr = ", "is not TOML"),
        (b"model = '\xff'", "is not TOML"),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong_in_it(tmp_path, text, message):
    file = written(tmp_path, text)
    with pytest.raises(ValueError, match=f"^{file}") as error:
        read_config(file)
    assert message in str(error.value)


# The key of a run.


@pytest.mark.parametrize("name", [name for name in run_options() if name != "plan"])
def test_the_key_depends_on_what_decides_the_result_and_on_nothing_else(name):
    if name in {one.name for one in fields(RunConfig)}:
        other = replace(CONFIG, **{name: "something else"})
    else:
        other = replace(CONFIG, model_options={**CONFIG.model_options, name: "something else"})
    assert (other.key("f") == CONFIG.key("f")) == (name in DECIDE_NOTHING)


def test_the_key_depends_on_the_data_and_on_the_budget_that_could_not_be_met():
    met = {CONFIG.key("f"), CONFIG.key("g")}
    found = met | {CONFIG.key("f", model_budget=budget) for budget in (1, 2)}
    assert len(found) == 4
    assert {len(key) for key in found} == {32}


def test_a_plan_counts_by_its_content_and_not_by_its_file(tmp_path):
    plan = mixdim.plan({"item": 4}, counts={"item": [1, 2, 9, 9]}, bands=2, temperature=0.2, base_dim=4)
    others = [
        mixdim.plan({"item": 4}, temperature=0, base_dim=2),
        replace(plan, named_orders=()),
        plan.with_storage("item", mixdim.Hashed(2, buckets=1)),
        plan.with_storage("item", mixdim.Hashed(2, buckets=2)),
    ]
    path, again = tmp_path / "plan.json", tmp_path / "again.json"
    keys = []
    for one in (plan, *others):
        one.save(path)
        again.write_text(json.dumps(json.loads(path.read_bytes())))
        keys.append({replace(CONFIG, plan=str(file)).key("f") for file in (path, again)})
        assert len(keys[-1]) == 1
    assert len(set.union(*keys)) == len(keys)
    again.write_text("{}")
    with pytest.raises(ValueError, match=r"again\.json: not a plan"):
        replace(CONFIG, plan=str(again)).key("f")


def test_new_options_leave_the_keys_of_runs_that_do_as_before(newer):
    def key(**own):
        return replace(CONFIG, model_options={**CONFIG.model_options, **own}).key("f")

    as_before = [{}, {"dropout": 0.0}, {"layers": (8, 4)}, {"dropout": 0.0, "layers": (8, 4)}]
    assert {key(**own) for own in as_before} == {CONFIG.key("f")}
    otherwise = [{"dropout": 0.5}, {"layers": (8,)}, {"layers": ()}, {"dropout": 0.5, "layers": (8,)}]
    assert len({key(**own) for own in otherwise} | {CONFIG.key("f")}) == 5


def test_an_option_that_is_given_up_leaves_the_keys_of_runs_without_it(monkeypatch):
    before = CONFIG.key("f")
    for module, name in ((model_options, "MODEL_OPTIONS"), (base, "MODELS")):
        left = {one: value for one, value in getattr(module, name).items() if one != "dcn"}
        monkeypatch.setattr(module, name, left)
    assert "cross_rank" not in run_options()
    assert CONFIG.key("f") == before


@pytest.mark.usefixtures("newer")
def test_records_from_before_an_option_are_compared_with_those_since():
    old = finished(0.75, seed=0, temperature=0.0)
    new = [finished(0.7, seed=seed, temperature=0.0, dropout=0.0, layers=None) for seed in (1, 2)]
    other = finished(0.6, seed=0, temperature=0.0, dropout=0.5, layers=[8, 4])
    assert [len(same) for same in replicates([old, *new, other])] == [3, 1]
    assert len(chart_points([old, *new, other])) == 2
    assert comparable(old.config) == {**comparable(new[0].config), "seed": 0}
    mixed = finished(0.5, seed=1, dropout=0.0, layers=[8, 4])
    assert "-0.2000" in sweep_table([old, *new, mixed])
