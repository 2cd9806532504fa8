"""Flags are the declared options: all of them of `mixdim train`, some of them of other commands."""

import tomllib

import pytest

from commands import complaint, output
from mixdim.runs.config import RunConfig, read_config, run_options
from training_data import clicks, ratings

VALUES = {str: "abc", int: 3, float: 0.5, bool: False, tuple: (8, 4)}


def printed_config(capsys, tmp_path, *words):
    """What `--print-config` says of a run."""
    (tmp_path / "printed.toml").write_text(output(capsys, "train", *words, "--print-config").out)
    return read_config(tmp_path / "printed.toml")


def help_of(capsys, monkeypatch, command):
    """The help as one line for each that starts with a flag or is the title of a panel."""
    monkeypatch.setenv("COLUMNS", "500")
    return [line.strip("│ ") for line in output(capsys, command, "--help").out.splitlines()]


def test_the_help_of_train_has_each_option_in_its_panel_the_most_used_first(capsys, monkeypatch):
    lines = help_of(capsys, monkeypatch, "train")
    place = {
        word: number
        for number, line in reversed(list(enumerate(lines)))
        for word in (line.split()[:1] if line.startswith("--") else [line.strip("╭─╮ ")])
    }
    options = run_options()
    assert [place[option.flag] for option in options.values()] == sorted(
        place[option.flag] for option in options.values()
    )
    for option in options.values():
        line = lines[place[option.flag]]
        assert option.help in line
        assert all(flag in line.split() for flag in option.flags)
        assert place[option.panel or "Options"] < place[option.flag]
    assert [place[flag] - place["Options"] for flag in ("--data", "--out", "--config")] == [1, 2, 3]
    assert [place[flag] - place["Widths"] for flag in ("--temperature", "--base-dim", "--budget")] == [
        *(1, 2, 3)
    ]


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("sweep", ["model", "bands", "preset"]),
        ("plan", ["base_dim", "budget", "min_dim", "method"]),
        ("evaluate", ["slice_by"]),
    ],
)
def test_other_commands_have_the_same_words_for_the_same_option(capsys, monkeypatch, command, names):
    lines = help_of(capsys, monkeypatch, command)
    for name in names:
        option = run_options()[name]
        assert any(line.startswith(option.flag) and option.help in line for line in lines), name


@pytest.mark.parametrize("name", run_options())
def test_a_flag_gives_its_option_and_goes_before_the_file(capsys, tmp_path, monkeypatch, name):
    option = run_options()[name]
    value = True if option.flags == ("--distributed",) else VALUES[option.kind]
    value = "dlrm" if name == "model" else value
    monkeypatch.setattr("mixdim.cli.train._complete", lambda options: options)
    file = tmp_path / "run.toml"
    file.write_text(RunConfig.of(lr=0.25, top=(2,)).to_toml())
    found = printed_config(capsys, tmp_path, "--config", file, *option.arguments(value))
    assert found.given() == {"lr": 0.25, "top": (2,), name: value}


def test_a_printed_config_is_what_is_run(capsys, tmp_path):
    file, out = tmp_path / "run.toml", tmp_path / "run"
    file.write_text(f'data = "{ratings().path}"\nmodel = "mf"\nbase-dim = 4\nepochs = 9\nseed = 5\n')
    words = ("--config", file, "--epochs", "1")
    printed = printed_config(capsys, tmp_path, *words)
    assert (printed.epochs, printed.seed, printed.base_dim) == (1, 5, 4)
    assert (printed.preset, printed.batch_size) == ("auto", 32)  # 800 rows
    assert not out.exists()
    output(capsys, "train", *words, "--out", out)
    assert read_config(out / "config.toml") == printed
    again = printed_config(capsys, tmp_path, "--config", tmp_path / "printed.toml")
    assert again == printed


def test_a_printed_config_has_all_options_of_the_model_with_their_help(capsys):
    words = ("train", "--data", ratings().path, "--base-dim", "4", "--print-config")
    lines = output(capsys, *words).out.splitlines()
    for name, option in run_options("mf").items():
        (place,) = (n for n, line in enumerate(lines) if line.removeprefix("# ").startswith(f"{name} ="))
        assert lines[place - 1] == f"# {option.help}"
    assert "hidden" not in "\n".join(lines)


def test_without_data_a_printed_config_leaves_out_what_depends_on_it(capsys, tmp_path):
    printed = printed_config(capsys, tmp_path, "--base-dim", "4", "--lr", "0.1")
    assert printed.given() == {
        **{
            "temperature": 0.3,
            "base_dim": 4,
            "rounding": "power_of_two",
            "min_dim": 1,
        },
        **{"bits": 32, "preset": "auto", "optimizer": "amsgrad", "lr": 0.1, "shuffle": True, "seed": 0},
        "tensorboard": False,
    }


@pytest.mark.parametrize(
    ("more", "preset", "dropout"),
    [
        ([], "auto", True),
        (["--preset", "paper-ctr"], "paper-ctr", False),
        (["--preset", "clicks"], "clicks", True),
        (["--no-unknown-dropout"], "auto", False),
        (["--preset", "paper-ctr", "--unknown-dropout"], "paper-ctr", True),
    ],
)
def test_clicks_are_learnt_with_unknown_dropout_unless_the_paper_is_asked_for(
    capsys, tmp_path, more, preset, dropout
):
    printed = printed_config(capsys, tmp_path, "--data", clicks().path, "--base-dim", "4", *more)
    assert (printed.preset, printed.unknown_dropout) == (preset, dropout)


def test_many_processes_print_what_they_would_run(capsys, tmp_path):
    words = ("--data", clicks().path, "--base-dim", "4", "--distributed")
    printed = printed_config(capsys, tmp_path, *words)
    assert (printed.model, printed.optimizer, printed.distributed) == ("dlrm", "adagrad", True)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--resume"], "--print-config shows a new run: leave out --resume and --tune"),
        (["--tune"], "--print-config shows a new run: leave out --resume and --tune"),
        (["--data", "/nowhere"], "/nowhere is not a prepared folder"),
        (["--lr", "-1"], "lr must be above 0, got -1.0"),
        (["--budget", "20"], "budget of 20 parameters is too small"),
        (["--slice-by", "movie"], "slice_by must be a single-valued feature (user, item)"),
        (["--bottom", "8"], "bottom is no option of model 'mf'"),
        (["--shuffle=maybe"], "--shuffle"),
    ],
)
def test_what_could_not_be_run_is_not_printed(capsys, more, message):
    words = ("train", "--data", ratings().path, "--base-dim", "4", "--print-config", *more)
    assert message in complaint(capsys, *words)


def test_a_run_needs_a_folder(capsys):
    assert complaint(capsys, "train", "--data", ratings().path) == "mixdim: Missing option '--out'.\n"


def test_a_printed_config_is_toml(capsys):
    words = ("train", "--data", clicks().path, "--base-dim", "4", "--print-config")
    assert tomllib.loads(output(capsys, *words).out)["bottom"] == [64, 32]
