"""What a run does where its config says nothing."""

from dataclasses import replace

import pytest

from mixdim.models import MODELS
from mixdim.runs.config import RunConfig, read_config, run_options
from mixdim.runs.resolution import without_data
from mixdim.training import auto_options, preset
from training_data import clicks, ratings


def test_flags_go_before_the_file_and_the_file_before_the_preset(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('lr = 0.5\nepochs = 7\nmodel = "ncf"\nbase_dim = 4')
    flags = RunConfig.of(epochs=9, lr=None)
    config = flags.merged_with(read_config(file)).resolved_for("rating", train_rows=40_000)
    assert (config.epochs, config.lr, config.batch_size) == (9, 0.5, 256)
    assert (config.model, config.bands) == ("ncf", 8)
    assert config.model_options == {"hidden": (128, 128, 32), "mean": True}


@pytest.mark.parametrize(
    ("task", "name", "model", "bands"),
    [("binary", "paper-ctr", "dlrm", 1), ("rating", "paper-cf", "mf", 8)],
)
def test_the_protocols_of_the_paper_have_their_names(task, name, model, bands):
    config = RunConfig(budget="1M", preset=name).resolved_for(task)
    assert (config.preset, config.model, config.bands, config.temperature) == (name, model, bands, 0.3)
    assert config.training_options() == preset(name)
    assert config.model_options == vars(MODELS[model].Options())


@pytest.mark.parametrize(("task", "model"), [("binary", "dlrm"), ("rating", "mf")])
def test_what_is_not_given_is_chosen_from_the_data_and_written_down(task, model):
    config = RunConfig(budget="1M").resolved_for(task, ["user"], train_rows=40_000)
    assert (config.preset, config.model) == ("auto", model)
    chosen = auto_options(
        task, 40_000, untrained_unknown=["user"], shows_vectors=MODELS[model].shows_vectors
    )
    assert config.training_options() == chosen
    assert config.init == ("aligned" if chosen.penalty else "xavier")
    assert config.resolved_for(task, train_rows=7) == config  # nothing is chosen again
    own = {"epochs": 3, "weight_decay": 0.0, "patience": 0, "unknown_dropout": False}
    changed = RunConfig(budget="1M", **own).resolved_for(task, ["user"], train_rows=40_000)
    assert {name: getattr(changed, name) for name in own} == own
    with pytest.raises(ValueError, match="preset auto chooses from the data: say how many train_rows"):
        RunConfig(budget="1M").resolved_for(task)


def test_ids_that_share_rows_get_a_weaker_penalty_unless_it_is_said():
    def penalty(method, **given):
        config = RunConfig(method=method, budget="78KB", base_dim=16, **given)
        return config.resolved_for("rating", train_rows=40_000).penalty

    assert penalty("hashed") == penalty("double-hashed") == penalty("quotient-remainder") == 0.4
    assert penalty("mixed") == penalty("cut") == 1.3
    assert penalty("hashed", penalty=2.0) == 2.0


@pytest.mark.parametrize("dataset", [clicks, ratings])
def test_paths_are_absolute_once_a_config_is_resolved_on_data(dataset, monkeypatch):
    folder = dataset().path.resolve()
    monkeypatch.chdir(folder.parent)
    config = RunConfig(data=folder.name, plan="p.json").resolved(dataset())
    assert (config.data, config.plan) == (str(folder), str(folder.parent / "p.json"))
    assert RunConfig(base_dim=8).resolved(dataset()).plan is None


@pytest.mark.parametrize("name", ["auto", "paper-cf"])
@pytest.mark.parametrize("model", [None, *MODELS])
def test_without_data_only_what_data_decides_is_left_out(name, model):
    config = without_data(RunConfig(model=model, base_dim=8, preset=name))
    assert config.optimizer == "amsgrad"
    whole = RunConfig(model=model, base_dim=8, preset=name).resolved_for("rating", train_rows=9)
    left = whole.given().keys() - config.given().keys()
    from_data = {option for option, declared in run_options().items() if declared.from_data}
    if name == "auto":
        assert whole.given().keys() & from_data - {"table_lr"} <= left | {"table_lr"}
        assert left <= from_data | ({"model", "bands", "mean", "biases"} if model is None else set())
    elif model is not None:
        assert config == whole
    assert config.given().items() <= whole.given().items()


def test_dlrm_is_chosen_narrow_for_few_rows_and_has_first_order_weights_unless_bytes_are_compared():
    few, many = (
        RunConfig(base_dim=8).resolved_for("binary", train_rows=n).model_options for n in (10**5, 10**8)
    )
    assert (few["bottom"], few["top"], few["first_order"]) == ((64, 32), (64, 32), True)
    assert (many["bottom"], many["top"], many["first_order"]) == ((512, 256, 64), (512, 256), True)
    method = RunConfig(method="cut", budget="9kB").resolved_for("binary", train_rows=10**5)
    assert method.model_options["first_order"] is False


def test_a_model_begins_as_its_baseline_by_default_where_it_contains_it():
    def begins(task="rating", num_ids=3, **given):
        config = RunConfig.of(base_dim=8, **given)
        found = config.resolved_for(task, train_rows=100, num_ids=num_ids)
        return found.model_options.get("from_baseline")

    assert begins() is begins(num_ids=2) is begins("binary") is begins("binary", num_ids=2) is True
    assert begins(model="ncf") is None
    assert begins("binary", model="dcn") is begins("binary", model="deepfm") is True
    assert begins("binary", model="mf") is begins("binary", model="mf", num_ids=2) is True
    of_mf = (
        "from_baseline of model 'mf' needs mean and biases and data with the task 'binary' or 'rating'"
    )
    of_dlrm = "from_baseline of model 'dlrm' needs first_order and data with the task 'binary'"
    others = (
        ({"biases": False}, of_mf),
        ({"mean": False}, of_mf),
        ({"model": "dlrm"}, of_dlrm),
        ({"task": "binary", "first_order": False}, of_dlrm),
        ({"model": "deepfm"}, "from_baseline of model 'deepfm' needs data with the task 'binary'"),
    )
    for given, message in others:
        assert begins(**given) is False
        with pytest.raises(ValueError, match=f"^{message}$"):
            begins(**given, from_baseline=True)
    assert begins(preset="paper-cf") is begins("binary", preset="paper-ctr") is False
    with pytest.raises(ValueError, match="from_baseline is no option of model 'ncf'"):
        begins(model="ncf", from_baseline=True)


def test_an_optimizer_for_which_weight_decay_was_not_measured_goes_without_unless_told():
    config = RunConfig(base_dim=8, optimizer="adagrad").resolved_for("rating", train_rows=100)
    assert config.training_options().weight_decay == 0
    assert replace(config, weight_decay=0.1).training_options().weight_decay == 0.1


@pytest.mark.parametrize("task", ["binary", "rating"])
@pytest.mark.parametrize(
    ("given", "untrained", "dropout"),
    [
        ({}, ["user"], True),
        ({}, [], False),
        ({"preset": "paper-ctr"}, ["user"], False),
        ({"preset": "paper-cf", "unknown_dropout": True}, [], True),
        ({"unknown_dropout": False}, ["user"], False),
    ],
)
def test_only_data_with_unknown_values_that_no_training_row_has_is_learnt_with_dropout(
    task, given, untrained, dropout
):
    config = RunConfig(base_dim=8, **given).resolved_for(task, untrained, train_rows=9)
    assert config.unknown_dropout is dropout


@pytest.mark.parametrize(
    ("given", "temperature"),
    [
        ({"budget": "1M", "base_dim": 8}, None),  # it is solved
        ({}, 0),  # uniform
        ({"base_dim": 8}, 0.3),
        ({"base_dim": 8, "temperature": 0.0}, 0),
    ],
)
def test_the_temperature_is_left_to_be_solved_from_budget_and_base_dim(given, temperature):
    config = RunConfig(preset="paper-cf", **given).resolved_for("rating")
    assert config.temperature == temperature


def test_with_nothing_said_of_widths_they_are_16_and_served_in_4_bits():
    def chosen(**given):
        found = RunConfig.of(model="dlrm", **given).resolved_for("binary", train_rows=1000)
        return found.temperature, found.base_dim, found.budget, found.bits

    assert chosen() == (0.0, 16, None, 4)
    assert chosen(bits=32) == (0.0, 16, None, 32)
    assert chosen(base_dim=16) == (0.3, 16, None, 32)
    assert chosen(budget="4MB") == (0.3, None, "4MB", 32)


@pytest.mark.parametrize(("budget", "wanted"), [("4000B", False), ("16000B", True), ("1000", True)])
def test_first_order_weights_take_at_most_a_quarter_of_a_budget_in_bytes_unless_wanted(budget, wanted):
    config = RunConfig.of(model="dlrm", budget=budget)
    how = {"train_rows": 1000, "num_ids": 1000}
    assert config.resolved_for("binary", **how).model_options["first_order"] == wanted
    own = RunConfig.of(model="dlrm", budget=budget, first_order=True)
    assert own.resolved_for("binary", **how).model_options["first_order"]


@pytest.mark.parametrize(
    ("widths", "mean"),
    [({"temperature": 0.0, "base_dim": 16}, 16), ({"temperature": 0.0, "base_dim": 2}, 2), ({}, 16)],
)
def test_the_decay_of_tables_follows_their_mean_width_unless_it_is_given(widths, mean, monkeypatch):
    monkeypatch.setattr("mixdim.models.dlrm.FEW_FEATURES", 100)
    dataset = clicks()
    config = RunConfig.of(model="dlrm", **widths)
    found = config.resolved(dataset)
    assert found.table_decay == pytest.approx(1.5 * mean / 16, rel=0.05)
    assert found.resolved(dataset) == found
    own = replace(config, table_decay=0.7).resolved(dataset)
    assert own.table_decay == 0.7


def test_patience_0_never_stops_early():
    config = RunConfig(base_dim=8, preset="paper-cf")
    assert replace(config, patience=0).resolved_for("rating").training_options().patience is None
    assert config.resolved_for("rating").training_options().patience == 5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": "gbdt"}, "model must be one of dcn, deepfm, dlrm, mf, ncf, got 'gbdt'"),
        ({"model": ""}, "model must be one of dcn, deepfm, dlrm, mf, ncf, got ''"),
        ({"preset": ""}, "preset must be one of auto, paper-ctr, paper-cf, clicks, got ''"),
        ({"preset": "nlp"}, "preset must be one of auto, paper-ctr, paper-cf, clicks, got 'nlp'"),
        ({"model": "mf", "hidden": (8,)}, "hidden is no option of model 'mf'; it has mean, biases"),
        ({"model": "dlrm", "biases": True}, "biases is no option of model 'dlrm'; it has bottom, top"),
        ({"plan": "p", "base_dim": 8}, "give plan or base_dim, not both: a plan has its widths"),
        ({"method": "cut", "bands": 8}, "give method or bands, not both: a method chooses its widths"),
        ({"method": "cut"}, "a method needs a budget in bytes, such as 4MB"),
        ({"bits": 7}, "bits must be 1, 2, 3, 4, 5, 6, 8 or 32, got 7"),
        ({"bands": 10**9}, "bands of a run must be at most 1,024, got 1000000000: each is a table"),
    ],
)
def test_options_that_do_not_go_together_are_refused(given, message):
    for resolve in (without_data, lambda config: config.resolved_for("rating", train_rows=9)):
        with pytest.raises(ValueError, match=message):
            resolve(RunConfig.of(**given))


def test_clicks_of_few_features_are_trained_with_decay_by_time():
    def resolved(features, **told):
        names = tuple(map(str, range(features)))
        config = RunConfig.of(base_dim=8, **told)
        return config.resolved_for("binary", train_rows=1_000_000, features=names)

    two = resolved(2)
    assert (two.decay_by, two.schedule, two.epochs, two.patience) == ("time", "linear", 8, 0)
    assert (two.table_lr, two.table_decay, two.weight_decay) == (0.01, 1.5, 0.3)
    assert two.model_options["vectors"] is True
    assert two.init == "aligned"
    own_rate = resolved(2, lr=0.01)  # a flag changes what it names
    assert (own_rate.decay_by, own_rate.lr, own_rate.table_lr) == ("time", 0.01, 0.01)
    as_before = [resolved(9), resolved(2, vectors=False), resolved(2, model="dcn")]
    for other in (*as_before, resolved(2, optimizer="adagrad")):
        assert (other.decay_by, other.schedule, other.table_decay) == ("request", "constant", None)
    ratings = RunConfig.of(model="dlrm", base_dim=8).resolved_for(
        "rating", train_rows=1_000_000, features=("a", "b")
    )
    assert (ratings.decay_by, ratings.model_options["vectors"]) == ("request", False)
    one_decay = resolved(2, weight_decay=0.7)
    assert (one_decay.decay_by, one_decay.weight_decay, one_decay.table_decay) == ("time", 0.7, None)
