"""How long a run says that it will still take, by a clock that only its own work moves."""

import itertools
import time
from dataclasses import replace

import pytest
from torch import nn

import mixdim
from fitted_guesses import OPTIONS, Guess
from mixdim.training.forecast import Forecast
from mixdim.training.options import preset
from mixdim.training.schedule import Schedule
from training_data import ratings

FIRST_STEP, STEP, MEASURED_BATCH = 60.0, 3.0, 5.0  # seconds


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Slow(nn.Module):
    """A guess whose steps and measured batches take their time."""

    def __init__(self, clock):
        super().__init__()
        self.guess, self.clock, self.calls = Guess(), clock, itertools.count()

    def forward(self, batch):
        if self.training:
            self.clock.now += STEP if next(self.calls) else FIRST_STEP
        else:
            self.clock.now += MEASURED_BATCH
        return self.guess(batch)


def test_the_time_left_is_that_of_all_epochs_evaluations_and_tests(monkeypatch, tmp_path):
    clock, told = Clock(), []
    monkeypatch.setattr(time, "perf_counter", clock)

    def progress(stage, done, total, note):
        if stage == "training":
            told.append((clock.now, note.seconds_left))

    options = replace(OPTIONS, epochs=5, evaluations_per_epoch=2, patience=None, lr=1e-9)
    mixdim.fit(Slow(clock), ratings(), options=options, out=tmp_path, progress=progress)
    assert [left for _, left in told[:2]] == [None, None]  # the first step only warms up
    # Of each, the evaluation of the last step is no part of what is left, and the test is one pass
    # where the last weights are the best; until a split was measured, its speed is a guess.
    for now, left in told[4:]:
        assert left == pytest.approx(clock.now - now, abs=3 * MEASURED_BATCH)
    assert told[2][1] == pytest.approx(clock.now - told[2][0], rel=0.5)


@pytest.mark.parametrize("evaluations", [1, 3, 5, 9])
def test_evaluations_until_a_step_are_those_of_counting(evaluations):
    options = replace(preset("paper-cf"), batch_size=4, epochs=3, evaluations_per_epoch=evaluations)
    schedule = Schedule(19, options)  # 5 steps
    for step in range(schedule.total_steps + 1):
        counted = sum(schedule.evaluates_after(one) for one in range(step + 1))
        assert schedule.evaluations_until(step) == counted


def test_data_without_validation_rows_has_a_forecast_too():
    forecast = Forecast(Schedule(100, replace(preset("paper-cf"), batch_size=10, epochs=1)), 0, 0)
    for seconds in (9.0, 1.0, 1.0):
        forecast.steps.add(10, seconds)
        forecast.measuring.add(0, 1.0)
    assert forecast.seconds_left(3, 3) == pytest.approx(7.0)
