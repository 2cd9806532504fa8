import re
from dataclasses import replace

import pytest

from mixdim.planning.budget import format_bytes
from mixdim.runs.memory import (
    MemoryWarning,
    NotEnoughMemoryError,
    forecast_of,
    require_memory,
)
from mixdim.runs.plans import plan_of
from small_runs import DATA
from training_data import ratings, small_config


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize(
    "sizes",
    [
        {"temperature": 0.3, "base_dim": 64},
        {"temperature": 0.3, "base_dim": None, "budget": "20k"},
        {"temperature": None, "base_dim": 64, "budget": "20k"},
    ],
)
@pytest.mark.parametrize("share", [1e-6, 0.2, 0.6])
def test_too_little_memory_is_refused_with_a_budget_that_passes(name, sizes, share):
    dataset = DATA[name]()
    config = small_config(name, dataset, **sizes)
    plan = plan_of(config, dataset)
    forecast = forecast_of(config, plan, dataset)
    of_tables = (plan.num_parameters - plan.num_rows) * 16  # amsgrad holds three more of each
    available = forecast.total - max(1, int(of_tables * share))
    with pytest.raises(NotEnoughMemoryError) as refused:
        require_memory(config, plan, dataset, available=available)
    assert str(forecast) in str(refused.value)
    temperature, budget, instead = re.search(
        r"--temperature (\S+) --budget (\d+)( instead of --base-dim 64)? would fit", str(refused.value)
    ).groups()
    assert (instead is not None) == (sizes["base_dim"] is not None)
    told = replace(config, temperature=float(temperature), base_dim=None, budget=budget)
    smaller = plan_of(told, dataset)
    with pytest.warns(MemoryWarning):
        assert require_memory(told, smaller, dataset, available=available).total <= available
    assert plan.num_rows <= smaller.num_parameters < plan.num_parameters


def test_where_no_budget_helps_other_ways_are_named():
    config = small_config("mf", ratings())
    with pytest.raises(NotEnoughMemoryError, match=r"has 1.0 MB free: even width 1 for all .* sgd, may"):
        require_memory(config, plan_of(config, ratings()), ratings(), available=1_000_000)


def test_enough_memory_is_let_pass():
    config = small_config("mf", ratings())
    plan = plan_of(config, ratings())
    forecast = forecast_of(config, plan, ratings())
    available = int(forecast.total / 0.7) + 1
    assert require_memory(config, plan, ratings(), available=available) == forecast


@pytest.mark.parametrize("share", [0.71, 1.0])
@pytest.mark.parametrize("name", DATA)
def test_a_run_that_takes_most_of_the_memory_is_warned_of(name, share):
    dataset = DATA[name]()
    config = small_config(name, dataset, base_dim=2048)
    plan = plan_of(config, dataset)
    forecast = forecast_of(config, plan, dataset)
    available = int(forecast.total / share)
    with pytest.warns(MemoryWarning) as warned:
        assert require_memory(config, plan, dataset, available=available) == forecast
    (message,) = (str(warning.message) for warning in warned)
    assert message.startswith(
        f"training will take about {format_bytes(forecast.total)}, {share:.0%} of the"
    )
    assert "an optimizer with less state, such as adagrad or sgd" in message
    budget = re.search(r"--temperature 0.3 --budget (\d+) instead of --base-dim 2048 would", message)
    if share == 0.71:
        told = replace(config, base_dim=None, budget=budget[1])
        assert (
            require_memory(told, plan_of(told, dataset), dataset, available=available).total
            <= 0.7 * available
        )
