from dataclasses import replace

import pytest

from mixdim.tasks import task_of
from mixdim.training import preset


def test_presets_are_the_protocols_of_the_paper():
    ctr, cf = preset("paper-ctr"), preset("paper-cf")
    assert (ctr.optimizer, ctr.lr, ctr.batch_size, ctr.epochs) == ("amsgrad", 1e-3, 4096, 1)
    assert ctr.patience is None
    assert (cf.optimizer, cf.lr, cf.batch_size, cf.epochs) == ("amsgrad", 1e-2, 32768, 100)
    assert cf.patience == 5


def test_our_preset_for_clicks_is_the_papers_with_unknown_dropout():
    assert preset("clicks") == replace(preset("paper-ctr"), unknown_dropout=True)
    assert not preset("paper-ctr").unknown_dropout
    assert not preset("paper-cf").unknown_dropout


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizer": "adamw"}, "optimizer must be one of amsgrad, adam, adagrad, sgd, got 'adamw'"),
        ({"schedule": "step"}, "schedule must be one of constant, linear, cosine, got 'step'"),
        ({"lr": 0.0}, "lr must be above 0, got 0.0"),
        ({"lr": float("nan")}, "lr must be finite, got nan"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"evaluations_per_epoch": 0}, "evaluations_per_epoch must be at least 1, got 0"),
        ({"patience": 0}, "patience must be at least 1, got 0"),
        ({"checkpoint_every": -3}, "checkpoint_every must be at least 1, got -3"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"table_lr": 0.0}, "table_lr must be above 0, got 0.0"),
        ({"weight_decay": -1.0}, "weight_decay must be at least 0 and below 1 / .* = 100, got -1"),
        ({"weight_decay": 20.0, "table_lr": 0.05}, "weight_decay must be .* below .* = 20, got 20"),
        ({"unknown_dropout": 1}, "unknown_dropout must be true or false, got 1"),
    ],
)
def test_a_wrong_option_is_named_with_its_bound_and_value(change, message):
    with pytest.raises(ValueError, match=message):
        replace(preset("paper-cf"), **change)


@pytest.mark.parametrize("change", [{"lr": "0.1"}, {"batch_size": 2.5}, {"epochs": True}])
def test_an_option_of_the_wrong_kind_is_named(change):
    with pytest.raises(TypeError, match=f"{next(iter(change))} must be a"):
        replace(preset("paper-ctr"), **change)


def test_unknown_presets_and_tasks_are_answered_with_the_choices():
    choices = "auto, paper-ctr, paper-cf, clicks"
    with pytest.raises(ValueError, match=f"preset must be one of {choices}, got 'nlp'"):
        preset("nlp")
    with pytest.raises(ValueError, match="task must be one of binary, rating, got 'ranking'"):
        task_of("ranking")
    with pytest.raises(ValueError, match=r"preset auto is chosen from the data: auto_options\("):
        preset("auto")
