"""A run that was killed and resumed ends with the same bytes as one that was left alone."""

import logging
import signal
from dataclasses import replace

import pytest
import torch

import mixdim
from mixdim.training import Checkpoints, Stopped
from resumed_runs import OPTIONS, assert_same, everything, fit_anew, without_times
from training_data import OwnModel, clicks, clicks_with_bags, ratings, raw_bytes, small_model

MODELS = {"dlrm": clicks, "mf": ratings, "ncf": ratings}


# Every optimizer keeps another state; all of them with all models: test_optimizers.py.
@pytest.mark.parametrize(
    ("name", "optimizer"), [("dlrm", "amsgrad"), ("ncf", "adam"), ("mf", "adagrad"), ("dlrm", "sgd")]
)
def test_killed_again_and_again_every_model_and_every_optimizer_ends_the_same(tmp_path, name, optimizer):
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


@pytest.mark.parametrize("data", [clicks_with_bags, clicks])
def test_with_unknown_dropout_weight_decay_and_two_falling_rates_a_kill_changes_nothing(tmp_path, data):
    dataset = data()
    batch_size = 12 if data is clicks_with_bags else 150
    options = replace(OPTIONS, unknown_dropout=True, table_lr=0.1, weight_decay=0.5)
    options = replace(options, batch_size=batch_size, schedule="cosine")

    def make():
        return small_model("dlrm", dataset)

    straight = fit_anew(make, dataset, tmp_path / "straight", options=options)
    for kill_at in (2, 6, 5, 8):
        assert (
            fit_anew(make, dataset, tmp_path / "run", kill_at=kill_at, resume=True, options=options)
            is None
        )
    resumed = fit_anew(make, dataset, tmp_path / "run", resume=True, options=options)
    assert_same(resumed, tmp_path / "run", straight, tmp_path / "straight")
    changes = {"unknown_dropout": False}, {"weight_decay": 0.0}, {"schedule": "linear"}
    for number, change in enumerate(changes):
        without = replace(options, **change)
        plain = fit_anew(make, dataset, tmp_path / f"plain-{number}", options=without)
        assert raw_bytes(plain[0]) != raw_bytes(straight[0])


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


@pytest.mark.usefixtures("usual_signals")
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
    (newest / "rank-00000.safetensors").write_bytes(b"")
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


def test_what_a_kill_left_of_an_old_checkpoint_is_removed(tmp_path):
    """The last thing that a run does to its checkpoints is to remove old ones: no save follows."""
    dataset = ratings()
    fit_anew(lambda: OwnModel(dataset), dataset, tmp_path)
    before = everything(tmp_path)
    left = tmp_path / "checkpoint" / "step-00000001"
    left.mkdir()
    (left / "state.json").write_text("{}")
    fit_anew(lambda: OwnModel(dataset), dataset, tmp_path, resume=True)
    assert everything(tmp_path) == before
    assert not left.exists()
