"""`mixdim train --distributed`: two processes train as one, are killed, go on, and refuse."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import commands_of_ranks
import pytest
import torch
import two_ranks as two
from ranks import ONE_THREAD, needs_torchrec
from small_folder import write_small_folder

import mixdim
from mixdim.cli.main import run as run_command
from mixdim.data import Dataset
from mixdim.lab.synthetic.generate import generate_criteo_like
from mixdim.tasks import task_of
from mixdim.training.checkpoint import open_checkpoint

pytestmark = needs_torchrec
FILE = commands_of_ranks.__file__


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("distributed") / "data"
    generate_criteo_like(folder, rows=3000, scale=0.0002)
    return folder


CASES = [("sgd", 64, 40), ("sgd", 501, 12), ("sgd", 1, 5), ("adagrad", 501, 6)]


@pytest.fixture(scope="module")
def stepped(ranks, data, tmp_path_factory):
    """What two ranks found in each case."""
    out = tmp_path_factory.mktemp("stepped")
    found = ranks.run(FILE, "dlrm_steps", 2, str(data), str(out), CASES)[0]
    return dict(zip(CASES, found, strict=True))


@pytest.mark.parametrize("case", CASES)
def test_dlrm_on_two_ranks_trains_as_on_one(stepped, data, case):
    outputs, losses = stepped[case]
    optimizer, batch_size, steps = case
    tolerance = {"sgd": 1e-6, "adagrad": 1e-4}[optimizer]
    dataset = Dataset(data)
    model = two.small_dlrm(mixdim.FeatureEmbeddings, dataset)
    stepping = two.OPTIMIZERS[optimizer](model.parameters(), lr=0.05)
    task, expected, epoch = task_of("binary"), [], 0
    while len(expected) < steps:
        for batch in dataset.batches("train", batch_size=batch_size, shuffle=True, epoch=epoch):
            if len(expected) == steps:
                break
            stepping.zero_grad()
            loss = task.loss(model(batch), batch.target)
            loss.backward()
            stepping.step()
            expected.append(loss.item())
        epoch += 1
    with torch.no_grad():
        plain = model(dataset.rows(slice(0, 64)))
    torch.testing.assert_close(losses, expected, rtol=0, atol=tolerance)
    torch.testing.assert_close(outputs, plain, rtol=0, atol=10 * tolerance)


def training(data, out, *more):
    return [
        *("train", "--distributed", "--data", str(data), "--out", str(out), "--lr", "0.02"),
        *("--temperature", "0", "--base-dim", "4", "--batch-size", "101", "--epochs", "3"),
        *("--bottom", "8", "--top", "8", "--checkpoint-every", "4", *more),
    ]


@pytest.fixture(scope="module")
def undisturbed(ranks, data, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    group = ranks.start(FILE, "command", 2, training(data, out))
    assert group.wait(60) == [0, 0], group.printed(0) + group.printed(1)
    return out, group.printed(0), group.printed(1)


def wait_for_step(group, out, step):
    """Wait until the run has a checkpoint of this step or a later one."""
    end = time.monotonic() + 40
    while not any(int(path.name[-8:]) >= step for path in (out / "checkpoint").glob("step-*")):
        assert time.monotonic() < end, group.printed(0)
        time.sleep(0.005)


def results(out):
    """What must not depend on kills: metrics, the best weights, and the final state of every rank."""
    summary = json.loads((out / "summary.json").read_text())
    found = {name: summary[name] for name in ("steps", "epochs_run", "validation", "test", "ranks")}
    best = out / "checkpoint" / f"best-{summary['validation']['best']['step']:08d}"
    last = out / "checkpoint" / f"step-{summary['steps']:08d}"
    files = [*best.glob("*.safetensors"), *last.glob("*.safetensors")]
    assert len(files) >= 2 * summary["ranks"]
    return found | {f"{file.parent.name}/{file.name}": file.read_bytes() for file in files}


def test_a_distributed_run_is_a_run_like_any_other(undisturbed, data, capsys):
    out, spoken, silent = undisturbed
    assert "2 ranks, of which each holds up to" in spoken
    assert "begins as its baseline" in spoken
    assert "next: mixdim evaluate" in spoken
    assert silent == ""
    assert results(out)["ranks"] == 2
    assert run_command(["evaluate", str(out), "--data", str(data), "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    told = results(out)["test"]["best"]
    assert measured["step"] == told["step"]
    for name in ("log_loss", "auc", "accuracy"):
        assert measured[name] == pytest.approx(told[name], abs=1e-6)


MODELS = {
    "dlrm": ("--bottom", "8", "--top", "8"),
    "dcn": ("--hidden", "8", "--cross-layers", "2"),
    "deepfm": ("--hidden", "8"),
}


@pytest.mark.parametrize("model", MODELS)
def test_models_of_one_layer_train_as_in_one_process_from_their_baseline_on(
    ranks, data, tmp_path, model
):
    """The same names and shapes, and the same weights, optimizer state and losses but for rounding."""
    told = [
        *("train", "--data", str(data), "--model", model, *MODELS[model], "--lr", "0.02"),
        *("--epochs", "1", "--weight-decay", "2", "--optimizer", "adagrad", "--batch-size", "101"),
        *("--temperature", "0.3", "--base-dim", "8"),
    ]
    alone, together = tmp_path / "alone", tmp_path / "together"
    group = ranks.start(FILE, "command", 2, [*told, "--distributed", "--out", str(together)])
    assert run_command([*told, "--out", str(alone)]) == 0
    assert group.wait(60) == [0, 0], group.printed(0) + group.printed(1)
    found = [json.loads((out / "summary.json").read_text()) for out in (alone, together)]
    for split in ("validation", "test"):
        mine, theirs = (summary[split]["last"]["log_loss"] for summary in found)
        assert mine == pytest.approx(theirs, abs=1e-5)
    assert found[0]["baselines"] == found[1]["baselines"]
    mine, theirs = (newest_checkpoint(out).tensors for out in (alone, together))
    assert {n: (t.shape, t.dtype) for n, t in mine.items()} == {
        n: (t.shape, t.dtype) for n, t in theirs.items()
    }
    assert mine["model/first_order.weights.table_1"].read().abs().max() > 0.1
    for name in mine.keys() - {"random/torch"}:
        # Where gradients nearly cancel, Adagrad makes large steps of what was rounded.
        difference = (mine[name].read().double() - theirs[name].read().double()).abs()
        assert difference.max() < 1e-3, name
        assert difference.mean() < 1e-6, name


def newest_checkpoint(out):
    return open_checkpoint(max((out / "checkpoint").glob("step-*")))


def test_a_run_whose_rank_is_killed_ends_in_a_line_and_goes_on(ranks, undisturbed, data, tmp_path):
    out = tmp_path / "run"
    for killed, step in ((1, 8), (0, 20)):
        more = ["--resume"] if out.exists() else []
        group = ranks.start(FILE, "command", 2, training(data, out, *more))
        wait_for_step(group, out, step)
        group.kill(killed)
        codes = group.wait(40)
        assert codes[killed] == -9
        other = 1 - killed
        assert codes[other] == 2
        line = f"mixdim: rank {other} has lost another process of the group, which ended or cannot be"
        assert line in group.printed(other)
        assert "Traceback" not in group.printed(other)
        assert not (out / "summary.json").exists()
    group = ranks.start(FILE, "command", 2, training(data, out, "--resume"))
    assert group.wait(60) == [0, 0], group.printed(0)
    assert results(out) == results(undisturbed[0])


def test_a_signal_to_any_rank_stops_all_with_a_checkpoint(ranks, data, tmp_path):
    out = tmp_path / "run"
    group = ranks.start(FILE, "command", 2, training(data, out, "--epochs", "500"))
    wait_for_step(group, out, 8)
    os.kill(group.pids[1], signal.SIGTERM)
    assert group.wait(40) == [143, 1]
    told = re.search(r"stopped by SIGTERM after step (\d+); wrote (\S+); go on", group.printed(0))
    assert json.loads((Path(told[2]) / "state.json").read_text())["body"]["step"] == int(told[1])


def test_bags_train_and_a_run_goes_on_with_another_number_of_ranks(ranks, tmp_path, capsys):
    folder, out = write_small_folder(tmp_path / "data", bags=True), tmp_path / "run"
    told = [*training(folder, out, "--batch-size", "16"), "--patience", "0"]
    assert ranks.start(FILE, "command", 3, told).wait(40) == [0, 0, 0]
    steps = results(out)["steps"]
    group = ranks.start(FILE, "command", 2, [*told, "--resume", "--epochs", "5"])
    assert group.wait(40) == [0, 0], group.printed(0)
    assert results(out)["steps"] == steps // 3 * 5
    assert results(out)["ranks"] == 2
    assert run_command(["evaluate", str(out), "--data", str(folder), "--weights", "last", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert measured["log_loss"] == pytest.approx(results(out)["test"]["last"]["log_loss"], abs=1e-6)


REFUSED = {
    ("--optimizer", "amsgrad"): "optimizer must be one of adagrad, sgd with --distributed",
    ("--model", "mf"): "--distributed trains --model dcn or deepfm or dlrm, got 'mf'",
    ("--decay-by", "time"): "decay_by must be request with --distributed: TorchRec holds the tables",
    ("--bits", "8"): "--bits and --method do not work with --distributed: leave them out",
    ("--tune",): "--tune does not work with --distributed",
    ("--base-dim", "0"): "base_dim must be",
    ("--weight-decay", "50"): "weight_decay must be at least 0 and below 1 / learning rate = 50, got",
    (): "exists already; --resume continues it, --overwrite replaces it",
}


def test_what_cannot_be_is_refused_in_a_line_by_every_rank(ranks, undisturbed, data):
    commands = [training(data, undisturbed[0], *more) for more in REFUSED]
    for found in ranks.run(FILE, "commands", 2, commands):
        for (code, lines), line in zip(found, REFUSED.values(), strict=True):
            assert (code, len(lines)) == (2, 1)
            assert line in lines[0]


def test_a_plan_that_torchrec_cannot_hold_is_refused_before_there_is_a_folder(data, tmp_path, capsys):
    plan = mixdim.plan(Dataset(data), temperature=0, base_dim=4)
    hashed = plan.with_storage(next(iter(plan)), mixdim.Hashed(4, buckets=2))
    told = ["train", "--distributed", "--data", str(data), "--plan", str(tmp_path / "plan.json")]
    for refused, storage in ((hashed, "Hashed("), (plan.quantized(), "Rows(dim=4, bits=8)")):
        refused.save(tmp_path / "plan.json")
        assert run_command([*told, "--out", str(tmp_path / "run")]) == 2
        assert f"is stored as {storage}" in capsys.readouterr().err
        assert not (tmp_path / "run").exists()


def test_a_run_that_is_finished_is_not_measured_again(ranks, undisturbed):
    before = (undisturbed[0] / "summary.json").stat().st_mtime_ns
    told = ["train", "--distributed", "--resume", "--out", str(undisturbed[0])]
    group = ranks.start(FILE, "command", 2, told)
    assert group.wait(30) == [0, 0]
    assert "is finished already" in group.printed(0)
    assert group.printed(1) == ""
    assert (undisturbed[0] / "summary.json").stat().st_mtime_ns == before


def test_without_torchrun_a_line_says_how_to_start(data, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    assert run_command(training(data, tmp_path / "run")) == 2
    assert "RANK is not set: start with torchrun" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_one_process_goes_on_with_a_run_of_many_and_many_with_a_run_of_one(
    ranks, undisturbed, data, tmp_path
):
    out, summaries = tmp_path / "run", []

    def go_on(epochs):
        if epochs == 2:
            told = ["train", "--distributed", "--resume", "--epochs", "2", "--out", str(out)]
            group = ranks.start(FILE, "command", 2, told)
            assert group.wait(60) == [0, 0], group.printed(0) + group.printed(1)
        else:
            told = [flag for flag in training(data, out) if flag != "--distributed"]
            told = [*told, "--resume", "--optimizer", "adagrad", "--epochs", str(epochs)]
            assert run_command(told) == 0
        summaries.append(json.loads((out / "summary.json").read_text()))

    for epochs in (1, 2, 3):
        go_on(epochs)
    assert [summary.get("ranks") for summary in summaries] == [None, 2, None]
    mine, theirs = newest_checkpoint(out), newest_checkpoint(undisturbed[0])
    assert mine.step == theirs.step
    for name in theirs.tensors.keys() - {"random/torch"}:
        difference = mine.tensors[name].read().double() - theirs.tensors[name].read().double()
        assert difference.abs().mean() < 1e-5, name


def test_ranks_go_on_only_with_what_they_can_train(ranks, data, tmp_path):
    out = tmp_path / "run"
    told = [flag for flag in training(data, out) if flag != "--distributed"]
    assert run_command([*told, "--optimizer", "amsgrad", "--epochs", "1"]) == 0
    again = ["train", "--distributed", "--resume", "--epochs", "2", "--out", str(out)]
    for found in ranks.run(FILE, "commands", 2, [again]):
        ((code, lines),) = found
        assert (code, len(lines)) == (2, 1)
        assert "optimizer must be one of adagrad, sgd with --distributed" in lines[0]


def test_torchrun_starts_it(undisturbed, data, tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command = [*torchrun, "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "-m", "mixdim"]
    done = subprocess.run(
        [*command, *training(data, tmp_path / "run")],
        env={**os.environ, **ONE_THREAD},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search("next: mixdim evaluate", done.stdout)
    assert results(tmp_path / "run") == results(undisturbed[0])
