"""What ends a run before its time: losses that are not finite, signals, a full disk, another process."""

import errno
import signal
from dataclasses import replace

import pytest
import torch
from torch import nn

import mixdim
from fitted_guesses import OPTIONS, Guess, saved_steps
from mixdim.training import Checkpoints, DivergedError, Stopped, checkpoint
from training_data import Turning, ratings, small_model


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(("step", "good"), [(1, 0), (6, 4), (7, 6), (20, 18)])
def test_a_loss_that_is_not_finite_stops_with_the_step_and_the_last_good_checkpoint(
    tmp_path, value, step, good
):
    model = Turning(small_model("mf", ratings()), step=step, value=value)
    expected = (
        rf"after step {step - 1}: the loss is {value}; the last good .*step-{good:08d}\. A smaller lr"
    )
    with pytest.raises(DivergedError, match=expected):
        mixdim.fit(model, ratings(), options=OPTIONS, checkpoint_every=2, out=tmp_path)
    assert Checkpoints(tmp_path / "checkpoint").newest().step == good


def test_without_a_checkpoint_divergence_says_so():
    with pytest.raises(DivergedError, match="after step 2: the loss is nan; there is no checkpoint"):
        mixdim.fit(Turning(Guess(), step=3), ratings(), options=OPTIONS)


def test_the_last_good_checkpoint_is_never_a_damaged_one(tmp_path, caplog):
    with pytest.raises(DivergedError):
        mixdim.fit(
            Turning(Guess(), step=7), ratings(), options=OPTIONS, checkpoint_every=2, out=tmp_path
        )
    (tmp_path / "checkpoint" / "step-00000006" / "state.json").unlink()
    with pytest.raises(DivergedError, match=r"after step 4: .* checkpoint is .*step-00000004\."):
        mixdim.fit(
            Turning(Guess(), step=1),
            ratings(),
            options=replace(OPTIONS, checkpoint_every=2),
            out=tmp_path,
            resume=True,
        )
    assert "trying the checkpoint before it" in caplog.text


class BadGradient(nn.Module):
    """The loss stays finite while the gradient of one step is not; an evaluation may not see it."""

    def __init__(self, *, step, seen):
        super().__init__()
        self.weight, self.step, self.seen, self.calls = nn.Parameter(torch.ones(3)), step, seen, 0

    def forward(self, batch):
        self.calls += self.training
        used = self.weight if self.training or self.seen else self.weight[:1]
        # sqrt has an infinite slope at 0: 0 * inf is a gradient that is not a number.
        bad = self.training and self.calls == self.step
        shift = (self.weight[1] * 0).sqrt() if bad else 0.0
        return used.sum().expand(len(batch.target)) + shift


@pytest.mark.parametrize("optimizer", ["amsgrad", "adam", "adagrad", "sgd"])
@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize(("step", "every"), [(5, 1), (6, 2), (8, 1), (8, 100)])  # 8: an evaluation
def test_weights_that_are_not_finite_never_get_into_a_checkpoint(tmp_path, optimizer, seen, step, every):
    model = BadGradient(step=step, seen=seen)
    options = replace(OPTIONS, optimizer=optimizer, checkpoint_every=every)
    with pytest.raises(DivergedError, match=rf"after step ({step - 1}|{step}): .* not finite"):
        mixdim.fit(model, ratings(), options=options, out=tmp_path)
    kept = list((tmp_path / "checkpoint").glob("*-*"))
    assert kept
    for path in kept:
        tensors = checkpoint.open_checkpoint(path).tensors
        assert all(tensor.read().isfinite().all() for tensor in tensors.values())
    assert saved_steps(tmp_path)[-1] < step


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("call", [3, 8, 9, 10])  # in the first epoch, at its end, and in evaluations
def test_a_signal_stops_the_run_after_a_checkpoint(tmp_path, number, call):
    calls = []

    def progress(stage, done, total, note):
        calls.append(stage)
        if len(calls) == call:
            signal.raise_signal(number)

    with pytest.raises(Stopped) as stopped:
        mixdim.fit(
            small_model("mf", ratings()), ratings(), options=OPTIONS, out=tmp_path, progress=progress
        )
    assert stopped.value.signal_name == number.name
    assert stopped.value.step == calls.count("training")
    assert stopped.value.checkpoint.name == f"step-{stopped.value.step:08d}"
    assert Checkpoints(tmp_path / "checkpoint").newest().step == stopped.value.step
    assert str(stopped.value.checkpoint) in str(stopped.value)


def test_a_full_disk_stops_the_run_with_one_error(tmp_path, monkeypatch):
    def full(path, tensors):
        raise OSError(errno.ENOSPC, "No space left on device")

    mixdim.fit(Guess(), ratings(), options=OPTIONS, epochs=1, out=tmp_path)
    monkeypatch.setattr(checkpoint, "write_tensors", full)
    with pytest.raises(OSError, match=r"cannot write the checkpoint .*: No space left on device"):
        mixdim.fit(Guess(), ratings(), options=OPTIONS, epochs=2, out=tmp_path, resume=True)
    assert saved_steps(tmp_path) == [8]
    assert Checkpoints(tmp_path / "checkpoint").newest().step == 8


def test_a_folder_in_which_another_process_trains_is_left_alone(tmp_path):
    mixdim.fit(Guess(), ratings(), options=OPTIONS, epochs=1, out=tmp_path)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    busy = pytest.raises(OSError, match="another process is at work in")
    with Checkpoints(tmp_path / "checkpoint").alone(), busy:
        mixdim.fit(Guess(), ratings(), options=OPTIONS, epochs=2, out=tmp_path, resume=True)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    mixdim.fit(Guess(), ratings(), options=OPTIONS, epochs=2, out=tmp_path, resume=True)
