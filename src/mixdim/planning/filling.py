"""What rounding left of a budget, spent one width after another. Knows no tables.

Beyond the paper: rounded widths leave up to 40 % of a small budget, another share at each temperature,
so that what is called an equal budget is none.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np

from mixdim.planning.sizing import relative_popularity
from mixdim.storages.rows import rows_cost


def filled_dims(
    dims: np.ndarray,
    block_sizes: np.ndarray,
    row_probs: np.ndarray,
    *,
    temperature: float,
    base_dim: int,
    budget: int,
) -> np.ndarray:
    """Return widths that cost at most `budget`, from widths that do: each at most base_dim.

    If the scale of the power law grew, the next block to be rounded up would be the one with the largest
    p ** temperature / (width + 1/2). That one is widened by 1 if this fits, else to base_dim, where it
    needs no projection, if that fits, else it keeps its width; and so on, until no block can be widened.

    >>> sizes, probs = np.array([10, 1000]), np.array([0.05, 0.0005])
    >>> options = {"temperature": 0.3, "base_dim": 8}
    >>> [filled_dims(np.array([8, 2]), sizes, probs, budget=b, **options).tolist() for b in (2500, 3104)]
    [[8, 2], [8, 3]]
    """
    dims, weights = dims.copy(), (relative_popularity(row_probs) ** temperature).tolist()
    own = rows_cost(block_sizes, dims, base_dim).parameters
    left = budget - int(own.sum())

    def place(block: int) -> tuple[float, int]:
        return -weights[block] / (float(dims[block]) + 0.5), block

    kept: list[int] = []
    heap = [place(block) for block in range(len(dims))]
    heapify(heap)
    while heap:
        _, block = heappop(heap)
        for wider in (dims[block] + 1, base_dim):
            more = _cost(block_sizes[block], wider, base_dim) - int(own[block])
            if dims[block] < wider <= base_dim and more <= left:
                dims[block], own[block], left = wider, own[block] + more, left - more
                heappush(heap, place(block))
                if more < 0:  # it shed its projection: others may fit by now
                    heap += [place(other) for other in kept]
                    heapify(heap)
                    kept.clear()
                break
        else:
            kept.append(block)
    return dims


def _cost(size: int, dim: int, base_dim: int) -> int:
    return int(rows_cost(np.array([size]), np.array([dim]), base_dim).parameters[0])
