"""The gate of refactorings finds a difference of one bit, and names it."""

import numpy as np
import pytest

import same_bits
from same_bits_cases import CASES


def verdicts(this, other, case="case"):
    return {line.quantity: line.verdict for line in same_bits.compare(case, this, other)}


def test_one_bit_is_a_difference_and_its_place_is_named():
    this = np.ones((3, 4), np.float32)
    other = this.copy()
    other[1, 2] = np.nextafter(np.float32(1), np.float32(2))
    assert same_bits.difference(this, this.copy()) is None
    found = same_bits.difference(this, other)
    assert found == "at [1, 2]: 1.0, other 1.0000001192092896; 1 of 12 numbers, by at most 1.19e-07"


@pytest.mark.parametrize(
    ("this", "other", "part"),
    [
        (np.float32([0.0]), np.float32([-0.0]), "only in the sign of zero"),
        (np.float32([1.0]), np.float64([1.0]), "float32 of shape (1,), other float64"),
        (np.zeros((2, 3)), np.zeros((3, 2)), "of shape (2, 3), other float64 of shape (3, 2)"),
        (np.array(["rows of 4"]), np.array(["rows of 16"]), "at [0]: rows of 4, other rows of 16"),
        (np.float64([np.nan, 1.0]), np.float64([np.nan, 2.0]), "at [1]"),
    ],
)
def test_what_is_not_the_same_is_told(this, other, part):
    assert same_bits.difference(this, this.copy()) is None
    assert part in same_bits.difference(this, other)


def test_a_number_that_only_one_side_has_is_a_difference():
    one, two = {"a/x": np.ones(1)}, {"a/x": np.ones(1), "b/y": np.ones(1)}
    assert verdicts(one, two) == {"a": "equal", "b": "DIFFERS"}
    assert verdicts(two, one) == {"a": "equal", "b": "DIFFERS"}


def test_a_plan_may_be_another_one_if_it_is_as_good():
    def side(error, num_bytes, words):
        return {
            "spectral errors/1/4": np.array(error),
            "spectral bytes/1/4": np.array(num_bytes),
            "spectral plans/1/4": np.array([words]),
        }

    same, worse = side(0.1, 100, "a"), side(0.11, 101, "b")
    assert set(verdicts(side(0.10005, 99, "b"), same).values()) == {"as good"}
    assert list(verdicts(worse, same).values()) == ["DIFFERS", "DIFFERS", "as good"]


def test_a_declared_difference_gives_its_reason(monkeypatch):
    monkeypatch.setitem(same_bits.DECLARED, "dlrm-*: onnx*", "sums in another order")
    (line,) = same_bits.compare("dlrm-wide", {"onnx/0": np.ones(1)}, {"onnx/0": np.zeros(1)})
    assert line.verdict == "declared"
    assert line.about.startswith("sums in another order")
    assert verdicts({"onnx/0": np.ones(1)}, {"onnx/0": np.zeros(1)}, "mf") == {"onnx": "DIFFERS"}


def test_every_case_is_done_once_beside_others_of_its_environment():
    groups = list(same_bits.chunks(list(CASES)))
    assert sorted(name for group in groups for name in group) == sorted(CASES)
    assert all(len({CASES[name].environment for name in group}) == 1 for group in groups)
