import json
import os
import signal
import struct
import threading
from dataclasses import replace
from multiprocessing import Pipe, active_children
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from mixdim.data import Dataset
from mixdim.lab.synthetic.generate import generate_movielens_like
from mixdim.runs.models import build_model
from mixdim.runs.plans import plan_of
from mixdim.runs.run import Run
from mixdim.runs.sweeps.measure import SolvedRun, train_and_measure
from mixdim.runs.sweeps.records import read_records
from mixdim.runs.sweeps.sweep import (
    InfeasibleBudgetError,
    RunRequest,
    SweepStopped,
    _solve,
    config_within,
    run_sweep,
)
from mixdim.runs.sweeps.worker import Worker
from mixdim.training import Checkpoints
from small_runs import trained
from sweep_runs import ALONE, endless, results, runs_of, timeless, told, wait_for
from training_data import clicks, ratings

pytestmark = ALONE


def num_parameters(config, dataset):
    plan = plan_of(config, dataset)
    with torch.device("meta"):  # without numbers
        model = build_model(config, plan, num_dense=dataset.num_dense, mean=0.0)
    return sum(parameter.numel() for parameter in model.parameters())


SMALL = {
    "mf": {},
    "ncf": {"hidden": (8, 4)},
    "dlrm": {"bottom": (8,), "top": (8,), "rounding": "integer"},
}


def test_clicks_are_learnt_with_unknown_dropout_unless_the_sweep_is_told_otherwise():
    config = told(clicks(), model="dlrm", base_dim=4)
    other = replace(config, preset="paper-ctr"), replace(config, unknown_dropout=False)
    asked = _solve([RunRequest(one) for one in (config, *other)])
    assert [run.config.unknown_dropout for run in asked] == [True, False, False]
    assert len({run.key for run in asked}) == 3
    solved = config_within(replace(config, base_dim=None), clicks(), 1_000_000)
    assert (solved.preset, solved.unknown_dropout) == ("auto", True)


@pytest.mark.parametrize("temperature", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("model", SMALL)
def test_the_solved_base_dim_is_the_one_that_trying_all_finds(model, temperature):
    dataset = clicks() if model == "dlrm" else ratings()
    config = told(dataset, model=model, temperature=temperature, **SMALL[model])
    tried = {
        base_dim: num_parameters(replace(config, base_dim=base_dim).resolved(dataset), dataset)
        for base_dim in range(1, 50)
    }
    most = min(cost for base_dim, cost in tried.items() if base_dim >= 40)
    budgets = {tried[1], tried[1] + 1, *(tried[b] + more for b in (2, 7, 16, 23) for more in (-1, 0))}
    for budget in (b for b in budgets if tried[1] <= b < most):
        solved = config_within(config, dataset, budget)
        assert solved.base_dim == max(b for b, cost in tried.items() if cost <= budget), budget
        assert (solved.budget, solved.temperature) == (None, temperature)
        assert solved == solved.resolved(dataset)


@pytest.mark.parametrize("model", SMALL)
def test_filling_a_budget_of_the_whole_model_keeps_base_dim_and_leaves_less_than_a_width(model):
    dataset = clicks() if model == "dlrm" else ratings()
    config = told(dataset, model=model, **{**SMALL[model], "rounding": "integer"})
    integer = config_within(config, dataset, 6_000)
    filled = config_within(replace(config, rounding="fill"), dataset, 6_000)
    assert replace(filled, rounding="integer", budget=None) == integer
    left = 6_000 - num_parameters(filled, dataset)
    narrower, wider = plan_of(integer, dataset).blocks, plan_of(filled, dataset).blocks
    assert all(a.dim <= b.dim for a, b in zip(narrower, wider, strict=True))
    one_wider = (block.size + filled.base_dim for block in wider if block.dim < filled.base_dim - 1)
    assert 0 <= left < min(one_wider, default=left + 1)


def test_a_budget_below_the_narrowest_model_says_the_smallest_feasible():
    config = told(model="ncf", hidden=(8, 4))
    smallest = num_parameters(replace(config, base_dim=1).resolved(ratings()), ratings())
    with pytest.raises(InfeasibleBudgetError, match=f"the smallest feasible is {smallest:,}, one for"):
        config_within(config, ratings(), smallest - 1)
    assert config_within(config, ratings(), smallest).base_dim == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base_dim": 4}, "give model_budget or base_dim, not both"),
        ({"budget": "2k"}, "give model_budget or budget, not both"),
        ({"temperature": 2.0}, r"temperature must be in \[0, 1\], got 2.0"),
        ({"model": "gbdt"}, "model must be one of"),
        ({"data": None}, "data is missing"),
        ({"data": "/nowhere"}, "/nowhere is not a prepared folder"),
    ],
)
def test_what_is_wrong_with_the_options_is_told_before_anything_runs(file, options, message):
    with pytest.raises((ValueError, OSError), match=message):
        run_sweep([RunRequest(told(**options), 1_500)], file)
    assert not file.exists()


def test_a_record_says_what_training_directly_says(file, tmp_path):
    run = RunRequest(told(seed=1), 1_500)
    (made,) = run_sweep([run], file)
    config = config_within(run.config, ratings(), 1_500)
    summary = trained(config, tmp_path / "run").summary
    assert timeless(made.summary) == timeless(summary)
    assert made.config["base_dim"] == summary["base_dim"]
    assert (made.config["model_budget"], made.config["budget"]) == (1_500, None)
    assert summary["num_parameters"] <= 1_500
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert timeless(made.curve) == [
        {"step": line["step"], "epoch": line["epoch"], "loss": line["validation"]["mse"]}
        for line in lines
        if line["kind"] == "validation"
    ]
    train = Run.open(tmp_path / "run").evaluate(ratings().path, split="train")
    assert made.train == {name: train[name] for name in ("rows", "mse", "rmse", "mae", "slices")}
    assert read_records([file]) == [made]


def test_clicks_have_accuracy_in_their_curve(tmp_path):
    config = told(clicks(), model="dlrm", base_dim=4, bottom=(8,), top=(8,)).resolved(clicks())
    record = train_and_measure(SolvedRun(config, "key"), tmp_path / "run")
    assert all(point.keys() >= {"loss", "accuracy"} for point in record.curve)
    assert record.curve[-1]["loss"] == record.summary["validation"]["last"]["log_loss"]
    assert record.curve[-1]["accuracy"] == record.summary["validation"]["last"]["accuracy"]


def test_measuring_a_run_opens_nothing_again(tmp_path, monkeypatch):
    monkeypatch.setattr("mixdim.runs.run.read_model", None)
    monkeypatch.setattr(Checkpoints, "newest", None)
    record = train_and_measure(SolvedRun(told(base_dim=4).resolved(ratings()), "key"), tmp_path / "run")
    assert (record.key, record.status, record.train["rows"]) == ("key", "finished", 800)


def test_finished_runs_are_skipped_and_results_do_not_depend_on_the_number_of_jobs(file, tmp_path):
    one_job = run_sweep(runs_of(), tmp_path / "one")
    run_sweep(runs_of(seeds=[1]), file)
    seen = []
    two_jobs = run_sweep(runs_of(), file, jobs=2, on_record=lambda record: seen.append(record.key))
    assert results(one_job) == results(two_jobs)
    assert [one.config["temperature"] for one in two_jobs] == [0.0, 0.3, 0.0, 0.3]
    assert len(file.read_text().splitlines()) == 4
    assert sorted(seen) == sorted(one.key for one in two_jobs)
    written = file.read_bytes()
    assert run_sweep(runs_of(), file) == two_jobs
    assert file.read_bytes() == written


def test_progress_counts_the_runs(file):
    shown = []
    run_sweep(runs_of(seeds=[0]), file, progress=lambda *told: shown.append(told[1:]))
    names = [f"now mf, temperature {temperature}, budget 1,500, seed 0" for temperature in ("0", "0.3")]
    assert shown == [(0, 2, ""), (0, 2, names[0]), (1, 2, ""), (1, 2, names[1]), (2, 2, "")]
    shown.clear()
    run_sweep(runs_of(seeds=[0]), file, progress=lambda *told: shown.append(told))
    assert shown == [("runs", 2, 2, "")]  # nothing is left to do
    assert shown[0][3].seconds_left == 0
    assert run_sweep([], file.with_name("none")) == []
    shown.clear()
    run_sweep(runs_of(), file, progress=lambda *told: shown.append(told), earlier=3, later=5)
    assert [told[1:3] for told in shown] == [(5, 12), (5, 12), (6, 12), (6, 12), (7, 12)]
    assert all(told[3].seconds_left > 0 for told in shown)  # by the runs of the first seed


def test_budgets_that_allow_the_same_base_dim_share_a_run(file):
    close = [RunRequest(told(temperature=0.0), budget) for budget in (1_500, 1_501)]
    found = run_sweep(close, file)
    assert [one.config["model_budget"] for one in found] == [1_500, 1_501]
    assert found[0].summary == found[1].summary
    assert len(file.read_text().splitlines()) == 1


def test_failures_are_recorded_while_the_others_go_on_and_are_tried_again(file):
    runs = [
        RunRequest(told(lr=1e30, optimizer="sgd", base_dim=4)),
        RunRequest(told(), 10),
        RunRequest(told(), 11),
        RunRequest(told(base_dim=4)),
    ]
    found = run_sweep(runs, file)
    assert [one.status for one in found] == ["failed", "failed", "failed", "finished"]
    assert found[0].error.startswith("DivergedError: training diverged after step")
    assert "model_budget of 10 parameters is too small" in found[1].error
    assert found[0].summary is None
    assert found[3].config["model_budget"] is None
    assert len({one.key for one in found}) == 4
    run_sweep(runs, file)
    assert len(file.read_text().splitlines()) == 7  # the three that failed, once more


def test_a_process_that_is_killed_is_a_failure(file, temporary):
    def kill_the_first():
        wait_for(lambda: list(temporary.glob("mixdim-sweep-*")))
        os.kill(active_children()[0].pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_the_first)
    killer.start()
    found = run_sweep([endless(), RunRequest(told(base_dim=4))], file)
    killer.join()
    assert found[0].error == "the process of the run was killed by SIGKILL"
    assert found[1].finished


def test_a_process_that_is_killed_while_it_tells_its_results_is_a_failure(tmp_path):
    reading, writing = Pipe(duplex=False)
    os.write(writing.fileno(), struct.pack("!i", 100) + b"the first of 100 bytes")
    writing.close()
    worker = Worker.__new__(Worker)
    worker.record_end, worker.folder = reading, str(tmp_path / "none")
    worker.run = SolvedRun(told(), "key")
    worker.process = Mock(exitcode=-signal.SIGKILL)
    assert worker.finish().error == "the process of the run was killed by SIGKILL"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_sweep_and_keeps_what_is_finished(file, number):
    first = RunRequest(told(base_dim=4))
    with pytest.raises(SweepStopped, match=f"stopped by {number.name} after 1 of 2 runs"):
        run_sweep([first, endless()], file, on_record=lambda record: os.kill(os.getpid(), number))
    assert [one.finished for one in read_records([file])] == [True]


def test_seeds_may_have_data_of_their_own(file, tmp_path):
    for seed in range(2):
        generate_movielens_like(tmp_path / f"{seed}", rows=500, scale=0.0005, seed=seed)
    datasets = [Dataset(tmp_path / f"{seed}") for seed in range(2)]
    found = run_sweep([RunRequest(told(d, seed=s), 1_000) for s, d in enumerate(datasets)], file)
    assert [one.summary["data_fingerprint"] for one in found] == [d.fingerprint for d in datasets]
    assert [Path(one.config["data"]).name for one in found] == ["0", "1"]
