"""The commands about many runs, as a user types them."""

import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from commands import complaint
from mixdim.cli import live_table
from mixdim.cli import sweep as cli_sweep
from mixdim.cli.main import run
from mixdim.runs.config import RunConfig
from mixdim.runs.sweeps.records import read_records
from mixdim.runs.sweeps.sweep import RunRequest, _solve
from mixdim.runs.sweeps.tables import sweep_table
from sweep_runs import results, wait_for
from training_data import ratings


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "run.toml").write_text("batch-size = 100\nepochs = 2\n")
    return folder


def sweep(folder, *more, budgets="1000,1500", records="records.jsonl"):
    return [
        *("sweep", "--data", str(ratings().path), "--model", "mf", "--temperatures", "0,0.3"),
        *("--budgets", budgets, "--seeds", "2", "--config", str(folder / "run.toml")),
        *("--records", str(folder / records), *more),
    ]


@pytest.fixture(scope="module")
def swept(folder):
    assert run(sweep(folder)) == 0
    return folder / "records.jsonl"


def test_a_sweep_trains_every_combination_and_prints_a_table(capsys, folder, swept):
    assert run(sweep(folder)) == 0  # nothing is left to do
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [[line[0], line[2]] for line in lines[1:5]] == [
        *(["1,000", "0"], ["1,000", "0.3"], ["1,500", "0"], ["1,500", "0.3"])
    ]
    assert lines[6][:4] == ["baselines", "on", "test:", "constant"]
    assert lines[-1][:3] == ["next:", "mixdim", "recommend"]
    records = read_records([swept])
    assert len(records) == len(swept.read_text().splitlines()) == 8
    for record in records:
        assert record.summary["num_parameters"] <= record.config["model_budget"]
    assert {record.config["seed"] for record in records} == {0, 1}


def test_an_infeasible_budget_is_named_at_the_end_with_exit_code_1(capsys, folder, swept):
    assert run(sweep(folder, budgets="10,1000")) == 1
    printed = capsys.readouterr()
    assert "failed: mf, temperature 0.3, budget 10, seed 1: model_budget of 10 parameters" in printed.err
    assert printed.out.splitlines()[1].split()[0] == "1,000"


def test_several_folders_are_taken_in_turn_by_the_seeds(capsys, folder, tmp_path):
    link = tmp_path / "other"
    link.mkdir()
    for path in ratings().path.iterdir():
        (link / path.name).symlink_to(path)
    both = f"{ratings().path},{link}"
    more = ["--data", both, "--temperatures", "0", "--seeds", "3"]
    assert run(sweep(folder, *more, budgets="1000", records="turns.jsonl")) == 0
    used = [record.config["data"] for record in read_records([folder / "turns.jsonl"])]
    assert used == [str(ratings().path.resolve()), str(link), str(ratings().path.resolve())]


def test_recommend_prints_the_choice_its_rival_and_a_command_that_works(capsys, swept, tmp_path):
    assert run(["recommend", "--records", str(swept), "--loss-within", "100%"]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[1].startswith("recommended")
    assert "this validation loss" in printed or "uniform dimensions do best here" in printed
    command = printed.splitlines()[-1].removeprefix("train it: mixdim ").split()
    assert run([*command[:-1], str(tmp_path / "run")]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    made = [record for record in read_records([swept]) if record.finished]
    recorded = {record.summary["test"]["best"]["mse"] for record in made}
    assert summary["test"]["best"]["mse"] in recorded


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["sweep", "--seeds", "0"], "seeds must be at least 1, got 0"),
        (["sweep", "--jobs", "0"], "jobs must be at least 1, got 0"),
        (["sweep", "--temperatures", "0,hot"], "--temperatures must be numbers such as 0,0.2,0.4"),
        (["sweep", "--temperatures", "2"], "temperature must be in [0, 1], got 2.0"),
        (["sweep", "--budgets", "many"], "budget must be a number of parameters"),
        (["sweep", "--budgets", "embeddings:many"], "budget must be a number of parameters"),
        (["sweep", "--budgets", "width:0"], "the width of a budget must be at least 1, got 0"),
        (
            ["sweep", "--rounding", "up"],
            "rounding must be 'power_of_two', 'integer' or 'fill', got 'up'",
        ),
        (["sweep", "--budgets", ","], "--budgets must name at least one, got ','"),
        (["sweep", "--config", "seed.toml"], "a sweep sets seed itself"),
        (["recommend"], "give either loss_within or budget"),
        (["recommend", "--loss-within", "0.1"], "--loss-within must be a percentage such as 0.1%"),
        (["recommend", "--loss-within", "x%"], "--loss-within must be a percentage such as 0.1%"),
        (["recommend", "--budget", "1"], "below all that was measured"),
        (["recommend", "--budget", "1", "--model", "ncf"], "no runs of model 'ncf': there are mf"),
        (["recommend", "--budget", "1", "--data", "x"], "no runs on x"),
    ],
)
def test_mistakes_are_one_line_with_exit_code_2(
    capsys, folder, swept, tmp_path, monkeypatch, command, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "seed.toml").write_text("seed = 3")
    name, *options = command
    full = sweep(folder, *options) if name == "sweep" else [name, "--records", str(swept), *options]
    assert message in complaint(capsys, *full)


def test_what_is_noted_about_progress_is_shown_as_it_is(monkeypatch):
    shown = Console(file=io.StringIO(), force_terminal=True, width=120)
    monkeypatch.setattr(live_table, "Console", lambda stderr: shown)
    with live_table.live_table([], sweep_table) as (progress, _):
        progress("runs", 1, 3, "no feature [/x] in [red]")
    assert "no feature [/x] in [red]" in shown.file.getvalue()


def test_budgets_of_embeddings_are_equal_and_what_is_spent_of_them_is_shown(capsys, folder):
    more = ["--seeds", "1", "--budgets", "width:3,embeddings:6kB"]
    assert run(sweep(folder, *more, records="embeddings.jsonl")) == 0
    printed = capsys.readouterr()
    lines = [line.split() for line in printed.out.splitlines()[1:5]]
    assert [line[0] for line in lines] == ["width:3"] * 2 + ["embeddings:6kB"] * 2
    assert [line[2] for line in lines] == ["0", "0.3", "0", "0.3"]
    assert "runs: 0 of 4, " in printed.err  # which is no terminal
    assert "now mf, temperature 0, budget width:3, seed 0" in printed.err
    records = read_records([folder / "embeddings.jsonl"])
    limits = [3 * sum(ratings().cardinalities.values()), 1500]
    for record, line, limit in zip(records, lines, np.repeat(limits, 2), strict=True):
        share = record.summary["embedding_bytes"] / (4 * limit)
        if line[0] == "width:3":
            share = record.summary["embedding_parameters"] / limit
        assert line[1] == f"{share:.1%}"
        assert share <= 1
    assert lines[0][1] == "100.0%"  # uniform of this width
    assert records[0].summary["base_dim"] == 3
    assert [record.config["rounding"] for record in records] == ["power_of_two", "fill"] * 2
    assert lines[1][6][0] in "+-"  # compared with uniform, whatever the rounding
    assert run(["recommend", "--records", str(folder / "embeddings.jsonl"), "--budget", "1M"]) == 0
    command = capsys.readouterr().out.splitlines()[-1]
    assert " --budget width:3 " in command or " --budget 6kB " in command


def test_earlier_sweeps_are_gone_on_with_by_the_rounding_that_they_had(folder):
    def keys(rounding):
        told = RunConfig(model="mf", rounding=rounding)
        runs = cli_sweep._runs(told, [str(ratings().path)], [0.0, 0.3], ["1000", "4kB"], [32], 1)
        return [run.key for run in _solve(runs)]

    before = [
        RunRequest(RunConfig(data=str(ratings().path), model="mf", temperature=t, seed=0), 1000)
        for t in (0.0, 0.3)
    ]
    assert keys("power_of_two") == [run.key for run in _solve(before)] * 2
    assert keys(None)[0] == keys("power_of_two")[0]  # uniform
    assert keys(None)[1] not in keys("power_of_two")


@pytest.fixture
def started(short_folder, usual_signals):
    """Starts a command as a terminal does, in a process group of its own."""

    def start(arguments):
        return subprocess.Popen(
            [sys.executable, "-m", "mixdim", *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(short_folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    yield start
    assert list(short_folder.glob("mixdim-sweep-*")) + list(short_folder.glob("pymp-*")) == []


def test_ctrl_c_while_its_processes_still_start_is_one_line(folder, started, short_folder):
    records = "interrupted.jsonl"
    with started(sweep(folder, records=records)) as process:
        wait_for(lambda: list(short_folder.glob("pymp-*")))  # where the socket of the forkserver will be
        time.sleep(random.uniform(0.0, 1.0))  # it imports torch now
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)  # returns when all processes have ended
    assert (process.returncode, out) == (130, "no run is finished yet\n")
    assert err.splitlines()[-1] == "stopped by SIGINT after 0 of 8 runs; the same command goes on"
    assert list(folder.glob(f"*{records}*")) == []


def test_sigterm_stops_it_with_the_results_so_far_and_the_same_command_goes_on(
    folder, commands, tmp_path
):
    (folder / "long.toml").write_text("batch-size = 20\nepochs = 10\npatience = 0\n")
    more = ["--config", str(folder / "long.toml"), "--temperatures", "0"]
    arguments = sweep(folder, *more, budgets="1000", records="stopped.jsonl")
    file = folder / "stopped.jsonl"
    process = commands.start(arguments, tmp_path / "log", tmp_path)
    wait_for(lambda: file.exists() and file.read_bytes().endswith(b"\n"))
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143, process.printed()
    printed = process.printed().splitlines()
    assert "stopped by SIGTERM after 1 of 2 runs; the same command goes on" in printed
    assert [line.split()[0] for line in printed if line[:1].isdigit()] == ["1,000"]
    assert list(tmp_path.glob("mixdim-sweep-*")) == []
    assert len(read_records([file])) == 1
    assert run(arguments) == 0
    assert len(read_records([file])) == 2


def by_methods(folder, methods, sizes, *more, records):
    return [
        *("sweep", "--data", str(ratings().path), "--model", "mf", "--methods", methods),
        *("--bytes", sizes),
        *("--widths", "2,4", "--seeds", "2", "--config", str(folder / "run.toml")),
        *("--records", str(folder / records), *more),
    ]


@pytest.fixture(scope="module")
def compared(folder):
    """The records of a sweep of methods, and what it printed."""
    named, out, err = ("uniform,cut", "1/5,1/16", "--bits", "32,8"), io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        assert run(by_methods(folder, *named, records="methods.jsonl")) == 0
    return folder / "methods.jsonl", SimpleNamespace(out=out.getvalue(), err=err.getvalue())


def test_methods_are_compared_at_equal_bytes_and_one_is_recommended(capsys, compared):
    file, printed = compared
    assert printed.err.startswith("the uniform reference is the run of mixdim train ")
    assert "\nuniform is not possible in 1/16 (" in printed.err
    compared = [
        "1/1 uniform",
        "1/5 uniform",
        "1/5 cut",
        "1/5 uniform, 8 bits",
        "1/5 cut, 8 bits",
        "1/16 cut",
        "1/16 uniform, 8 bits",
        "1/16 cut, 8 bits",
    ]
    named = [re.findall(r"1/\d+ +\w+(?:, 8 bits)?", line) for line in printed.out.splitlines()]
    assert [re.sub(" +", " ", name) for names in named for name in names] == compared
    records = read_records([file])
    for record in records:
        assert record.summary["embedding_bytes"] <= int(record.config["budget"][:-1])
        assert ("before_quantizing" in record.summary) == (record.config["bits"] == 8)
    assert {record.config["seed"] for record in records} == {0, 1}
    assert run(["recommend", "--records", str(file), "--loss-within", "50%"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert " --method " in printed.out.splitlines()[-1]


def test_a_killed_sweep_of_methods_loses_and_doubles_nothing(folder, compared, commands, tmp_path):
    arguments = by_methods(folder, "uniform,cut", "1/5", records="killed.jsonl")
    file = folder / "killed.jsonl"
    # The first kill is among the widths that are tried, the second among the winners' other seeds.
    for enough in (2, 5):
        process = commands.start(arguments, tmp_path / "log", tmp_path)
        wait_for(lambda: file.exists() and file.read_bytes().count(b"\n") >= enough)  # noqa: B023
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert run(arguments) == 0
    made, alone = results(read_records([file])), results(read_records([compared[0]]))
    assert len(file.read_bytes().splitlines()) == len(made) == 7
    assert made == {key: alone[key] for key in made}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--methods", "cut"], "--methods takes --bytes, and neither --budgets nor --temperatures"),
        (["--bytes", "1/8"], "give --budgets, or --methods and --bytes"),
        ([], "give --budgets, or --methods and --bytes"),
        (["--methods", "magic", "--bytes", "1/8"], "method must be one of uniform, mixed, octaves"),
        (["--methods", "cut", "--bytes", "huge"], "a size must be a number of bytes"),
        (["--methods", "cut", "--bytes", "1/8", "--widths", "two"], "--widths must be numbers such as"),
        (
            ["--methods", "cut", "--bytes", "1/8", "--bits", "8,7"],
            "bits must be 1, 2, 3, 4, 5, 6, 8 or 32, got 7",
        ),
        (
            ["--methods", "cut", "--bytes", "1/8", "--bits", "int8"],
            "--bits must be numbers such as 32,8",
        ),
        (["--methods", "cut", "--bytes", "1/8", "--widths", "0"], "widths must be at least 1, got 0"),
    ],
)
def test_mistakes_with_methods_are_one_line(capsys, tmp_path, more, message):
    records = ["--records", str(tmp_path / "r.jsonl"), "--data", str(ratings().path)]
    assert message in complaint(capsys, "sweep", *records, *more)
