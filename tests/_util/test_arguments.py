import numpy as np
import pytest

from mixdim._util.arguments import nonnegative_vector, real_number, unit_interval, whole_number


def test_whole_numbers_of_numpy_are_welcome():
    assert whole_number(np.int64(3), "x") == 3


@pytest.mark.parametrize("value", [2.0, "3", None, True, np.bool_(True)])
def test_other_things_are_not_whole_numbers(value):
    with pytest.raises(TypeError, match="x must be a whole number") as caught:
        whole_number(value, "x")
    assert isinstance(caught.value, ValueError)  # as the command line expects of wrong input


def test_whole_numbers_fit_into_arrays():
    assert whole_number(2**63 - 1, "x") == 2**63 - 1
    with pytest.raises(ValueError, match=r"x must be below 2\^63, got 9223372036854775808"):
        whole_number(2**63, "x")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1, 1.5])
def test_the_unit_interval_ends_at_0_and_1(value):
    with pytest.raises(ValueError, match=r"x must be in \[0, 1\], got"):
        unit_interval(value, "x")


def test_a_real_number_is_finite_and_no_text():
    with pytest.raises(TypeError, match="x must be a number, got '1'"):
        real_number("1", "x")
    with pytest.raises(ValueError, match="x must be finite"):
        real_number(float("inf"), "x")
    with pytest.raises(ValueError, match="x must be finite"):
        real_number(10**400, "x")


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ([], ValueError, "must not be empty"),
        ([[1, 2]], ValueError, r"one dimension, got shape \(1, 2\)"),
        (["a"], TypeError, "must be numbers"),
        ([1, -2], ValueError, "got -2 at 1"),
        ([1.0, float("nan")], ValueError, "got nan at 1"),
    ],
)
def test_a_vector_that_is_not_one_says_why(values, error, message):
    with pytest.raises(error, match=message):
        nonnegative_vector(values if values else np.zeros(0), "counts")
