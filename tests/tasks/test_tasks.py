import math

import numpy as np
import pytest
import torch

from mixdim.models import MODELS
from mixdim.tasks import BINARY, RATING, TASKS, metrics, task_of
from mixdim.training import preset

CLICK_METRICS = ("log_loss", "accuracy", "auc", "calibration", "calibration_error")
TARGETS = {"binary": [1.0, 0.0, 0.0, 1.0, 0.0], "rating": [4.0, 2.5, 5.0, 1.0, 3.0]}


def test_every_task_of_a_prepared_folder_is_known_by_its_name():
    assert all(task_of(name).name == name for name in TASKS)
    with pytest.raises(ValueError, match="task must be one of binary, rating, got 'ranking'"):
        task_of("ranking")


@pytest.mark.parametrize("task", TASKS.values())
def test_what_a_task_names_is_there(task):
    assert preset(task.paper_preset).optimizer == "amsgrad"
    assert task.default_model in MODELS
    assert set(task.curve_metrics) < task.metrics.keys() - {task.objective}


@pytest.mark.parametrize("task", TASKS.values())
def test_the_loss_of_training_is_the_objective(task):
    outputs, targets = torch.tensor([0.5, -1.0, 2.0, 0.0, 3.0]), TARGETS[task.name]
    loss = task.loss(outputs, torch.tensor(targets)).item()
    assert loss == pytest.approx(task.measure(outputs.numpy(), targets)[task.objective], rel=1e-6)


@pytest.mark.parametrize("task", TASKS.values())
def test_no_constant_has_less_loss_than_the_constant_output_and_it_predicts_the_mean(task):
    targets = TARGETS[task.name]
    mean = sum(targets) / len(targets)
    constant = task.constant_output(mean)

    def loss(output):
        return task.measure([output] * len(targets), targets)[task.objective]

    assert all(loss(constant) < loss(constant + off) for off in (-0.1, -1e-3, 1e-3, 0.1))
    predicted = task.prediction(torch.tensor([constant], dtype=torch.float64))
    assert predicted.item() == pytest.approx(mean)


@pytest.mark.parametrize("task", TASKS.values())
def test_outputs_come_back_from_predictions_and_are_finite_for_sure_ones(task):
    outputs = torch.linspace(-8, 8, 9, dtype=torch.float64)
    torch.testing.assert_close(task.output_of(task.prediction(outputs)), outputs)
    assert task.output_of(torch.tensor([0.0, 1.0])).isfinite().all()


@pytest.mark.parametrize("task", TASKS.values())
def test_labels_are_the_targets_that_metrics_take(task):
    for target in (0.0, 0.5, 1.0, 7.0):
        if task.labels is None or target in task.labels:
            task.measure([0.0], [target])
        else:
            with pytest.raises(ValueError, match="targets must be 0 or 1"):
                task.measure([0.0], [target])


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_the_constant_of_clicks_that_are_all_alike_is_finite(share):
    assert abs(BINARY.constant_output(share)) == pytest.approx(math.log(1e6), rel=1e-6)


def test_measure_gives_the_metrics_of_its_task_as_plain_numbers():
    logits, targets = np.array([0.5, -1.0, 2.0], np.float32), np.array([1, 0, 0], np.float32)
    expected = {name: getattr(metrics, name)(logits, targets) for name in CLICK_METRICS}
    answer = BINARY.measure(logits, targets)
    assert answer == {"rows": 3, **expected}
    assert list(answer) == ["rows", *CLICK_METRICS]
    assert {type(value) for value in answer.values()} == {int, float}

    answer = RATING.measure(logits, targets)
    of_ratings = {name: getattr(metrics, name)(logits, targets) for name in ("mse", "rmse", "mae")}
    assert answer == {"rows": 3, **of_ratings}
    assert {type(value) for value in answer.values()} == {int, float}


def test_measure_of_one_row():
    assert RATING.measure([4.0], [3.5]) == {"rows": 1, "mse": 0.25, "rmse": 0.5, "mae": 0.5}
    one = BINARY.measure([0.0], [0])
    assert one == {
        "rows": 1,
        "log_loss": math.log(2),
        "accuracy": 1.0,
        "auc": None,
        "calibration": None,
        "calibration_error": 0.5,
    }


@pytest.mark.parametrize(("task", "names"), [(BINARY, CLICK_METRICS), (RATING, ("mse", "rmse", "mae"))])
def test_every_metric_of_no_rows_is_none(task, names):
    assert task.measure(np.array([], np.float32), []) == {"rows": 0, **dict.fromkeys(names)}


def test_outputs_that_are_not_finite_are_counted_and_placed():
    outputs = np.array([0.5, 1.0, np.inf, np.nan, -np.inf], np.float32)
    with pytest.raises(ValueError, match=r"outputs must be finite, got 3 values .* first inf at row 2"):
        BINARY.measure(outputs, np.zeros(5))
    with pytest.raises(
        ValueError, match="outputs must be finite, got 1 value that is not: nan at row 0"
    ):
        RATING.measure([float("nan"), 1.0], [0.0, 0.0])
    with pytest.raises(
        ValueError, match="targets must be finite, got 1 value that is not: nan at row 1"
    ):
        RATING.measure([1.0, 1.0], [0.0, float("nan")])


def test_binary_targets_are_zero_or_one_and_ratings_are_any_number():
    with pytest.raises(ValueError, match=r"targets must be 0 or 1, got 0\.5 at row 1"):
        BINARY.measure([0.0, 0.0, 0.0], [1, 0.5, 2])
    for wrong in (2, -1):
        with pytest.raises(ValueError, match=f"targets must be 0 or 1, got {wrong} at row 0"):
            BINARY.measure([0.0], [wrong])
    assert RATING.measure([0.5], [0.5])["mse"] == 0
    assert BINARY.measure([3.0, -3.0], [True, False])["accuracy"] == 1


@pytest.mark.parametrize("task", TASKS.values())
def test_outputs_and_targets_are_vectors_of_one_length(task):
    with pytest.raises(ValueError, match="outputs and targets must have one length, got 1 and 2"):
        task.measure([0.0], [0, 1])
    with pytest.raises(ValueError, match=r"outputs must have one dimension, got shape \(2, 1\)"):
        task.measure([[0.0], [0.0]], [0, 1])
    with pytest.raises(ValueError, match=r"targets must have one dimension, got shape \(\)"):
        task.measure([0.0], 1)
    with pytest.raises(TypeError, match="outputs must be numbers, got <U1 values"):
        task.measure(["a"], [1])


def test_metrics_leave_their_arguments_as_they_were():
    logits, targets = np.array([2.0, -1.0, 0.5]), np.array([1.0, 0.0, 1.0])
    BINARY.measure(logits, targets)
    RATING.measure(logits, targets)
    assert logits.tolist() == [2.0, -1.0, 0.5]
    assert targets.tolist() == [1.0, 0.0, 1.0]


def test_checked_rows_come_back_in_float64():
    rows = BINARY.rows(np.array([0.5], np.float32), np.array([1], np.int8), "outputs")
    assert [column.dtype for column in rows] == [np.float64, np.float64]
