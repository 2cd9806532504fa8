import pytest

from mixdim.experiments.runs.config import RunConfig, config_of, read_config
from mixdim.training import preset


def written(tmp_path, text):
    file = tmp_path / "run.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_flags_go_before_the_file_and_the_file_before_the_preset(tmp_path):
    file = read_config(written(tmp_path, 'lr = 0.5\nepochs = 7\nmodel = "ncf"\nbase_dim = 4'))
    config = config_of({"epochs": 9, "lr": None}).over(file).effective("rating")
    assert (config.epochs, config.lr, config.batch_size) == (9, 0.5, preset("cf").batch_size)
    assert (config.model, config.hidden, config.bands) == ("ncf", (128, 128, 32), 8)


def test_false_and_zero_are_said_and_none_is_not():
    told = config_of({"shuffle": False, "patience": 0, "temperature": 0, "seed": None})
    assert told.said() == {"shuffle": False, "patience": 0, "temperature": 0.0}
    assert told.over(RunConfig(shuffle=True, patience=5, seed=3)).shuffle is False


@pytest.mark.parametrize(
    ("task", "name", "model", "bands"), [("binary", "ctr", "dlrm", 1), ("rating", "cf", "mf", 8)]
)
def test_what_was_not_said_is_the_protocol_of_the_paper(task, name, model, bands):
    config = RunConfig(budget="1M").effective(task)
    assert (config.preset, config.model, config.bands, config.temperature) == (name, model, bands, 0.3)
    assert config.training_options() == preset(name)


def test_only_clicks_with_unknown_values_that_no_training_row_has_are_learnt_with_dropout():
    told = {"base_dim": 8}
    found = RunConfig(**told).effective("binary", ["user"])
    assert (found.preset, found.unknown_dropout) == ("clicks", True)
    for config, task, untrained in [
        (RunConfig(**told), "binary", []),
        (RunConfig(**told, preset="ctr"), "binary", ["user"]),
        (RunConfig(**told, unknown_dropout=False), "binary", ["user"]),
        (RunConfig(**told), "rating", ["user"]),
    ]:
        assert config.effective(task, untrained).unknown_dropout is False
    assert RunConfig(**told, unknown_dropout=True).effective("rating").unknown_dropout is True
    assert found.training_options() == preset("clicks")


def test_the_temperature_is_left_to_be_solved_from_budget_and_base_dim():
    assert RunConfig(budget="1M", base_dim=8).effective("rating").temperature is None
    assert RunConfig().effective("rating").temperature is None  # plan() says what is missing
    assert RunConfig(base_dim=8, temperature=0.0).effective("rating").temperature == 0


def test_patience_0_never_stops_early():
    assert RunConfig(base_dim=8, patience=0).effective("rating").training_options().patience is None
    assert RunConfig(base_dim=8).effective("rating").training_options().patience == 5


@pytest.mark.parametrize("task", ["binary", "rating"])
def test_an_effective_config_is_read_back_as_it_was(tmp_path, task):
    told = {"binary": {"bottom": (8, 4), "top": ()}, "rating": {"biases": True, "slice_by": "user"}}
    config = RunConfig(data="/a b/ü", budget="2^15", lr=1e-3, **told[task]).effective(task)
    again = read_config(written(tmp_path, config.to_toml()))
    assert again == config
    assert again.effective(task) == config


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
        ({"model": "gbdt"}, "model must be one of dlrm, mf, ncf, got 'gbdt'"),
        ({"model": ""}, "model must be one of dlrm, mf, ncf, got ''"),
        ({"preset": ""}, "preset must be one of ctr, cf, clicks, got ''"),
        ({"preset": "nlp"}, "preset must be one of ctr, cf, clicks, got 'nlp'"),
        ({"model": "mf", "hidden": (8,)}, "hidden is no option of model 'mf'; it has mean, biases"),
        ({"model": "dlrm", "biases": True}, "biases is no option of model 'dlrm'; it has bottom, top"),
    ],
)
def test_options_that_do_not_go_together_are_refused(told, message):
    with pytest.raises(ValueError, match=message):
        RunConfig(**told).effective("rating")
