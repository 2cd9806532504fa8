from dataclasses import replace

import pytest

from mixdim.runs.config import RunConfig, config_of, read_config
from mixdim.training import auto_options, preset


def written(tmp_path, text):
    file = tmp_path / "run.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_flags_go_before_the_file_and_the_file_before_the_preset(tmp_path):
    file = read_config(written(tmp_path, 'lr = 0.5\nepochs = 7\nmodel = "ncf"\nbase_dim = 4'))
    config = config_of({"epochs": 9, "lr": None}).over(file).effective("rating", train_rows=40_000)
    assert (config.epochs, config.lr, config.batch_size) == (9, 0.5, 256)
    assert (config.model, config.hidden, config.bands) == ("ncf", (128, 128, 32), 8)


def test_false_and_zero_are_said_and_none_is_not():
    told = config_of({"shuffle": False, "patience": 0, "temperature": 0, "seed": None})
    assert told.said() == {"shuffle": False, "patience": 0, "temperature": 0.0}
    assert told.over(RunConfig(shuffle=True, patience=5, seed=3)).shuffle is False


@pytest.mark.parametrize(
    ("task", "name", "model", "bands"),
    [("binary", "paper-ctr", "dlrm", 1), ("rating", "paper-cf", "mf", 8)],
)
def test_the_protocols_of_the_paper_have_their_names(task, name, model, bands):
    config = RunConfig(budget="1M", preset=name).effective(task)
    assert (config.preset, config.model, config.bands, config.temperature) == (name, model, bands, 0.3)
    assert config.training_options() == preset(name)
    if model == "dlrm":
        assert (config.bottom, config.top, config.first_order) == ((512, 256, 64), (512, 256), False)


@pytest.mark.parametrize(("task", "model"), [("binary", "dlrm"), ("rating", "mf")])
def test_what_was_not_said_is_chosen_from_the_data_and_written_down(task, model):
    config = RunConfig(budget="1M").effective(task, ["user"], train_rows=40_000)
    assert (config.preset, config.model) == ("auto", model)
    chosen = auto_options(task, 40_000, untrained_unknown=["user"])
    assert config.training_options() == chosen
    assert config.effective(task, train_rows=7) == config  # nothing is chosen again
    told = {"epochs": 3, "weight_decay": 0.0, "patience": 0, "unknown_dropout": False}
    changed = RunConfig(budget="1M", **told).effective(task, ["user"], train_rows=40_000)
    assert {name: getattr(changed, name) for name in told} == told
    with pytest.raises(ValueError, match="preset auto chooses from the data: say how many train_rows"):
        RunConfig(budget="1M").effective(task)


def test_dlrm_is_chosen_narrow_for_few_rows_and_has_first_order_weights_unless_bytes_are_compared():
    few, many = (RunConfig(base_dim=8).effective("binary", train_rows=n) for n in (10**5, 10**8))
    assert (few.bottom, few.top, few.first_order) == ((64, 32), (64, 32), True)
    assert (many.bottom, many.top, many.first_order) == ((512, 256, 64), (512, 256), True)
    method = RunConfig(method="cut", budget="9kB").effective("binary", train_rows=10**5)
    assert method.first_order is False


def test_a_model_begins_as_its_baseline_by_default_where_it_contains_it():
    def begins(task="rating", num_ids=3, **told):
        config = RunConfig(base_dim=8, **told)
        return config.effective(task, train_rows=100, num_ids=num_ids).from_baseline

    assert begins() is begins("binary") is begins("binary", num_ids=2) is True
    assert begins(num_ids=2) is False  # 50 ratings for an id
    assert begins(model="ncf") is None
    assert begins("binary", model="dcn") is begins("binary", model="deepfm") is True
    of_mf = "from_baseline of model 'mf' needs mean and biases and data with the task 'rating'"
    of_dlrm = "from_baseline of model 'dlrm' needs first_order and data with the task 'binary'"
    others = (
        ({"biases": False}, of_mf),
        ({"mean": False}, of_mf),
        ({"task": "binary", "model": "mf"}, of_mf),
        ({"model": "dlrm"}, of_dlrm),
        ({"task": "binary", "first_order": False}, of_dlrm),
        ({"model": "deepfm"}, "from_baseline of model 'deepfm' needs data with the task 'binary'"),
    )
    for told, message in others:
        assert begins(**told) is False
        with pytest.raises(ValueError, match=f"^{message}$"):
            begins(**told, from_baseline=True)
    assert begins(preset="paper-cf") is begins("binary", preset="paper-ctr") is False
    with pytest.raises(ValueError, match="from_baseline is no option of model 'ncf'"):
        begins(model="ncf", from_baseline=True)


def test_an_optimizer_without_weight_decay_goes_without():
    config = RunConfig(base_dim=8, optimizer="adagrad").effective("rating", train_rows=100)
    assert config.training_options().weight_decay == 0
    with pytest.raises(ValueError, match="weight_decay must be 0 with optimizer 'adagrad'"):
        replace(config, weight_decay=0.1).training_options()


def test_only_data_with_unknown_values_that_no_training_row_has_is_learnt_with_dropout():
    told = {"base_dim": 8}
    for task in ("binary", "rating"):
        assert RunConfig(**told).effective(task, ["user"], train_rows=9).unknown_dropout is True
        for config, untrained in [
            (RunConfig(**told), []),
            (RunConfig(**told, preset="paper-ctr"), ["user"]),
            (RunConfig(**told, unknown_dropout=False), ["user"]),
        ]:
            assert config.effective(task, untrained, train_rows=9).unknown_dropout is False
    assert (
        RunConfig(**told, preset="paper-cf", unknown_dropout=True).effective("rating").unknown_dropout
        is True
    )


def test_the_temperature_is_left_to_be_solved_from_budget_and_base_dim():
    def temperature(**told):
        return RunConfig(preset="paper-cf", **told).effective("rating").temperature

    assert temperature(budget="1M", base_dim=8) is None
    assert temperature() is None  # plan() says what is missing
    assert temperature(base_dim=8, temperature=0.0) == 0


def test_patience_0_never_stops_early():
    told = RunConfig(base_dim=8, preset="paper-cf")
    assert replace(told, patience=0).effective("rating").training_options().patience is None
    assert told.effective("rating").training_options().patience == 5


@pytest.mark.parametrize("task", ["binary", "rating"])
def test_an_effective_config_is_read_back_as_it_was(tmp_path, task):
    told = {"binary": {"bottom": (8, 4), "top": ()}, "rating": {"biases": True, "slice_by": "user"}}
    config = RunConfig(data="/a b/ü", budget="2^15", lr=1e-3, **told[task])
    config = config.effective(task, train_rows=1_000)
    again = read_config(written(tmp_path, config.to_toml()))
    assert again == config
    assert again.effective(task, train_rows=5) == config


def test_a_file_may_write_names_with_hyphens_and_a_budget_as_a_number(tmp_path):
    config = read_config(written(tmp_path, "batch-size = 64\nbudget = 2_000\nlr = 1"))
    assert config == RunConfig(batch_size=64, budget="2000", lr=1.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rate = 1", "there is no option 'learning_rate'; the options are data, model"),
        ("[training]\nlr = 1", "there is no option 'training'"),
        ("lr = 'fast'", "lr must be a number, got 'fast'"),
        ("lr = true", "lr must be a number, got True"),
        ("epochs = 2.5", "epochs must be a whole number, got 2.5"),
        ("epochs = true", "epochs must be a whole number, got True"),
        ("model = 3", "model must be text, got 3"),
        ("shuffle = 1", "shuffle must be true or false, got 1"),
        ("unknown-dropout = 0.5", "unknown_dropout must be true or false, got 0.5"),
        ("bottom = 8", "bottom must be a list of whole numbers, got 8"),
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


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"model": "gbdt"}, "model must be one of dcn, deepfm, dlrm, mf, ncf, got 'gbdt'"),
        ({"model": ""}, "model must be one of dcn, deepfm, dlrm, mf, ncf, got ''"),
        ({"preset": ""}, "preset must be one of auto, paper-ctr, paper-cf, clicks, got ''"),
        ({"preset": "nlp"}, "preset must be one of auto, paper-ctr, paper-cf, clicks, got 'nlp'"),
        ({"model": "mf", "hidden": (8,)}, "hidden is no option of model 'mf'; it has mean, biases"),
        ({"model": "dlrm", "biases": True}, "biases is no option of model 'dlrm'; it has bottom, top"),
    ],
)
def test_options_that_do_not_go_together_are_refused(told, message):
    with pytest.raises(ValueError, match=message):
        RunConfig(**told).effective("rating")
