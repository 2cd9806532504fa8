"""How good predictions are for popular, middle and rare ids. Knows nothing about models or features."""

from __future__ import annotations

from typing import Any

import numpy as np

from mixdim._util.arguments import nonnegative_vector
from mixdim.tasks import Task

SLICES = ("popular", "middle", "rare")


def thirds_of_popularity(counts: Any) -> np.ndarray:
    """Return for each id the place in `SLICES` of its third of the popularity mass: (ids,) int8.

    The thirds hold equal shares of the queries, not of the ids (paper, App. B, on Fig. 3b and 3e). Ids
    are sorted by count, descending, ties by id; an id is popular when the ids before it hold less than
    1/3 of all queries, middle when they hold less than 2/3, otherwise rare. So an id that was never
    queried is rare, and an id heavy enough to span a whole third leaves that third empty.

    >>> thirds_of_popularity([1, 4, 0, 2, 3]).tolist()
    [2, 0, 2, 2, 1]
    >>> thirds_of_popularity([90, 10, 0]).tolist()
    [0, 2, 2]
    """
    counts = nonnegative_vector(counts, "counts")
    # Below this bound three times the sum is still an int64, so whole counts are compared exactly.
    sum_of_counts = counts.sum(dtype=np.float64)
    if sum_of_counts >= 2**61:
        raise ValueError(f"counts must sum to less than 2**61, got {sum_of_counts:g}")
    order = np.argsort(-counts, kind="stable")
    mass = np.cumsum(counts[order])  # (ids,)
    before, total = np.concatenate([[0], mass[:-1]]), mass[-1]
    thirds = np.empty(len(counts), np.int8)
    thirds[order] = (3 * before >= total).astype(np.int8) + (3 * before >= 2 * total)
    return thirds


def measure_slices(
    task: Task, outputs: Any, targets: Any, third_of_row: Any
) -> dict[str, dict[str, float | int | None]]:
    """Return `task.measure` of the rows of each slice, by its name; an empty slice has 0 rows.

    `third_of_row` (rows,) is the third of the id that each row asks for:
    `thirds_of_popularity(counts)[ids]`.

    >>> from mixdim.tasks import RATING
    >>> slices = measure_slices(RATING, [3.0, 5.0, 4.0], [4.0, 4.0, 4.0], [0, 0, 2])
    >>> [(name, metrics["rows"], metrics["mse"]) for name, metrics in slices.items()]
    [('popular', 2, 1.0), ('middle', 0, None), ('rare', 1, 0.0)]
    """
    # Checked as a whole first, so that an error counts rows as the caller does, not within a slice.
    outputs, targets = task.rows(outputs, targets, "outputs")
    thirds = _require_thirds(third_of_row, len(outputs))
    return {
        name: task.measure(outputs[thirds == third], targets[thirds == third])
        for third, name in enumerate(SLICES)
    }


def _require_thirds(third_of_row: Any, num_rows: int) -> np.ndarray:
    """The third of each row, all of them 0, 1 or 2."""
    thirds = np.asarray(third_of_row)
    if thirds.shape != (num_rows,):
        raise ValueError(
            f"third_of_row must have one entry for each of {num_rows} rows, got shape {thirds.shape}"
        )
    wrong = ~np.isin(thirds, range(len(SLICES)))
    if wrong.any():
        where = int(wrong.argmax())
        raise ValueError(f"third_of_row must be 0, 1 or 2, got {thirds[where]} at row {where}")
    return thirds
