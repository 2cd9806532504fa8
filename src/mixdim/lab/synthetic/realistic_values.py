"""The values of realistic clicks: how many, how popular, and which follows from which.

Knows nothing about clicks, files or ids. A value of a feature that is drawn is its planted rank of
popularity, and after those come the values of its tail.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mixdim._util.arguments import real_number
from mixdim.lab.synthetic import planted
from mixdim.lab.synthetic.sampling import Drawing, Link, cumulative

SKEW, UNSEEN = 0.7, 0.4

# The features with more than a million values in Criteo, the largest first: new values keep coming.
OPEN = ("C3", "C12", "C21", "C16", "C4")
# The core of the largest is CORE of its scaled cardinality; cores and tails of the others shrink as
# powers of their cardinality. A value of a core has ROWS_PER_CORE_VALUE rows to learn from, on average.
CORE, CORE_POWER, ROWS_PER_CORE_VALUE = 0.1, 0.3, 8
TAIL_POWER = 8
TAIL_VALUES = 4  # of a tail, for each of its lookups in training: exp(-1/4) of others are then unseen

# A value of the right one determines that of the left one: ad -> campaign -> advertiser.
PARENTS = {"C24": "C3", "C15": "C24", "C26": "C12", "C11": "C21", "C13": "C11"}

LINKS = 5  # a stream of random numbers, beside those of `planted`


@dataclass(frozen=True)
class Law:
    """How popular the values of a feature are: Zipf's law, and a tail of rare ones, all alike."""

    core: int
    skew: float
    tail: int = 0
    tail_share: float = 0.0  # of the lookups

    def popularity(self) -> np.ndarray:
        """The probability of each value."""
        core = planted.popularity(self.core, self.skew) * (1 - self.tail_share)
        return np.concatenate([core, np.full(self.tail, self.tail_share / max(self.tail, 1))])

    def unseen(self, rows: int) -> float:
        """The expected share of lookups whose value none of `rows` others has: sum of p (1 - p)^rows.

        >>> Law(core=2, skew=0.0).unseen(3)
        0.125
        """
        core = planted.popularity(self.core, self.skew) * (1 - self.tail_share)
        in_tail = self.tail_share * (1 - self.tail_share / max(self.tail, 1)) ** rows
        return float((core * (1 - core) ** rows).sum() + in_tail)

    def with_tail(self, share: float, rows: int) -> Law:
        """The same law, and a tail with this share of the lookups of `rows` rows of training."""
        tail = round(TAIL_VALUES * share * rows)
        return Law(self.core, self.skew, tail, share if tail else 0.0)


def tail_share(law: Law, rows: int, unseen: float) -> float:
    """The share of lookups that a tail must have so that `unseen` of all lookups are of new values."""
    least, most = 0.0, 1.0
    low, high = (law.with_tail(share, rows).unseen(rows) for share in (least, most))
    if not low <= unseen <= high:
        low, high = math.ceil(low * 1000) / 1000, math.floor(high * 1000) / 1000
        raise ValueError(
            f"unseen must be in [{low:g}, {high:g}] with {rows:,} rows to train on, {law.core:,} values "
            f"that come again and skew {law.skew:g}, got {unseen:g}"
        )
    for _ in range(30):
        middle = (least + most) / 2
        if law.with_tail(middle, rows).unseen(rows) < unseen:
            least = middle
        else:
            most = middle
    return (least + most) / 2


class Features:
    """How popular the values of each feature are, and which feature determines which.

    `rows` are those of the training split; `unseen` is the share of the lookups of the largest feature
    whose value is not among them.
    """

    def __init__(self, rows: int, seed: int, *, scale: float, skew: float, unseen: float) -> None:
        self.rows, self.seed = rows, seed
        sizes = planted.scaled_cardinalities(planted.CRITEO_KAGGLE_ROWS, scale)
        self.names, largest = list(sizes), OPEN[0]
        self.laws = {name: Law(size, skew) for name, size in sizes.items()}
        real = planted.CRITEO_KAGGLE_ROWS
        ratios = {name: real[name] / real[largest] for name in OPEN}
        for name, ratio in ratios.items():
            core = min(round(CORE * sizes[largest] * ratio**CORE_POWER), rows // ROWS_PER_CORE_VALUE)
            self.laws[name] = Law(max(2, core), skew)
        share = tail_share(self.laws[largest], rows, unseen)
        for name, ratio in ratios.items():
            self.laws[name] = self.laws[name].with_tail(share * ratio**TAIL_POWER, rows)
        self.cardinalities = {name: law.core + law.tail for name, law in self.laws.items()}

    @cached_property
    def links(self) -> dict[int, Link]:
        """Of each determined feature, by number: what determines it, and how."""
        links = {}
        for parent, child in PARENTS.items():
            n = self.names.index(parent)
            law = cumulative(self.laws[parent].popularity())
            uniform = planted.stream(self.seed, LINKS, n).random(self.cardinalities[child])
            of = np.searchsorted(law, uniform, side="right").astype(np.int32)
            links[n] = Link(self.names.index(child), of)
        return links

    def popularity(self, feature: int) -> np.ndarray:
        """The probability of each value: by its law, or the sum over the values that determine it."""
        name = self.names[feature]
        if feature not in self.links:
            return self.laws[name].popularity()
        link = self.links[feature]
        of_child = self.popularity(link.child)
        return np.bincount(link.of, weights=of_child, minlength=self.cardinalities[name])

    def from_root(self, feature: int) -> tuple[int, np.ndarray | None]:
        """The drawn feature that this one follows from, and this one's value for each of its values.

        None stands for the same value: of a feature that is drawn itself.
        """
        if feature not in self.links:
            return feature, None
        link = self.links[feature]
        root, of_child = self.from_root(link.child)
        return root, link.of if of_child is None else link.of[of_child]

    def drawing(self) -> Drawing:
        """Any chunk of the rows."""
        numbers = range(len(self.names))
        popularities = (None if n in self.links else self.popularity(n) for n in numbers)
        return Drawing(self.seed, popularities, num_dense=len(planted.CRITEO_DENSE), links=self.links)


def checked_unseen(unseen: Any) -> float:
    """Return it as a number, or say that it is none between 0 and 1."""
    unseen = real_number(unseen, "unseen")
    if not 0 < unseen < 1:
        raise ValueError(f"unseen must be above 0 and below 1, got {unseen:g}")
    return unseen
