"""The experiments of the theory, as a user types them."""

import json

import pytest
import typer

from commands import complaint, output
from mixdim.cli import lab_theory as cli_theory
from mixdim.runs.figures import plots as figures

SMALL = {
    "two-block": ("--size", "16", "--rates", "0.45,0.4,0.35", "--seeds", "1"),
    "allocation": ("--row-sizes", "5,40", "--col-sizes", "10", "--decays", "0.8", "--seeds", "2"),
    "completion": ("--size", "10", "--rank", "1", "--feature-size", "4", "--shares", "0.4,1",
                   "--seeds", "1"),
}  # fmt: skip


@pytest.fixture
def no_pictures(monkeypatch):
    monkeypatch.setattr(figures, "save_figure", lambda figure, path: None)  # they take most of the time


@pytest.mark.parametrize("command", SMALL)
def test_a_run_leaves_records_two_pictures_and_a_table(capsys, tmp_path, command):
    out = tmp_path / "deep" / "theory"
    printed = output(capsys, "theory", command, "--out", out, *SMALL[command]).out
    names = {f"{command}.{ending}" for ending in ("jsonl", "png", "svg")}
    assert {path.name for path in out.iterdir()} == names
    lines = (out / f"{command}.jsonl").read_text().splitlines()
    assert all(isinstance(json.loads(line), dict) for line in lines)
    assert (out / f"{command}.png").read_bytes().startswith(b"\x89PNG")
    assert f"{out / command}.jsonl: {len(lines):,} records" in printed


@pytest.mark.usefixtures("no_pictures")
def test_a_rerun_replaces_the_records(capsys, tmp_path):
    output(capsys, "theory", "allocation", "--out", tmp_path, *SMALL["allocation"])
    before = (tmp_path / "allocation.jsonl").read_text()
    output(capsys, "theory", "allocation", "--out", tmp_path, *SMALL["allocation"], "--spread", "0")
    assert (tmp_path / "allocation.jsonl").read_text() != before


@pytest.mark.usefixtures("no_pictures")
def test_every_option_arrives(capsys, tmp_path):
    output(
        *(capsys, "theory", "completion", "--out", tmp_path, "--size", 8, "--rank", 2, "--features", 2),
        *("--feature-size", 5, "--tensor-rank", 1, "--shares", "0.9", "--seeds", 1),
    )
    records = [json.loads(line) for line in (tmp_path / "completion.jsonl").read_text().splitlines()]
    found = {(r["kind"], tuple(r["sizes"]), r["rank"], r["share"]) for r in records}
    assert found == {("matrix", (8, 8), 2, 0.9), ("tensor", (5, 5), 1, 0.9)}
    output(
        *(capsys, "theory", "two-block", "--out", tmp_path, "--size", 18, "--rates", "0.4"),
        *("--rare-rank", 2, "--seeds", 2),
    )
    records = [json.loads(line) for line in (tmp_path / "two-block.jsonl").read_text().splitlines()]
    assert {(r["size"], r["rate"], r["rare_rank"]) for r in records} == {(18, 0.4, 2)}
    assert {r["seed"] for r in records if r["kind"] == "need"} == {0, 1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["two-block", "--seeds", "-1"], "seeds must be at least 1, got -1"),
        (["two-block", "--rates", "0.6"], "rates must be above 0 and below 0.5, got 0.6"),
        (["two-block", "--rates", "0.3,x"], "--rates must be numbers such as 0.3,0.2, got '0.3,x'"),
        (["two-block", "--size", "20"], "size 20 is too small for rate 0.12: agnostic"),
        (["two-block", "--size", "3"], "size must be at least 4, the ranks at rate 0.3, got 3"),
        (["allocation", "--row-sizes", "5,2.5"], "--row-sizes must be whole numbers such as 50,100"),
        (["allocation", "--budgets", "0"], "budgets must be shares above 0 and below 1, got 0"),
        (["completion", "--rank", "61"], "rank must be at most 60, the size of the matrix, got 61"),
        (["completion", "--size", "many"], "--size"),
    ],
)
def test_bad_options_are_one_clear_line_and_exit_code_2(capsys, tmp_path, arguments, message):
    assert message in complaint(capsys, "theory", *arguments, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_out_that_is_a_file_is_refused_before_the_work(capsys, tmp_path):
    file = tmp_path / "file"
    file.write_text("keep")
    printed = output(capsys, "theory", "two-block", "--out", file, code=2)
    assert printed.err == f"mixdim: {file} must be a folder, but is a file\n"
    assert file.read_text() == "keep"


def test_the_commands_are_listed():
    names = typer.main.get_command(cli_theory.theory_app).commands
    assert sorted(names) == ["allocation", "completion", "two-block"]
