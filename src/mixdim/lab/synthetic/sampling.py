"""The values of generated rows, chunk by chunk. Knows nothing about targets, splits or ids.

Every chunk has streams of random numbers of its own: it can be drawn alone, and any number of times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from mixdim.lab.synthetic.planted import DENSE, VALUES, stream


@dataclass(frozen=True)
class Link:
    """A feature that another one determines: where that has value v, this one has `of[v]`."""

    child: int  # the number of the feature that determines this one
    of: np.ndarray  # int32 (values of the child,)


class Drawing:
    """Any chunk of the rows: a feature is drawn from its popularity, or follows from another feature.

    `popularities` has one vector a feature, and None for those in `links`; the vectors are used up. A
    chain of links stands in its order, child first.
    """

    def __init__(
        self,
        seed: int,
        popularities: Iterable[np.ndarray | None],
        *,
        num_dense: int,
        links: Mapping[int, Link] | None = None,
    ) -> None:
        self.seed, self.num_dense, self.links = seed, num_dense, links or {}
        self.laws = [None if law is None else cumulative(law) for law in popularities]

    def values(self, chunk: int, rows: int) -> list[np.ndarray]:
        """The planted values of some rows, one vector a feature, by inverting the distributions."""
        drawn: dict[int, np.ndarray] = {}
        for feature, law in enumerate(self.laws):
            if law is None:
                continue
            uniform = stream(self.seed, VALUES, feature, chunk).random(rows)
            drawn[feature] = np.searchsorted(law, uniform, side="right")
        for feature, link in self.links.items():
            drawn[feature] = link.of[drawn[link.child]]
        return [drawn[feature] for feature in range(len(self.laws))]

    def dense(self, chunk: int, rows: int) -> np.ndarray:
        """Standard normal numbers: float32 (rows, dense columns)."""
        rng = stream(self.seed, DENSE, chunk)
        return rng.standard_normal((rows, self.num_dense), dtype=np.float32)


def cumulative(probabilities: np.ndarray) -> np.ndarray:
    """The running sum, in the place of the probabilities; its last entry is 1."""
    total = np.cumsum(probabilities, out=probabilities)
    total /= total[-1]  # so that every uniform number below 1 falls inside
    return total
