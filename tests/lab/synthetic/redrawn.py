"""The values that a generated data set was planted with, drawn again in plain Python."""

import itertools
import math
from bisect import bisect_right

import numpy as np

from mixdim.lab.synthetic import planted
from mixdim.lab.synthetic.generate import CHUNK


def redraw(meta, feature):
    """The planted values of a feature, one uniform number after the other."""
    seed, skew, rows = (meta.options[name] for name in ("seed", "skew", "rows"))
    cardinality = meta.source["planted_values"][meta.features[feature].name]
    weights = [(rank + 1) ** -skew for rank in range(cardinality)]
    whole = math.fsum(weights)
    cumulative = [part / whole for part in itertools.accumulate(weights)]
    values = []
    for chunk, start in enumerate(range(0, rows, CHUNK)):
        sequence = np.random.SeedSequence(seed, spawn_key=(planted.VALUES, feature, chunk))
        uniform = np.random.default_rng(sequence).random(min(CHUNK, rows - start))
        values += [bisect_right(cumulative, u) for u in uniform.tolist()]
    return values
