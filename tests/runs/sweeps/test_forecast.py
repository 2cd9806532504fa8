"""How long a sweep says that it will still take, from runs that were measured. No run is made."""

from dataclasses import replace

import pytest

from mixdim.runs.config import RunConfig
from mixdim.runs.sweeps.forecast import Forecast
from report_records import failed, finished

WIDE = RunConfig(model="mf", data="/d", base_dim=64, epochs=3, seed=0)
NARROW = replace(WIDE, base_dim=2)


def record(config, seconds, **more):
    made = finished(
        **{**config.to_dict(), "model_budget": None, "bands": None, "rounding": None}, **more
    )
    made.summary["seconds"] = seconds
    return made


def test_a_run_takes_as_long_as_its_other_seeds_did():
    forecast = Forecast([record(WIDE, 100.0), record(replace(WIDE, seed=1), 120.0), record(NARROW, 5.0)])
    assert forecast.seconds_of(replace(WIDE, seed=2)) == pytest.approx(110.0)
    assert forecast.seconds_of(replace(NARROW, seed=2, data="/split-2")) == pytest.approx(5.0)


def test_a_run_like_no_other_takes_as_long_as_the_most_similar_ones():
    forecast = Forecast([record(WIDE, 100.0), record(replace(WIDE, model="ncf"), 7.0)])
    assert forecast.seconds_of(replace(WIDE, temperature=0.3)) == pytest.approx(100.0)
    assert forecast.seconds_of(replace(NARROW, model="ncf")) == pytest.approx(7.0)
    assert forecast.seconds_of(replace(WIDE, model="dlrm")) == pytest.approx(53.5)  # as both


def test_the_time_left_adds_up_and_is_divided_among_jobs():
    forecast = Forecast([record(WIDE, 100.0), record(NARROW, 10.0), failed()])
    working = [(WIDE, 30.0), (NARROW, 99.0)]  # the second is overdue
    assert forecast.seconds_left([WIDE, NARROW], working) == pytest.approx(100 + 10 + 70 + 0)
    assert forecast.seconds_left([NARROW], working, jobs=2) == pytest.approx(70)  # nobody can help
    left = forecast.seconds_left([NARROW], [], later=4, like=[WIDE, NARROW])
    assert left == pytest.approx(10 + 4 * 55)


def test_nothing_is_said_before_anything_was_measured():
    assert Forecast([failed()]).seconds_left([WIDE], []) is None


def test_this_machine_may_be_slower_than_that_of_the_records():
    forecast = Forecast([record(WIDE, 100.0), record(NARROW, 10.0)])
    forecast.add(record(replace(NARROW, seed=1), 20.0), 30.0)  # 20 in training, the rest around it
    assert forecast.seconds_of(WIDE) == pytest.approx(150.0)
    forecast.add(failed(), 500.0)
    assert forecast.seconds_of(WIDE) == pytest.approx(150.0)
