"""What a caller's argument must be, and the error when it is not. Knows nothing about embeddings."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np


class WrongTypeError(TypeError, ValueError):
    """An argument of the wrong type. A ValueError too, as is all that is wrong with what a user gave."""


def whole_number(value: Any, name: str, *, at_least: int = 1) -> int:
    """Return `value` as an int, or say which argument is not a whole number of at least `at_least`.

    >>> whole_number(np.int32(64), "base_dim")
    64
    >>> whole_number(0, "base_dim")
    Traceback (most recent call last):
    ValueError: base_dim must be at least 1, got 0
    """
    if isinstance(value, bool | np.bool_):
        raise WrongTypeError(f"{name} must be a whole number, got {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise WrongTypeError(f"{name} must be a whole number, got {value!r}") from None
    if number < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {number}")
    if number >= 2**63:  # arrays would hold it as a Python object
        raise ValueError(f"{name} must be below 2^63, got {number}")
    return number


def real_number(value: Any, name: str) -> float:
    """Return `value` as a finite float, or say which argument is not one."""
    number = _as_float(value, name)
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, got {number}")
    return number


def positive_number(value: Any, name: str) -> float:
    """Return `value` as a finite float above 0, or say which argument is not one."""
    number = real_number(value, name)
    if number <= 0:
        raise ValueError(f"{name} must be above 0, got {number}")
    return number


def unit_interval(value: Any, name: str) -> float:
    """Return `value` as a float in [0, 1].

    >>> unit_interval(1.5, "temperature")
    Traceback (most recent call last):
    ValueError: temperature must be in [0, 1], got 1.5
    """
    number = _as_float(value, name)
    if not 0 <= number <= 1:
        raise ValueError(f"{name} must be in [0, 1], got {number}")
    return number


def nonnegative_vector(values: Any, name: str) -> np.ndarray:
    """Return `values` as a one-dimensional int64 or float64 array of finite numbers >= 0."""
    vector = np.asarray(values)
    if vector.dtype.kind not in "iuf":
        raise WrongTypeError(f"{name} must be numbers, got {vector.dtype} values")
    if vector.ndim != 1:
        raise ValueError(f"{name} must have one dimension, got shape {vector.shape}")
    if vector.size == 0:
        raise ValueError(f"{name} must not be empty")
    vector = vector.astype(np.float64 if vector.dtype.kind == "f" else np.int64, copy=False)
    wrong = ~(vector >= 0) if vector.dtype.kind == "i" else ~((vector >= 0) & np.isfinite(vector))
    if wrong.any():
        where = int(wrong.argmax())
        raise ValueError(f"{name} must be finite and not negative, got {vector[where]} at {where}")
    return vector


def _as_float(value: Any, name: str) -> float:
    if isinstance(value, bool | np.bool_ | str):
        raise WrongTypeError(f"{name} must be a number, got {value!r}")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise WrongTypeError(f"{name} must be a number, got {value!r}") from None
    except OverflowError:  # of a whole number
        return math.inf
