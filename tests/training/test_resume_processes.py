"""`mixdim train` as a process that is killed or signalled, and resumed."""

import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time

import pytest

from forked_commands import ONE_THREAD
from mixdim.lab.synthetic.generate import generate_movielens_like
from mixdim.training import Checkpoints
from resumed_runs import everything

pytestmark = pytest.mark.usefixtures("usual_signals")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed") / "data"
    generate_movielens_like(folder, rows=2_600, scale=0.001)
    return folder


def training(data, out):
    return [
        *("train", "--data", str(data), "--out", str(out)),
        *("--model", "mf", "--budget", "4000", "--batch-size", "32", "--epochs", "3", "--lr", "0.003"),
        *("--evaluations-per-epoch", "2", "--checkpoint-every", "3"),
    ]


def resumption(out):
    return ["train", "--resume", "--out", str(out)]


@pytest.fixture(scope="module")
def undisturbed(data, commands, tmp_path_factory):
    """A finished run, and the seconds until it had written its first checkpoint."""
    folder, began = tmp_path_factory.mktemp("undisturbed"), time.monotonic()
    process = commands.start(training(data, folder / "run"), folder / "log")
    wait_for_step(process, folder / "run", 0)
    begun = time.monotonic() - began
    assert process.wait() == 0, process.printed()
    return folder / "run", begun


def wait_for_step(process, out, step):
    """Wait until the run has a checkpoint of this step or a later one."""
    while process.poll() is None:
        if any(int(path.name[-8:]) >= step for path in (out / "checkpoint").glob("step-*")):
            return
        time.sleep(0.005)
    raise AssertionError(f"ended with {process.returncode}")


def digests(out):
    """What must not depend on kills: the final state, the best weights, the metrics."""
    summary = json.loads((out / "summary.json").read_text())
    weights = sorted((out / "checkpoint").glob("*/*.safetensors"))
    best = summary["validation"]["best"]["step"]
    assert {f"step-{summary['steps']:08d}", f"best-{best:08d}"} <= {path.parent.name for path in weights}
    return {
        **{path.parent.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in weights},
        **{name: summary[name] for name in ("steps", "epochs_run", "validation", "test")},
    }


def test_a_training_killed_at_random_moments_and_resumed_ends_with_the_same_bytes(
    tmp_path, data, commands, undisturbed
):
    expected, begun = undisturbed
    rng, out, log, reached = random.Random(1909), tmp_path / "run", tmp_path / "log", []
    steps = digests(expected)["steps"]
    # Once while it begins, then in each quarter of the run: wherever it is some milliseconds after a
    # random step. Moments by the clock alone would miss the run on a machine that is busy or idle now.
    moments = [None, *(int(rng.uniform(i, i + 0.9) * steps / 4) for i in range(4))]
    for moment in moments:
        begins = not (out / "config.toml").is_file()
        process = commands.start(training(data, out) if begins else resumption(out), log)
        if moment is None:
            time.sleep(rng.uniform(0.2, 0.8) * begun)
        else:
            wait_for_step(process, out, moment)
            time.sleep(rng.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        reached.append(max((int(p.name[-8:]) for p in (out / "checkpoint").glob("step-*")), default=0))
    assert reached == sorted(reached)
    assert len(set(reached)) >= 4
    assert commands.start(resumption(out), log).wait() == 0, log.read_text()
    assert digests(out) == digests(expected)
    assert everything(out)["told"] == everything(expected)["told"]


def started_by_a_user(arguments, log):
    """A process that imports everything anew, so that Ctrl-C is what a user's would be."""
    with log.open("a") as printed:
        return subprocess.Popen(
            [sys.executable, "-m", "mixdim", *arguments],
            stdout=printed,
            stderr=printed,
            env={**os.environ, **ONE_THREAD},
        )


def test_a_signal_leaves_with_a_checkpoint_and_the_command_that_continues(
    tmp_path, data, commands, undisturbed
):
    out, arguments = tmp_path / "run", training(data, tmp_path / "run")
    for number, code, moment, start in [
        (signal.SIGINT, 130, 30, started_by_a_user),
        (signal.SIGTERM, 143, 150, commands.start),
    ]:
        log = tmp_path / number.name
        process = start(arguments, log)
        wait_for_step(process, out, moment)
        process.send_signal(number)
        assert process.wait(timeout=60) == code, log.read_text()
        line = next(line for line in log.read_text().splitlines() if line.startswith("stopped by"))
        told = re.fullmatch(
            rf"stopped by {number.name} after step (\d+); wrote (\S+); continue with: mixdim (.*)", line
        )
        step, checkpoint, continuation = told.groups()
        assert continuation == f"train --resume --out {out}"
        assert checkpoint == str(out / "checkpoint" / f"step-{int(step):08d}")
        assert Checkpoints(out / "checkpoint").newest().step == int(step) >= moment
        arguments = continuation.split()
    assert commands.start(arguments, tmp_path / "log").wait() == 0
    assert digests(out) == digests(undisturbed[0])
