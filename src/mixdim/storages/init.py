"""How weights are drawn at first. Knows nothing about what they are for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Init = Literal["xavier", "he_fan_in", "he_fan_out", "aligned"]
ALIGNED_DEVIATION = 0.1  # of each number of a vector, whatever the width and the size of its block


def check_init(init: str) -> None:
    """Say which ways there are, if `init` is not one of them."""
    if init not in get_args(Init):
        raise ValueError(f"init must be one of {', '.join(get_args(Init))}, got {init!r}")


def uniform_bound(init: Init, *, fan_in: int, fan_out: int) -> float:
    """The bound of the uniform distribution: sqrt(6 / (fan_in + fan_out)), or sqrt(6 / fan) for He.

    That of "aligned" does not depend on the shape: the standard deviation is 0.1.

    >>> uniform_bound("xavier", fan_in=2, fan_out=4)
    1.0
    """
    if init == "aligned":
        return math.sqrt(3) * ALIGNED_DEVIATION
    fan = {"xavier": fan_in + fan_out, "he_fan_in": fan_in, "he_fan_out": fan_out}[init]
    return math.sqrt(6 / fan)


def draw_projection(projection: Tensor, init: Init, generator: torch.Generator | None) -> None:
    """Draw a projection (width, base_dim) in place.

    "aligned" draws nothing: a projection begins as the first rows of the identity. So vectors of all
    blocks have their first numbers in common; others have to turn to each other in training.
    """
    if init == "aligned":
        projection.zero_()
        projection.diagonal().fill_(1.0)
    else:
        bound = uniform_bound(init, fan_in=projection.shape[0], fan_out=projection.shape[1])
        projection.uniform_(-bound, bound, generator=generator)
