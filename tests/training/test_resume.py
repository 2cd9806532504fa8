"""A run that was killed and resumed ends with the same bytes as one that was left alone."""

import hashlib
import json
import logging
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

import mixdim
from mixdim.cli.main import run
from mixdim.data import Dataset
from mixdim.data.generate import generate_movielens_like
from mixdim.training import CheckpointError, Checkpoints, Stopped, preset
from mixdim.training.options import OPTIMIZERS
from training_data import OwnModel, clicks, ratings, raw_bytes, small_model

# 6 steps an epoch, an evaluation after 3 and 6 of them, and steps without a checkpoint between.
OPTIONS = replace(
    preset("cf"),
    batch_size=150,
    epochs=2,
    lr=0.05,
    patience=None,
    evaluations_per_epoch=2,
    checkpoint_every=4,
)
MODELS = {"dlrm": clicks, "mf": ratings, "ncf": ratings}
TIMES = {"seconds", "train_seconds", "journal_length"}


class Kill(BaseException):
    """Like a kill: nothing more is written."""


class Killer:
    """A progress callback that kills at its `at`-th call; it is called in every step and evaluation."""

    def __init__(self, at=None):
        self.at, self.calls = at, 0

    def __call__(self, *told):
        self.calls += 1
        if self.calls == self.at:
            raise Kill


def fit_anew(make, dataset, out, *, kill_at=None, resume=False, options=OPTIONS, seed=3):
    """What a new process would do; returns the model, what came out, and the number of calls."""
    torch.manual_seed(seed)
    model, killer = make(), Killer(kill_at)
    try:
        fitted = mixdim.fit(model, dataset, options=options, out=out, resume=resume, progress=killer)
    except Kill:
        return None
    return model, fitted, killer.calls


def without_times(record):
    return {name: value for name, value in record.items() if name not in TIMES}


def everything(out):
    """What a run leaves: the bytes of its tensors, and all that was told, without times."""
    files = sorted((out / "checkpoint").rglob("*.safetensors"))
    states = sorted((out / "checkpoint").rglob("state.json"))
    return {
        "tensors": {f"{file.parent.name}": file.read_bytes() for file in files},
        "states": [without_times(json.loads(path.read_bytes())["body"]) for path in states],
        "told": [
            without_times(json.loads(line)) for line in (out / "metrics.jsonl").read_text().splitlines()
        ],
    }


def assert_same(resumed, out, expected, expected_out):
    assert everything(out) == everything(expected_out)
    assert raw_bytes(resumed[0]) == raw_bytes(expected[0])
    assert (resumed[1].test, resumed[1].validation) == (expected[1].test, expected[1].validation)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_killed_again_and_again_every_model_with_every_optimizer_ends_the_same(
    tmp_path, name, optimizer
):
    dataset, options = MODELS[name](), replace(OPTIONS, optimizer=optimizer)

    def make():
        return small_model(name, dataset)

    straight = fit_anew(make, dataset, tmp_path / "straight", options=options)
    for kill_at in (2, 6, 5, 8):  # calls after the resumption: each life gets past the one before
        assert (
            fit_anew(make, dataset, tmp_path / "run", kill_at=kill_at, resume=True, options=options)
            is None
        )
    resumed = fit_anew(make, dataset, tmp_path / "run", resume=True, options=options)
    assert_same(resumed, tmp_path / "run", straight, tmp_path / "straight")


def test_a_kill_at_any_step_or_evaluation_changes_nothing(tmp_path):
    dataset = ratings()

    def make():
        return OwnModel(dataset)  # with dropout: the random state decides the weights

    straight = fit_anew(make, dataset, tmp_path / "straight")
    assert straight[2] > 12 + 4
    for kill_at in range(1, straight[2] + 1):
        out = tmp_path / str(kill_at)
        assert fit_anew(make, dataset, out, kill_at=kill_at) is None
        resumed = fit_anew(make, dataset, out, resume=True)
        assert_same(resumed, out, straight, tmp_path / "straight")


def test_a_signal_at_any_step_or_evaluation_changes_nothing(tmp_path):
    dataset = ratings()
    straight = fit_anew(lambda: OwnModel(dataset), dataset, tmp_path / "straight")
    for call in range(1, straight[2] + 1):
        out, calls = tmp_path / str(call), []

        def progress(*told, calls=calls, call=call):
            calls.append(told)
            if len(calls) == call:
                signal.raise_signal(signal.SIGTERM)

        torch.manual_seed(3)
        model = OwnModel(dataset)
        try:
            fitted = mixdim.fit(model, dataset, options=OPTIONS, out=out, progress=progress)
            stopped = (model, fitted)  # it came after the last look
        except Stopped:
            stopped = fit_anew(lambda: OwnModel(dataset), dataset, out, resume=True)
        assert raw_bytes(stopped[0]) == raw_bytes(straight[0])
        assert stopped[1].test == straight[1].test
        assert everything(out)["told"] == everything(tmp_path / "straight")["told"]
        last, expected = (Checkpoints(f / "checkpoint").newest() for f in (out, tmp_path / "straight"))
        assert without_times(last.state) == without_times(expected.state)


def test_dropout_draws_on_where_it_was_whatever_the_new_process_drew(tmp_path):
    dataset = ratings()
    straight = fit_anew(lambda: OwnModel(dataset), dataset, tmp_path / "straight")
    assert fit_anew(lambda: OwnModel(dataset), dataset, tmp_path / "run", kill_at=7) is None
    resumed = fit_anew(lambda: OwnModel(dataset), dataset, tmp_path / "run", resume=True, seed=99)
    assert_same(resumed, tmp_path / "run", straight, tmp_path / "straight")


def test_before_the_first_checkpoint_a_resumption_begins_at_the_beginning(tmp_path):
    dataset, options = ratings(), replace(OPTIONS, checkpoint_every=None)

    def make():
        return small_model("mf", dataset)

    straight = fit_anew(make, dataset, tmp_path / "straight", options=options)
    assert fit_anew(make, dataset, tmp_path / "run", kill_at=9, options=options) is None
    assert Checkpoints(tmp_path / "run" / "checkpoint").newest() is None
    resumed = fit_anew(make, dataset, tmp_path / "run", resume=True, options=options)
    assert_same(resumed, tmp_path / "run", straight, tmp_path / "straight")


def test_where_checkpoints_are_does_not_change_the_result(tmp_path):
    dataset = ratings()
    models = [
        fit_anew(lambda: OwnModel(dataset), dataset, tmp_path / str(every), options=options)[0]
        for every in (1, 5, None)
        for options in [replace(OPTIONS, checkpoint_every=every)]
    ]
    assert raw_bytes(models[0]) == raw_bytes(models[1]) == raw_bytes(models[2])


def test_from_an_older_checkpoint_if_the_newest_is_damaged(tmp_path, caplog):
    dataset = ratings()
    straight = fit_anew(lambda: OwnModel(dataset), dataset, tmp_path / "straight")
    assert fit_anew(lambda: OwnModel(dataset), dataset, tmp_path / "run", kill_at=11) is None
    newest = Checkpoints(tmp_path / "run" / "checkpoint").newest_path()
    assert newest.name == "step-00000008"
    (newest / "tensors.safetensors").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        resumed = fit_anew(lambda: OwnModel(dataset), dataset, tmp_path / "run", resume=True)
    assert "step-00000008 is damaged" in caplog.text
    assert_same(resumed, tmp_path / "run", straight, tmp_path / "straight")


def test_more_epochs_later_are_as_if_asked_for_at_once(tmp_path):
    dataset, longer = ratings(), replace(OPTIONS, epochs=3)
    straight = fit_anew(lambda: OwnModel(dataset), dataset, tmp_path / "straight", options=longer)
    fit_anew(lambda: OwnModel(dataset), dataset, tmp_path / "run")
    resumed = fit_anew(lambda: OwnModel(dataset), dataset, tmp_path / "run", resume=True, options=longer)
    assert raw_bytes(resumed[0]) == raw_bytes(straight[0])
    assert resumed[1].test == straight[1].test
    assert everything(tmp_path / "run")["told"] == everything(tmp_path / "straight")["told"]


def test_a_finished_run_resumed_says_the_same_again(tmp_path):
    dataset = ratings()
    first = fit_anew(lambda: OwnModel(dataset), dataset, tmp_path)
    before = everything(tmp_path)
    again = fit_anew(lambda: OwnModel(dataset), dataset, tmp_path, resume=True)
    assert raw_bytes(again[0]) == raw_bytes(first[0])
    assert again[1].test == first[1].test
    assert everything(tmp_path) == before


@pytest.mark.parametrize(
    "change",
    [{"lr": 0.01}, {"optimizer": "adam"}, {"batch_size": 10}, {"seed": 1}, {"shuffle": False}],
)
def test_another_option_is_refused_with_both_values(tmp_path, change):
    dataset = ratings()
    fit_anew(lambda: OwnModel(dataset), dataset, tmp_path)
    name, value = next(iter(change.items()))
    with pytest.raises(CheckpointError, match=f"is of a run with {name}=.*, not {value!r}"):
        mixdim.fit(
            OwnModel(dataset), dataset, options=replace(OPTIONS, **change), out=tmp_path, resume=True
        )


def test_another_model_or_other_data_are_refused(tmp_path):
    dataset = ratings()
    fit_anew(lambda: OwnModel(dataset), dataset, tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"of another model: 'head.weight' has shape \(1, 8\)"):
        mixdim.fit(
            OwnModel(dataset, width=5), dataset, options=OPTIONS, out=tmp_path / "run", resume=True
        )
    generate_movielens_like(tmp_path / "data", rows=1_000, scale=0.0005, seed=1)
    other = Dataset(tmp_path / "data")
    with pytest.raises(CheckpointError, match="is of a run on other data than this"):
        mixdim.fit(OwnModel(dataset), other, options=OPTIONS, out=tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t, s: t.update({"optimizer/head.bias/exp_avg": torch.zeros(7)}),
            r"is of another model: 'exp_avg' of parameter 'head.bias' must be as the parameter",
        ),
        (
            lambda t, s: t.update({"optimizer/lost/exp_avg": torch.zeros(7)}),
            r"is of another model: the optimizer has no parameter 'lost'",
        ),
        (lambda t, s: t.pop("random/torch"), "lacks a random state"),
        (lambda t, s: [s.pop("losses"), s.pop("threads")], "lacks 'threads', 'losses'"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_and_changes_nothing(tmp_path, change, message):
    dataset = ratings()
    fit_anew(lambda: OwnModel(dataset), dataset, tmp_path)
    found = Checkpoints(tmp_path / "checkpoint").newest()
    state = {name: value for name, value in found.state.items() if name != "tensors_blake2b"}
    change(found.tensors, state)
    Checkpoints(tmp_path / "checkpoint").save("step", found.step, found.tensors, state)
    model = OwnModel(dataset)
    before, drawn = raw_bytes(model), torch.get_rng_state()
    with pytest.raises(CheckpointError, match=message):
        mixdim.fit(model, dataset, options=OPTIONS, out=tmp_path, resume=True)
    assert raw_bytes(model) == before
    assert torch.equal(torch.get_rng_state(), drawn)


def test_another_number_of_threads_is_told(tmp_path, caplog):
    dataset = ratings()
    fit_anew(lambda: OwnModel(dataset), dataset, tmp_path)
    torch.set_num_threads(2)  # the fixture puts it back
    with caplog.at_level(logging.WARNING):
        fit_anew(lambda: OwnModel(dataset), dataset, tmp_path, resume=True)
    assert "the run used 1 threads and now has 2" in caplog.text


# Real processes.


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed") / "data"
    generate_movielens_like(folder, rows=4_000, scale=0.001)
    return folder


def command(data, out):
    return [
        *(sys.executable, "-m", "mixdim", "train", "--data", str(data), "--out", str(out)),
        *("--model", "mf", "--budget", "4000", "--batch-size", "32", "--epochs", "3", "--lr", "0.003"),
        *("--evaluations-per-epoch", "2", "--checkpoint-every", "3"),
    ]


def resumption(out):
    return [sys.executable, "-m", "mixdim", "train", "--resume", "--out", str(out)]


def start(arguments):
    # One thread as above, and so that the processes of this test do not wait for each other's.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    )


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    """A finished run, and the seconds until it had written its first checkpoint."""
    out, began = tmp_path_factory.mktemp("undisturbed") / "run", time.monotonic()
    process = start(command(data, out))
    wait_for_step(process, out, 0)
    begun = time.monotonic() - began
    finish(process)
    return out, begun


def finish(process):
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors


def wait_for_step(process, out, step):
    """Wait until the run has a checkpoint of this step or a later one."""
    while process.poll() is None:
        if any(int(path.name[-8:]) >= step for path in (out / "checkpoint").glob("step-*")):
            return
        time.sleep(0.005)
    raise AssertionError(f"ended with {process.returncode}: {process.communicate()[1]}")


def digests(out):
    """What must not depend on kills: the final state, the best weights, the metrics."""
    summary = json.loads((out / "summary.json").read_text())
    weights = sorted((out / "checkpoint").glob("*/tensors.safetensors"))
    best = summary["validation"]["best"]["step"]
    assert {f"step-{summary['steps']:08d}", f"best-{best:08d}"} <= {path.parent.name for path in weights}
    return {
        **{path.parent.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in weights},
        **{name: summary[name] for name in ("steps", "epochs_run", "validation", "test")},
    }


def test_a_training_killed_at_random_moments_and_resumed_ends_with_the_same_bytes(
    tmp_path, data, undisturbed
):
    expected, begun = undisturbed
    rng, out, reached = random.Random(1909), tmp_path / "run", []
    steps = digests(expected)["steps"]
    # Once while it begins, then in each quarter of the run: wherever it is some milliseconds after a
    # random step. Moments by the clock alone would miss the run on a machine that is busy or idle now.
    moments = [None, *(int(rng.uniform(i, i + 0.9) * steps / 4) for i in range(4))]
    for moment in moments:
        process = start(resumption(out) if (out / "config.toml").is_file() else command(data, out))
        if moment is None:
            time.sleep(rng.uniform(0.2, 0.8) * begun)
        else:
            wait_for_step(process, out, moment)
            time.sleep(rng.uniform(0, 0.05))
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        reached.append(max((int(p.name[-8:]) for p in (out / "checkpoint").glob("step-*")), default=0))
    assert reached == sorted(reached)
    assert len(set(reached)) >= 4
    finish(start(resumption(out)))
    assert digests(out) == digests(expected)
    assert everything(out)["told"] == everything(expected)["told"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_leaves_with_a_checkpoint_and_the_command_that_continues(
    tmp_path, data, undisturbed, number, code
):
    out = tmp_path / "run"
    process = start(command(data, out))
    wait_for_step(process, out, 30)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    line = next(line for line in errors.splitlines() if line.startswith("stopped by"))
    told = re.fullmatch(
        rf"stopped by {number.name} after step (\d+); wrote (\S+); continue with: mixdim (.*)", line
    )
    step, checkpoint, continuation = told.groups()
    assert continuation == f"train --resume --out {out}"
    assert checkpoint == str(out / "checkpoint" / f"step-{int(step):08d}")
    assert Checkpoints(out / "checkpoint").newest().step == int(step) >= 30
    assert run(continuation.split()) == 0
    assert digests(out) == digests(undisturbed[0])
