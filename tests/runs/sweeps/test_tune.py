import json
import shutil
from dataclasses import replace

from commands import complaint, output
from mixdim.runs.config import RunConfig
from mixdim.runs.sweeps import sweep
from mixdim.runs.sweeps.records import read_records
from mixdim.runs.sweeps.tune import trials_of, tune
from small_runs import trained
from sweep_runs import ALONE, timeless
from training_data import ratings

pytestmark = ALONE
FEW = ("--model", "mf", "--base-dim", "4", "--batch-size", "100", "--epochs", "4")


def told(**options):
    few = {"model": "mf", "base_dim": 4, "batch_size": 100, "epochs": 4}
    return RunConfig.of(**{"data": str(ratings().path), **few, **options})


def test_the_best_in_validation_is_trained_and_all_that_was_tried_is_told(capsys, tmp_path, monkeypatch):
    out = tmp_path / "run"
    train = ("train", "--data", ratings().path, *FEW, "--tune", "--out", out)
    printed = output(capsys, *train).out
    trials = read_records([trials_of(out)])
    losses = {one.config["penalty"]: one.summary["validation"]["best"]["mse"] for one in trials}
    assert list(losses) == [0.65, 0.9, 1.3, 1.8, 2.6]
    assert {one.config["epochs"] for one in trials} == {1}
    chosen = min(losses, key=losses.get)
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["penalty"], summary["epochs"]) == (chosen, 4)
    assert summary["tuning"]["chosen"] == {"penalty": chosen}
    tried = {one["penalty"]: one["validation"]["mse"] for one in summary["tuning"]["tried"]}
    assert tried == losses
    assert f"penalty {chosen:g} was chosen of 5 that were tried, by validation alone" in printed
    # It is the run that is told to have this weight decay, and a second call makes no trial again.
    alone = trained(told(penalty=chosen), tmp_path / "alone").summary
    assert {**timeless(summary), "tuning": None} == {**timeless(alone), "tuning": None}
    monkeypatch.setattr(sweep, "Worker", None)  # who would train
    found = tune(told(), out)
    assert found.config.penalty == chosen
    assert found.tried == summary["tuning"]
    # Of a run that was stopped after its tuning, the resumption tells the same.
    (out / "summary.json").unlink()
    shutil.rmtree(out / "checkpoint")
    output(capsys, "train", "--resume", "--out", out)
    assert json.loads((out / "summary.json").read_text())["tuning"] == summary["tuning"]


def test_what_cannot_be_tuned_is_refused_before_anything_is_tried(capsys, tmp_path):
    train = ("train", "--data", ratings().path, *FEW, "--tune", "--out", tmp_path / "run")
    assert "give --tune or --penalty, not both" in complaint(capsys, *train, "--penalty", "1")
    without = (*train, "--preset", "paper-cf", "--weight-decay", "1")
    assert "give --tune or --weight-decay, not both" in complaint(capsys, *without)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "something").touch()
    assert "exists already" in complaint(capsys, *train)
    assert not trials_of(tmp_path / "run").exists()


def test_a_trial_that_fails_is_told_and_the_others_count():
    def failing(runs, records, progress):
        summaries = [None, {"validation": {"best": {"mse": 0.5}}}]
        return [
            Result({"penalty": run.config.penalty}, summary, None if summary else "diverged")
            for run, summary in zip(runs, summaries, strict=True)
        ]

    lines = []
    found = tune(
        told(),
        ratings().path.parent / "none",
        tried={"penalty": (0.0, 0.5)},
        echo=lines.append,
        sweep=failing,
    )
    assert found.config == replace(told(), penalty=0.5)
    assert "  penalty 0: failed: diverged" in lines
    assert lines[-1] == "chosen: penalty 0.5, the best in validation of 1 that were tried"


class Result:
    def __init__(self, config, summary, error):
        self.config, self.summary, self.error = config, summary, error
