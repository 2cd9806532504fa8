"""The two-block experiment: searches against trying everything, bounds against simulation."""

import numpy as np
import pytest

from mixdim.lab.theory.factorization import complete_als
from mixdim.lab.theory.matrices import flat_spectra, random_block_matrix
from mixdim.lab.theory.sampling import sample_entries
from mixdim.lab.trials import two_block as theory_two_block
from mixdim.lab.trials.two_block import (
    RECOVERED,
    TwoBlock,
    TwoBlockOptions,
    complete_twice,
    fewest,
    two_block_records,
)

SMALL = TwoBlockOptions(size=24, rates=(0.4, 0.3), seeds=2)


def silent(*_):
    pass


def matrix_and_sample(block, num_samples, seed=0):
    generator = np.random.default_rng([seed, 0])
    matrix = random_block_matrix(
        [block.size] * 2, [block.size], flat_spectra(block.block_ranks), generator=generator
    )
    seen = sample_entries(num_samples, **block.layout, generator=np.random.default_rng([seed, 1]))
    return matrix, seen


@pytest.fixture(scope="module")
def records():
    return list(two_block_records(SMALL, silent))


def test_every_rate_method_and_seed_has_one_need_and_every_rate_and_method_one_bound(records):
    needs = [(r["rate"], r["method"], r["seed"]) for r in records if r["kind"] == "need"]
    assert sorted(needs) == sorted(
        (rate, method, seed)
        for rate in (0.4, 0.3)
        for method in ("mixed", "agnostic")
        for seed in (0, 1)
    )
    bounds = [(r["rate"], r["method"]) for r in records if r["kind"] == "bound"]
    assert len(bounds) == len(set(bounds)) == 4
    assert {(r["rate"], r["popular_rank"]) for r in records} == {(0.4, 2), (0.3, 3)}


def test_mixed_recovers_where_agnostic_does_not(records):
    for rate in SMALL.rates:
        needs = {
            method: [r["samples"] for r in records if r["kind"] == "need" and r["rate"] == rate
                     and r["method"] == method]
            for method in ("mixed", "agnostic")
        }  # fmt: skip
        assert np.mean(needs["mixed"]) < np.mean([n or np.inf for n in needs["agnostic"]])


def test_the_need_recovers_and_a_little_less_does_not(records):
    record = next(r for r in records if r["kind"] == "need" and r["method"] == "mixed")
    block = TwoBlock(24, record["rate"], record["popular_rank"], 1)

    def error(num_samples):
        matrix, seen = matrix_and_sample(block, num_samples, record["seed"])
        halves = [
            complete_twice(matrix[rows], seen[rows], rank)
            for rows, rank in ((slice(24), block.popular_rank), (slice(24, 48), 1))
        ]
        found = np.concatenate([left @ right.T for left, right in halves])
        return np.linalg.norm(found - matrix) / np.linalg.norm(matrix)

    assert error(record["samples"]) < RECOVERED
    just_below = np.linspace(1 / theory_two_block.RESOLUTION, 0.999, 8) * record["samples"]
    assert max(error(num_samples) for num_samples in just_below) >= RECOVERED


def test_a_run_is_the_same_again():
    tiny = TwoBlockOptions(size=12, rates=(0.45,), seeds=1)
    assert list(two_block_records(tiny, silent)) == list(two_block_records(tiny, silent))


@pytest.mark.parametrize("method", ["mixed", "agnostic"])
def test_the_bound_is_the_probability_that_the_scarcest_rows_or_columns_are_covered(method):
    block, num_samples, trials = TwoBlock(12, 0.3, 2, 1), 90, 2000
    generator = np.random.default_rng(0)
    covered = np.zeros(4 if method == "mixed" else 3)
    for _ in range(trials):
        seen = sample_entries(num_samples, **block.layout, generator=generator)
        popular, rare = seen[:12], seen[12:]
        if method == "mixed":
            counts = [(popular.sum(1), 2), (popular.sum(0), 2), (rare.sum(1), 1), (rare.sum(0), 1)]
        else:
            counts = [(popular.sum(1), 3), (rare.sum(1), 3), (seen.sum(0), 3)]
        covered += [(count >= rank).all() for count, rank in counts]
    share = covered.min() / trials
    assert block.bound(method, num_samples) == pytest.approx(share, abs=4 * 0.5 / trials**0.5)


def test_the_half_covered_count_is_where_the_bound_is_one_half(records):
    for record in records:
        if record["kind"] == "bound":
            block = TwoBlock(24, record["rate"], record["popular_rank"], 1)
            assert block.bound(record["method"], record["half_covered"]) == pytest.approx(0.5, abs=0.02)
            assert (np.diff(record["probability"]) >= -1e-12).all()


def test_unknowns_are_the_dimension_of_the_set_of_such_matrices():
    block = TwoBlock(size=6, rate=0.25, popular_rank=2, rare_rank=1)

    def tangent_dimension(rows, columns, rank):
        generator = np.random.default_rng(0)
        left, right = generator.standard_normal((rows, rank)), generator.standard_normal((columns, rank))
        moves = [
            np.outer(np.eye(rows)[i], right[:, k]).ravel() for i in range(rows) for k in range(rank)
        ]
        moves += [np.outer(left[:, k], np.eye(columns)[j]).ravel() for j in range(columns)
                  for k in range(rank)]  # fmt: skip
        return np.linalg.matrix_rank(np.array(moves))

    assert block.unknowns("agnostic") == tangent_dimension(12, 6, 3)
    per_block = tangent_dimension(6, 6, 2) / 0.75, tangent_dimension(6, 6, 1) / 0.25
    assert block.unknowns("mixed") == max(per_block)


def test_scaling_rows_helps_where_popularity_differs_and_never_fits_worse():
    block = TwoBlock(100, 0.3, 3, 1)
    better = 0
    for seed in range(4):
        matrix, seen = matrix_and_sample(block, 4400, seed)
        fit = [
            np.linalg.norm(np.where(seen, left @ right.T - matrix, 0.0))
            for left, right in (
                complete_twice(matrix, seen, 4),
                complete_als(matrix, seen, 4, rounds=100, tolerance=1e-6),
            )
        ]
        assert fit[0] <= max(fit[1], 1e-5 * np.linalg.norm(matrix))
        better += fit[0] < 0.01 * fit[1]
    assert better >= 2


@pytest.mark.parametrize("threshold", [1.0, 7.3, 99.0, 100.0])
def test_fewest_agrees_with_trying_every_count(threshold):
    found = fewest(lambda count: count >= threshold, 1.0, 100.0, resolution=1.01)
    assert threshold <= found <= 1.01 * threshold


def test_fewest_is_none_if_nothing_is_enough():
    assert fewest(lambda count: False, 1.0, 100.0) is None


def test_a_seed_that_never_recovers_is_recorded_as_such(monkeypatch):
    monkeypatch.setattr(theory_two_block, "RECOVERED", 0.0)
    options = TwoBlockOptions(size=20, rates=(0.4,), seeds=1)
    needs = [r for r in two_block_records(options, silent) if r["kind"] == "need"]
    assert [(r["samples"], r["recovered_from_more"]) for r in needs] == [(None, []), (None, [])]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size must be at least 1, got 0"),
        ({"seeds": -1}, "seeds must be at least 1, got -1"),
        ({"rare_rank": 0}, "rare_rank must be at least 1, got 0"),
        ({"rates": ()}, "rates must be one or more"),
        ({"rates": (0.3, 0.3)}, "all different"),
        ({"rates": (0.5,)}, "rates must be above 0 and below 0.5, got 0.5"),
        ({"rates": (0.0,)}, "rates must be above 0 and below 0.5, got 0"),
        ({"rates": (float("nan"),)}, "rates must be finite, got nan"),
        ({"size": 10, "rates": (0.1,)}, "size must be at least 11, the ranks at rate 0.1, got 10"),
        ({"size": 20, "rates": (0.1,)}, "size 20 is too small for rate 0.1: agnostic completion needs"),
    ],
)
def test_what_cannot_be_run_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        next(two_block_records(TwoBlockOptions(**options), silent))
