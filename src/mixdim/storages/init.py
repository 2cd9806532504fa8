"""How weights are drawn at first. Knows nothing about what they are for."""

from __future__ import annotations

import math
from typing import Literal, get_args

Init = Literal["xavier", "he_fan_in", "he_fan_out"]


def check_init(init: str) -> None:
    """Say which ways there are, if `init` is not one of them."""
    if init not in get_args(Init):
        raise ValueError(f"init must be one of {', '.join(get_args(Init))}, got {init!r}")


def uniform_bound(init: Init, *, fan_in: int, fan_out: int) -> float:
    """The bound of the uniform distribution: sqrt(6 / (fan_in + fan_out)), or sqrt(6 / fan) for He.

    >>> uniform_bound("xavier", fan_in=2, fan_out=4)
    1.0
    """
    fan = {"xavier": fan_in + fan_out, "he_fan_in": fan_in, "he_fan_out": fan_out}[init]
    return math.sqrt(6 / fan)
