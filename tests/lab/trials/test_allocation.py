"""The allocation experiment: policies against each other and against a search."""

import numpy as np
import pytest

from mixdim.lab.theory.allocation import spectral_blocks, uniform_gap
from mixdim.lab.trials.allocation import (
    AllocationOptions,
    allocation_records,
    power_law_dims,
)
from mixdim.lab.trials.records import having

SMALL = AllocationOptions(
    row_sizes=(5, 40), col_sizes=(10, 30), decays=(0.8,), budgets=(0.1, 0.4), seeds=2
)


def silent(*_):
    pass


@pytest.fixture(scope="module")
def records():
    return list(allocation_records(SMALL, silent))


def small_blocks():
    spectra = [[[4.0, 1.0, 0.5]], [[4.0, 1.0, 0.5]]]
    return spectral_blocks([4, 12], [6], [[0.7], [0.3]], spectra), np.array([[0.7 / 24], [0.3 / 72]])


def test_no_policy_beats_the_optimum_and_each_has_one_record_a_point(records):
    assert len(records) == 1 * 2 * 2 * 8
    for record in records:
        (optimum,) = having(
            records, policy="optimum", seed=record["seed"], budget_share=record["budget_share"]
        )
        assert record["error"] >= optimum["error"] * (1 - 1e-12)
        assert record["over_optimum"] == pytest.approx(record["error"] / optimum["error"])


def test_more_budget_never_hurts(records):
    for record in having(records, budget_share=0.1):
        (richer,) = having(records, policy=record["policy"], seed=record["seed"], budget_share=0.4)
        assert richer["error"] < record["error"]


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("budget", [1.0, 20.0, 60.0])
def test_the_power_law_spends_its_budget_and_follows_its_formula(temperature, budget):
    blocks, entry_probs = small_blocks()
    dims = power_law_dims(blocks, entry_probs, temperature, budget)
    assert blocks.cost(dims) == pytest.approx(budget)
    free = dims < blocks.ranks
    scales = dims[free] / entry_probs[free] ** temperature
    assert np.ptp(scales) <= 1e-9 * scales.max()
    assert (dims[~free] <= scales.min() * entry_probs[~free] ** temperature * (1 + 1e-9)).all()


def test_temperature_0_is_the_uniform_width_of_the_theory():
    blocks, entry_probs = small_blocks()
    uniform = power_law_dims(blocks, entry_probs, 0.0, 20.0)
    assert uniform == pytest.approx(20.0 / 28)
    assert uniform_gap(blocks, 20.0, uniform) == pytest.approx(0.0)


def test_where_blocks_are_alike_every_temperature_is_optimal():
    alike = AllocationOptions(
        row_sizes=(100, 100, 100), col_sizes=(100,), decays=(1.0,), temperatures=(0.0, 0.5, 1.0),
        budgets=(0.1,), spread=0.0, seeds=1,
    )  # fmt: skip
    # All blocks are alike, so every temperature is uniform, and uniform is optimal.
    for record in allocation_records(alike, silent):
        if record["policy"] != "powers of two":
            assert record["over_optimum"] == pytest.approx(1.0, abs=0.01)


def test_without_spread_all_seeds_agree():
    options = AllocationOptions(
        row_sizes=(5, 40), col_sizes=(10,), decays=(0.8,), budgets=(0.2,), spread=0.0, seeds=2
    )
    records = list(allocation_records(options, silent))
    first, second = ([{**r, "seed": None} for r in having(records, seed=seed)] for seed in (0, 1))
    assert first == second


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": 0}, "seeds must be at least 1, got 0"),
        ({"row_sizes": (3, 0)}, r"row_sizes\[1\] must be at least 1, got 0"),
        ({"col_sizes": ()}, "col_sizes must be a non-empty list"),
        ({"decays": (0.0,)}, "decays must be above 0 and at most 10, got 0"),
        ({"decays": (11.0,)}, "decays must be above 0 and at most 10, got 11"),
        ({"temperatures": (1.5,)}, r"temperatures must be in \[0, 1\], got 1.5"),
        ({"temperatures": ()}, "temperatures must be one or more"),
        ({"budgets": (1.0,)}, "budgets must be shares above 0 and below 1, got 1"),
        ({"budgets": (0.1, 0.1)}, "budgets must be one or more, all different"),
        ({"spread": -0.1}, "spread must be from 0 to 5, got -0.1"),
        ({"spread": float("nan")}, "spread must be finite, got nan"),
    ],
)
def test_what_cannot_be_run_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        next(allocation_records(AllocationOptions(**options), silent))
