"""`mixdim reproduce`, as a user types it."""

import dataclasses

import pytest
import typer
from typer.testing import CliRunner

from mixdim.cli.lab import reproduce
from mixdim.cli.main import run
from mixdim.lab.reproduce import reproduce as module
from mixdim.runs.sweeps.sweep import SweepStopped
from paper_records import click_record

app = typer.Typer()
app.command()(reproduce)


def output(*arguments, code=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_a_figure_is_made_and_told_in_words(tmp_path):
    printed = output("fig1", "--out", tmp_path / "out")
    assert printed.startswith("fig1: The layer as matrices\n  paper: Each block")
    assert "  here: Uniform width 3 has 10,200 parameters" in printed
    assert "next: " not in printed  # without runs there is nothing to report
    assert (tmp_path / "out" / "fig1.png").stat().st_size > 1000
    assert (tmp_path / "out" / "fig1.svg").stat().st_size > 1000


def test_smoke_trains_and_draws_a_figure_of_the_paper(tmp_path):
    printed = output("fig3c", "--out", tmp_path, "--jobs", "2", "--records", tmp_path / "runs.jsonl")
    assert "temperature 0.4: training 0." in printed
    assert "movielens-like" in printed
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == 4
    page = tmp_path / "report.html"
    said = f"--records {tmp_path / 'runs.jsonl'} --figures {tmp_path} --out {page}"
    assert printed.endswith(f"next: mixdim report {said}\n")
    run(["report", *said.split()])
    assert "MF: training and test loss" in page.read_text()


def test_failed_runs_are_named_and_give_exit_code_1(tmp_path, monkeypatch):
    failed = dataclasses.replace(click_record(), status="failed", summary=None, error="no memory")
    monkeypatch.setattr(module, "reproduce", lambda *_, **__: module.Reproduction((), (failed,)))
    assert "failed: dlrm, run" in output("fig1", "--out", tmp_path, code=1)


@pytest.mark.parametrize(("signal_name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_stopped_sweep_says_how_to_go_on(tmp_path, monkeypatch, signal_name, code):
    def stopped(*_, **__):
        raise SweepStopped(signal_name, 3, 9)

    monkeypatch.setattr(module, "reproduce", stopped)
    assert "the same command goes on from here" in output("fig1", "--out", tmp_path, code=code)
