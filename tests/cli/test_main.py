import json
import os
import sys
import threading
from pathlib import Path

import pytest

import mixdim
from commands import complaint, output
from mixdim.__main__ import main

PLAN = ("plan", "--cardinalities", "user=60,item=37", "--temperature", "0.3", "--base-dim", "8")


def test_plan_prints_the_table(capsys):
    expected = mixdim.plan({"user": 60, "item": 37}, temperature=0.3, base_dim=8)
    assert output(capsys, *PLAN).out == f"{expected}\n"


def test_plan_says_what_each_of_some_processes_would_hold(capsys):
    plan = ("plan", "--cardinalities", "a=900000,b=37", "--temperature", "0", "--base-dim", "8")
    *_, header, first, second, _ = output(capsys, *plan, "--shards", "2").out.splitlines()
    assert header.split() == ["rank", "tables", "adagrad", "state", "on", "every", "rank", "in", "all"]
    for rank, line in enumerate((first, second)):  # 900,000 * 8 * 4 bytes, and as much state
        assert line.split() == f"{rank} 14.4 MB 14.4 MB 2.4 kB 28.8 MB".split()
    line = complaint(capsys, *plan, "--shards", "2", "--json")
    assert line == "mixdim: give --shards or --json, not both: a plan does not say who holds it\n"
    assert "must be" in complaint(capsys, *plan, "--shards", "0")


def test_plan_prints_and_saves_json_and_show_reads_it(capsys, tmp_path):
    saved = tmp_path / "plan.json"
    printed = output(capsys, *PLAN, "--json", "--save", str(saved)).out
    assert printed == saved.read_text()
    plan = mixdim.Plan.from_json(printed)
    assert plan["item"].num_rows == 37
    assert output(capsys, "show", str(saved)).out == f"{plan}\n"


def test_plan_solves_what_is_not_given(capsys):
    arguments = ("plan", "--cardinalities", "60,37", "--json", "--budget")
    by_bytes = json.loads(output(capsys, *arguments, "2kB", "--temperature", "0.3").out)
    by_count = json.loads(output(capsys, *arguments, "1300", "--base-dim", "16").out)
    assert by_bytes["base_dim"] == mixdim.plan([60, 37], temperature=0.3, budget=500).base_dim
    assert by_count["temperature"] == mixdim.plan([60, 37], base_dim=16, budget=1300).temperature


def test_plan_reads_counts_and_cuts_bands(capsys, tmp_path):
    file = tmp_path / "counts.json"
    file.write_text('{"item": [9, 9, 3, 3, 3, 3, 3, 3], "day": 7}')
    file_options = (
        "plan",
        "--plan-from",
        str(file),
        "--temperature",
        "0.5",
        "--base-dim",
        "8",
        "--json",
    )
    whole = mixdim.Plan.from_json(output(capsys, *file_options).out)
    assert [len(feature.blocks) for feature in whole.features] == [1, 1]
    assert "feature 'day' need its counts" in output(capsys, *file_options, "--bands", "2", code=2).err
    file.write_text('{"item": [9, 9, 3, 3, 3, 3, 3, 3]}')
    banded = mixdim.Plan.from_json(output(capsys, *file_options, "--bands", "2").out)
    assert [block.size for block in banded.blocks] == [2, 6]


def test_a_plan_is_served_in_the_bits_asked_for(capsys, tmp_path):
    plan = mixdim.plan({"user": 60, "item": 37}, temperature=0.3, base_dim=8)
    assert output(capsys, *PLAN, "--bits", "8").out == f"{plan.quantized(8)}\n"
    assert output(capsys, *PLAN, "--bits", "32").out == f"{plan}\n"
    file = tmp_path / "counts.json"
    file.write_text(json.dumps({"item": list(range(1000, 0, -1))}))
    by_method = ("plan", "--plan-from", str(file), "--method", "mixed", "--base-dim", "4")
    small = mixdim.Plan.from_json(
        output(capsys, *by_method, "--bits", "8", "--budget", "4500B", "--json").out
    )
    assert [block.storage for block in small.blocks] == [mixdim.Rows(4, bits=8)]
    assert 4000 < small.nbytes() <= 4500 < small.trainable().nbytes()


def test_ids_per_sample_change_the_widths(capsys):
    more = json.loads(output(capsys, *PLAN, "--json", "--ids-per-sample", "user=10").out)
    assert more["features"][0]["blocks"][0]["row_prob"] == pytest.approx(10 / 60)


def test_plot_draws_a_picture(capsys, tmp_path):
    for suffix, magic in ((".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")):
        picture = tmp_path / f"widths{suffix}"
        output(capsys, *PLAN, "--plot", str(picture))
        assert picture.read_bytes().startswith(magic)


@pytest.mark.parametrize("option", ["--save", "--plot"])
def test_outputs_go_through_links_and_into_pipes(capsys, tmp_path, option):
    pipe, link, file = tmp_path / "pipe.svg", tmp_path / "link.svg", tmp_path / "file.svg"
    link.symlink_to(file.name)
    output(capsys, *PLAN, option, str(link))
    assert link.is_symlink()
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    output(capsys, *PLAN, option, str(pipe))
    reader.join(timeout=10)
    assert pipe.is_fifo()
    assert [len(text) for text in read] == [len(file.read_text())]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan"], "give either --cardinalities or --plan-from"),
        (["plan", "--cardinalities", "1", "--plan-from", "f.json"], "give either"),
        (["plan", "--cardinalities", "1,x"], "--cardinalities must be whole numbers"),
        (["plan", "--cardinalities", ""], "--cardinalities must be whole numbers"),
        (["plan", "--cardinalities", "a=1,a=2"], "names a feature twice"),
        (["plan", "--cardinalities", "=1"], "a feature without a name: '=1'"),
        (["plan", "--cardinalities", "9", "--temperature", "0", "--base-dim", f"{2**63}"], "below 2^63"),
        (["plan", "--cardinalities", "5"], "give two of temperature, base_dim and budget, or all three"),
        (
            ["plan", "--cardinalities", "-5", "--temperature", "0", "--base-dim", "2"],
            "at least 1, got -5",
        ),
        ([*PLAN, "--temperature", "1.5"], "temperature must be in [0, 1], got 1.5"),
        ([*PLAN, "--temperature", "hot"], "'--temperature'"),
        ([*PLAN, "--bands", "2"], "need its counts"),
        ([*PLAN, "--rounding", "up"], "rounding must be"),
        ([*PLAN, "--bits", "7"], "bits must be 1, 2, 3, 4, 5, 6, 8 or 32, got 7"),
        ([*PLAN, "--bits", "int8"], "'--bits'"),
        ([*PLAN, "--ids-per-sample", "x"], "--ids-per-sample must be a number"),
        ([*PLAN, "--ids-per-sample", "shop=1"], "unknown feature 'shop'"),
        ([*PLAN, "--save", "/nowhere/plan.json"], "there is no directory /nowhere"),
        ([*PLAN, "--plot", "widths.gif"], "must end in .png, .svg, .pdf"),
        (["plan", "--plan-from", "/nowhere.json"], "/nowhere.json: No such file or directory"),
        (["plan", "--cardinalities", "9,9", "--temperature", "0", "--budget", "17"], "is too small"),
        (["plan", "--cardinalities", "9", "--temperature", "0", "--budget", "lots"], "got 'lots'"),
        (["show", "/nowhere.json"], "/nowhere.json: No such file or directory"),
        (["show", str(Path(__file__))], "test_main.py: not a plan"),
        (["--nonsense"], "--nonsense"),
        (["nonsense"], "nonsense"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(capsys, arguments, message):
    assert message in complaint(capsys, *arguments)


@pytest.mark.parametrize("command", [[], ["plan"], ["show"], ["demo"], ["doctor"]])
def test_help_carries_an_example(capsys, command):
    text = output(capsys, *command, "--help").out
    assert "mixdim " + " ".join([*command, "-"])[:-1] in text
    assert "xample" in text or "Start with" in text


def test_the_version_is_an_option_too(capsys):
    assert output(capsys, "--version").out == output(capsys, "version").out == f"{mixdim.__version__}\n"


def test_doctor_says_which_kernels_are_in_use_and_why(capsys, monkeypatch):
    assert "in use: the " in output(capsys, "doctor").out
    monkeypatch.setenv("MIXDIM_KERNELS", "off")
    assert "not in use: switched off by MIXDIM_KERNELS" in output(capsys, "doctor").out


def test_without_a_command_there_is_help(capsys):
    assert "Usage: mixdim" in output(capsys).out


def test_without_typer_it_says_what_to_install(capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "mixdim.cli.main")
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    told = "mixdim: the command line needs more packages: pip install 'mixdim[all]'\n"
    assert capsys.readouterr().err == told
