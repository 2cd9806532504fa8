"""The numbers that codes of 1 to 8 bits stand for, and how much is lost by them. Knows no tables.

A code stands for its level times a step. Up to 6 bits, the levels are those of least squared error for
normal numbers of variance 1 (Lloyd-Max). With 8 bits they are a cubic, nearly as good for normal numbers
and better for the heavy tails of whole tables; zero is one of them.
"""

from __future__ import annotations

import numpy as np

BITS = (1, 2, 3, 4, 5, 6, 8)

# The positive levels; the others are their negatives.
_LLOYD_MAX: dict[int, tuple[float, ...]] = {
    1: (0.797885,),
    2: (0.45278, 1.510418),
    3: (0.245094, 0.756005, 1.343909, 2.151946),
    4: (0.128395, 0.388048, 0.656759, 0.94234, 1.256231, 1.618046, 2.069017, 2.73259),
    5: (
        *(0.06589, 0.198052, 0.331378, 0.4667, 0.604934, 0.747136, 0.894565, 1.048783),
        *(1.211804, 1.38634, 1.576228, 1.787233, 2.028728, 2.317739, 2.69112, 3.260732),
    ),
    6: (
        *(0.03341, 0.100278, 0.167297, 0.234567, 0.302193, 0.370283, 0.43895, 0.508314),
        *(0.578503, 0.649656, 0.721922, 0.795468, 0.870477, 0.947155, 1.025736, 1.106488),
        *(1.18972, 1.275794, 1.365141, 1.458276, 1.555831, 1.658589, 1.767542, 1.883977),
        *(2.009611, 2.14681, 2.298981, 2.471305, 2.672274, 2.917407, 3.240437, 3.744101),
    ),
}
_CUBIC_SCALE = 1.438528  # so that a step of 1 is the best for variance 1

# What is left of the variance of normal numbers, by bits: nothing kept, and then coded.
NOISE = {
    0: 1.0,
    1: 0.363380,
    2: 0.117482,
    3: 0.0345478,
    4: 0.00950101,
    5: 0.00250467,
    6: 0.000644240,
    8: 0.0000551217,
    32: 0.0,
}


def levels_of(bits: int) -> np.ndarray:
    """The levels of codes 0, 1, ... in float32, rising: (2**bits,).

    >>> levels_of(2).round(3).tolist() == np.float32([-1.51, -0.453, 0.453, 1.51]).tolist()
    True
    """
    return LEVELS[first_level(bits) : first_level(bits) + 2**bits]


def first_level(bits: int) -> int:
    """Where in LEVELS the levels of so many bits begin."""
    return 2 ** min(bits, 7) - 2


def _levels(bits: int) -> np.ndarray:
    if bits == 8:
        part = np.arange(-128, 128) / 128
        return _CUBIC_SCALE * part * (1 + 2 * part**2)
    positive = np.array(_LLOYD_MAX[bits])
    return np.concatenate([-positive[::-1], positive])


LEVELS = np.concatenate([_levels(bits) for bits in BITS]).astype(np.float32)  # of all bits, one array
