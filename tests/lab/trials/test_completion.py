"""The completion experiment: truths that are known, and shares where the outcome is certain."""

import numpy as np
import pytest

from mixdim.lab.trials.completion import CompletionOptions, completion_records
from mixdim.lab.trials.records import having

SMALL = CompletionOptions(
    size=16, rank=1, features=3, feature_size=5, tensor_rank=2, shares=(0.05, 1.0), seeds=2
)


def silent(*_):
    pass


@pytest.fixture(scope="module")
def records():
    return list(completion_records(SMALL, silent))


def test_everything_seen_is_recovered_and_almost_nothing_is_not(records):
    assert len(records) == 2 * 2 * 3
    for record in records:
        assert record["recovered"] == (record["share"] == 1.0) == (record["error"] < 1e-3)
        assert record["entries"] <= np.prod(record["sizes"])
    assert all(r["entries"] == np.prod(r["sizes"]) for r in having(records, share=1.0))


def test_methods_see_the_same_entries(records):
    for seed in (0, 1):
        als, sgd = having(records, kind="matrix", share=0.05, seed=seed)
        assert als["entries"] == sgd["entries"]


def test_the_unknowns_of_a_tensor_are_the_dimension_of_the_set_of_such_tensors():
    options = CompletionOptions(features=3, feature_size=4, tensor_rank=2)
    generator = np.random.default_rng(0)
    factors = [generator.standard_normal((4, 2)) for _ in range(3)]
    indices = np.indices((4, 4, 4)).reshape(3, -1).T
    sums = sum(factor[indices[:, i]] for i, factor in enumerate(factors))  # (entries, rank)
    moves = [
        2 * sums[:, k] * (indices[:, i] == row) for i in range(3) for row in range(4) for k in range(2)
    ]
    assert options.settings("tensor")["unknowns"] == np.linalg.matrix_rank(np.array(moves))


def test_a_tensor_of_which_nothing_is_seen_is_guessed_as_zero():
    options = CompletionOptions(
        size=4, rank=1, features=2, feature_size=2, tensor_rank=1, shares=(1e-6,), seeds=1
    )
    (record,) = having(list(completion_records(options, silent)), kind="tensor")
    assert (record["entries"], record["error"], record["recovered"]) == (0, 1.0, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": -3}, "seeds must be at least 1, got -3"),
        ({"size": 0}, "size must be at least 1, got 0"),
        ({"size": 4, "rank": 5}, "rank must be at most 4, the size of the matrix, got 5"),
        ({"size": 4000}, "size must leave at most 10,000,000 entries, got 4000 with 16,000,000"),
        ({"features": 9}, "feature_size must leave at most 10,000,000 entries, got 12"),
        ({"shares": (0.0,)}, "shares must be above 0 and at most 1, got 0"),
        ({"shares": (1.5,)}, "shares must be above 0 and at most 1, got 1.5"),
        ({"shares": (float("nan"),)}, "shares must be finite, got nan"),
        ({"shares": ()}, "shares must be one or more"),
    ],
)
def test_what_cannot_be_run_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        next(completion_records(CompletionOptions(**options), silent))
