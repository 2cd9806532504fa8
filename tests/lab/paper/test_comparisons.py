"""Mixed against uniform in numbers."""

import math

import pytest

from mixdim.lab.paper.comparisons import (
    Interval,
    best_uniform,
    cost_of_reaching,
    in_percent,
    interval,
    paired,
    savings,
)
from mixdim.lab.paper.curves import num_parameters, on_test, train_seconds
from paper_records import click_record, frontier


def test_an_interval_of_equal_values_has_no_width():
    assert interval([2.0, 2.0, 2.0]) == Interval(2.0, 2.0, 2.0, 3)


def test_an_interval_of_two_seeds_uses_students_quantile():
    found = interval([0.0, 1.0])
    assert found.high - found.mean == pytest.approx(12.7062 * math.sqrt(0.5) / math.sqrt(2), rel=1e-5)


def test_one_seed_has_a_mean_and_no_interval():
    found = interval([3.0])
    assert found.mean == 3.0
    assert math.isnan(found.low)
    assert in_percent(found) == "+300.000 % (1 seed, no interval)"


def test_no_values_are_refused():
    with pytest.raises(ValueError, match="values must not be empty"):
        interval([])


def test_a_loss_at_a_measured_point_costs_what_the_point_costs():
    assert cost_of_reaching(0.4, [(400.0, 0.4), (100.0, 0.6)]).cost == pytest.approx(400)


def test_a_loss_above_the_first_point_costs_at_most_that():
    assert cost_of_reaching(0.7, [(100.0, 0.6), (400.0, 0.4)]) == (100.0, True)


def test_the_least_cost_counts_where_a_line_rises_again():
    line = [(100.0, 0.6), (200.0, 0.4), (400.0, 0.8), (800.0, 0.1)]
    assert cost_of_reaching(0.4, line).cost == pytest.approx(200)


def test_a_loss_that_no_point_reaches_has_no_cost():
    assert cost_of_reaching(0.1, [(100.0, 0.6)]) is None
    assert cost_of_reaching(0.1, []) is None


def test_the_best_uniform_width_is_that_of_the_lowest_validation_loss():
    assert {record.config["base_dim"] for record in best_uniform(frontier())} == {8}


def test_a_line_that_is_as_good_with_a_quarter_of_the_parameters_saves_four_times():
    saving = savings(frontier())["temperature 0.3"]  # loss 0.5 at 2000 parameters, uniform at 8000
    assert saving.ratio.mean == pytest.approx(4)
    assert saving.ratio.low == pytest.approx(4)
    assert saving.at_least  # 2000 are its fewest: fewer might do
    assert str(saving) == "at least 4x (95 % interval 4x to 4x, 2 seeds)"


def test_a_saving_between_points_is_interpolated_and_exact():
    records = [
        *(click_record(base_dim=w, parameters=1000 * w, loss=loss) for w, loss in ((2, 0.6), (8, 0.5))),
        *(click_record(temperature=0.3, base_dim=9 * w, parameters=1000 * w, loss=loss)
          for w, loss in ((1, 0.6), (4, 0.4))),
    ]  # fmt: skip
    saving = savings(records)["temperature 0.3"]  # 0.5 is half way from 1000 to 4000: at 2000
    assert saving.ratio.mean == pytest.approx(8000 / 2000)
    assert not saving.at_least
    assert str(saving) == "4x (1 seed, no interval)"


def test_a_saving_of_time_looks_at_seconds():
    assert savings(frontier(), train_seconds)["temperature 0.3"].ratio.mean == pytest.approx(8)


def test_a_line_that_never_gets_there_says_so():
    worse = [*frontier(), click_record(temperature=0.4, parameters=1500, loss=0.9)]
    assert str(savings(worse)["temperature 0.4"]) == "never reaches it (2 seeds)"


def test_a_line_that_gets_there_with_some_seeds_says_with_how_many_it_does_not():
    some = [*frontier(), click_record(temperature=0.4, parameters=1500, loss=0.1, seed=1)]
    assert "does not reach it in 1 of 2" in str(savings(some)["temperature 0.4"])


def test_where_uniforms_smallest_model_is_as_good_no_bound_is_claimed():
    flat = [click_record(parameters=1000 * w, base_dim=w, loss=0.5) for w in (2, 4)]
    mixed = click_record(temperature=0.3, parameters=2000, loss=0.5)
    saving = savings([*flat, mixed])["temperature 0.3"]
    assert saving.ratio.mean == pytest.approx(1)
    assert not saving.at_least
    assert "which uniform's smallest model reaches too" in str(saving)


def test_differences_are_paired_by_seed():
    ours = [click_record(seed=seed, loss=0.4 + seed) for seed in (0, 1)]
    theirs = [click_record(seed=seed, loss=0.5 + seed) for seed in (1, 0, 2)]
    found = paired(ours, theirs, on_test("log_loss"))
    assert found.mean == pytest.approx(-0.1)
    assert found.high - found.low == pytest.approx(0, abs=1e-9)
    assert found.seeds == 2
    assert paired(ours, ours, num_parameters).mean == 0
