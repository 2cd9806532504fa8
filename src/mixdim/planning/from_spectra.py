"""From trained tables to a plan: measure spectra, solve for widths. Knows nothing about training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mixdim._util.arguments import real_number
from mixdim.planning.blocking import Blocks
from mixdim.planning.budget import parse_budget
from mixdim.planning.from_counts import (
    Bands,
    assemble_plan,
    bytes_of_orders,
    cut_features,
    per_feature,
)
from mixdim.planning.knapsack import best_choice, lagrangian_choice
from mixdim.planning.plan import Plan, UnknownFeatureError
from mixdim.planning.sizing import Rounding, check_rounding, too_small
from mixdim.storages.storage import stored_cost

ROWS_AT_A_TIME = 2**16  # of a table, as float64
RELATIVE_GAP = 1e-4  # the widths' error is at most about this share above the least possible


def spectral_plan(
    tables: Mapping[str, Any],
    *,
    budget: int | str,
    counts: Mapping[str, Any] | Sequence[Any] | None = None,
    bands: Bands | Mapping[str, Bands] | Sequence[Bands] = 1,
    ids_per_sample: float | Mapping[str, float] | Sequence[float] | None = None,
    sampled_ids: Mapping[str, Any] | None = None,
    rounding: Rounding = "power_of_two",
) -> Plan:
    """Plan widths from what trained tables really use of theirs (paper, Thm. 4.2), within a budget.

    A block stored at width d can at best reproduce its table as a matrix of rank d. With every row
    weighted by the probability p that a sample asks for it, that leaves an expected squared error of
    sum over k > d of sigma_k^2, where sigma are the singular values of diag(sqrt(p)) @ table. The
    widths, at least 1, minimise the sum of that over all blocks of all features. The budget includes
    projections, and base_dim is the largest width chosen; every base_dim is considered.

    - `tables`: by feature name, the vectors of its ids, (rows, width), such as a trained uniform table
      or `layer.dense_weight(name)`.
    - `budget`, `counts`, `bands`, `ids_per_sample`, `rounding`: as for `mixdim.plan`. Without counts,
      all rows of a feature are equally popular.
    - `sampled_ids`: for features whose table is a sample of rows, the ids of those rows; counts must
      then be given, for all rows. The sampled rows of a block stand for all of its rows.

    No temperature made these widths; `nearest_temperature` says which would come nearest.

    >>> steep, flat = np.diag([8.0, 0.1, 0.1, 0.1]), np.diag([8.0, 7.0, 6.0, 5.0])
    >>> tables = {"steep": np.tile(steep, (25, 1)), "flat": np.tile(flat, (25, 1))}
    >>> plan = spectral_plan(tables, budget=600)
    >>> [block.dim for block in plan.blocks], plan.num_parameters
    ([1, 4], 504)
    """
    check_rounding(rounding)
    matrices = _checked_tables(tables)
    sizes = {name: len(matrix) for name, matrix in matrices.items()}
    counts = per_feature(counts, "counts", sizes)
    samples = _checked_samples({} if sampled_ids is None else sampled_ids, sizes, counts)
    sizes.update({name: len(counts[name]) for name in samples})
    blocks = cut_features(sizes, counts, per_feature(bands, "bands", sizes))
    held_bytes = bytes_of_orders(blocks)
    limit = parse_budget(budget, held_bytes=held_bytes, num_rows=sum(sizes.values()))
    often = per_feature(ids_per_sample, "ids_per_sample", sizes)

    energies, row_probs = [], []
    for name, cut in blocks.items():
        mean = real_number(often.get(name, 1.0), f"ids_per_sample of feature {name!r}")
        if mean <= 0:
            raise ValueError(f"ids_per_sample of feature {name!r} must be above 0, got {mean}")
        probs = mean * _row_shares(counts.get(name), sizes[name])
        energies += _block_energies(name, matrices[name], probs, cut, samples.get(name))
        row_probs.append(mean * cut.row_probs)
    block_sizes = np.concatenate([cut.block_sizes for cut in blocks.values()])
    if block_sizes.sum() > limit:
        smallest = int(block_sizes.sum())
        raise too_small(limit, smallest, "one parameter for each row", held_bytes)
    block_dims = _best_widths(block_sizes, energies, limit, rounding)
    popularity, base_dim = np.concatenate(row_probs), int(block_dims.max())
    made_by = {"rule": "spectral"}
    return assemble_plan(blocks, popularity, block_dims, base_dim=base_dim, made_by=made_by)


def table_error(
    tables: Mapping[str, Any],
    plan: Plan,
    *,
    counts: Mapping[str, Any] | Sequence[Any] | None = None,
    ids_per_sample: float | Mapping[str, float] | Sequence[float] | None = None,
) -> float:
    """Return the share of the tables' squared length that no layer of this plan could hold.

    0 is a plan that can reproduce the tables, 1 one that keeps nothing; rows count by popularity. It
    is what `spectral_plan` makes small, so it compares plans for the same tables.

    >>> import mixdim
    >>> tables = {"steep": np.diag([8.0, 6.0])}
    >>> table_error(tables, mixdim.plan({"steep": 2}, temperature=0, base_dim=1))
    0.36
    """
    matrices = _checked_tables(tables)
    sizes = {name: len(matrix) for name, matrix in matrices.items()}
    counts = per_feature(counts, "counts", sizes)
    often = per_feature(ids_per_sample, "ids_per_sample", sizes)
    orders, whole, lost = plan.orders, 0.0, 0.0
    for feature in plan.features:
        name = feature.name
        probs = often.get(name, 1.0) * _row_shares(counts.get(name), sizes[name])
        order = orders.get(name, np.arange(sizes[name]))
        for block in feature.blocks:
            ids = order[block.start : block.start + block.size]
            if block.storage.kind != "rows":
                raise ValueError(
                    f"feature {name!r} has a block that is {block.storage.kind}: of narrow blocks alone "
                    "it is known what they can hold"
                )
            energies = weighted_energies(matrices[name][ids], probs[ids])
            whole, lost = whole + energies.sum(), lost + energies[block.dim :].sum()
    return float(lost / whole) if whole else 0.0


def _checked_tables(tables: Mapping[str, Any]) -> dict[str, np.ndarray]:
    if not isinstance(tables, Mapping) or not tables:
        raise ValueError("tables must map at least one feature name to its table of (rows, width)")
    matrices = {}
    for name, table in tables.items():
        matrix = table.detach().cpu().numpy() if hasattr(table, "detach") else np.asarray(table)
        if matrix.dtype.kind not in "iuf" or matrix.ndim != 2 or 0 in matrix.shape:
            raise ValueError(
                f"the table of feature {name!r} must be numbers of shape (rows, width), "
                f"got {matrix.dtype} {matrix.shape}"
            )
        wrong = ~np.isfinite(matrix).all(axis=1)
        if wrong.any():
            raise ValueError(
                f"the table of feature {name!r} must be finite, row {wrong.argmax()} is not"
            )
        matrices[name] = matrix
    return matrices


def _checked_samples(
    sampled_ids: Mapping[str, Any], table_rows: Mapping[str, int], counts: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """By feature, the ids that the rows of a sampled table belong to."""
    checked = {}
    for name, given in sampled_ids.items():
        if name not in table_rows:
            raise UnknownFeatureError.among(name, table_rows)
        if name not in counts:
            raise ValueError(f"sampled_ids of feature {name!r} need the counts of all its rows")
        ids, rows = np.asarray(given), len(counts[name])
        if ids.dtype.kind not in "iu" or ids.shape != (table_rows[name],):
            raise ValueError(
                f"sampled_ids of feature {name!r} must be {table_rows[name]} whole numbers, one for "
                f"each row of its table, got {ids.dtype} {ids.shape}"
            )
        if ids.min() < 0 or ids.max() >= rows or len(np.unique(ids)) < len(ids):
            raise ValueError(f"sampled_ids of feature {name!r} must be different ids below {rows}")
        checked[name] = ids
    return checked


def _row_shares(counts: Any, num_rows: int) -> np.ndarray:
    """The share of a feature's queries that each row gets; equal if nothing is known."""
    values = np.ones(num_rows) if counts is None else np.asarray(counts, dtype=np.float64)
    return values / values.sum() if values.sum() else np.full(num_rows, 1 / num_rows)


def _block_energies(
    name: str, table: np.ndarray, probs: np.ndarray, cut: Blocks, sample: np.ndarray | None
) -> list[np.ndarray]:
    """The squared singular values of each block's table, rows weighted by probability."""
    order = np.arange(len(probs)) if cut.order is None else cut.order
    table_row = np.arange(len(probs))  # of each id; -1 if it was not sampled
    if sample is not None:
        table_row = np.full(len(probs), -1)
        table_row[sample] = np.arange(len(sample))
    energies = []
    for number, ids in enumerate(np.split(order, cut.block_starts[1:])):
        known = ids[table_row[ids] >= 0]
        if len(known) == 0:
            raise ValueError(f"sampled_ids of feature {name!r} have no row of its block {number}")
        weights = probs[known]
        if not weights.sum():  # the sample missed all rows that are asked for
            weights = np.ones(len(known))
        weights = weights * (probs[ids].sum() / weights.sum())
        energies.append(weighted_energies(table[table_row[known]], weights))
    return energies


def weighted_energies(table: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the squared singular values of diag(sqrt(weights)) @ table, descending: (width,).

    Keeping the first d of them is the best that a table of rank d can do, if row r counts `weights[r]`
    times. From the matrix of (width, width) products, so that a tall table costs one pass.

    >>> weighted_energies(np.array([[3.0, 0.0], [0.0, 1.0]]), np.array([1.0, 0.25])).tolist()
    [9.0, 0.25]
    """
    products = np.zeros((table.shape[1], table.shape[1]))
    for start in range(0, len(table), ROWS_AT_A_TIME):
        here = slice(start, start + ROWS_AT_A_TIME)
        rows = table[here].astype(np.float64)
        products += (rows * weights[here, None]).T @ rows
    energies = np.linalg.eigvalsh(products)[::-1]
    rounding = 16 * len(energies) * np.finfo(np.float64).eps * energies[0]
    return np.where(energies > rounding, energies, 0.0)


def _best_widths(
    block_sizes: np.ndarray, energies: Sequence[np.ndarray], budget: int, rounding: Rounding
) -> np.ndarray:
    """The widths of least error, over all base dims."""
    most = max(len(energy) for energy in energies)
    padded = np.array([np.pad(energy, (0, most - len(energy))) for energy in energies])
    errors = np.cumsum(padded[:, ::-1], axis=1)[:, ::-1] - padded  # (block, width - 1)

    candidates = []
    for base_dim in _widths(most, rounding).tolist():
        widths = _widths(base_dim, rounding)
        costs = stored_cost(block_sizes[:, None], widths, base_dim).parameters
        if costs.min(axis=1).sum() <= budget:
            bound = lagrangian_choice(costs, errors[:, widths - 1], budget).bound
            candidates.append((bound, base_dim, costs))

    best, least = np.ones(len(block_sizes), np.int64), np.inf
    for bound, base_dim, costs in sorted(candidates, key=lambda candidate: candidate[:2]):
        if bound >= (1 - RELATIVE_GAP) * least:
            break  # neither this base_dim nor a later one can do better
        widths = _widths(base_dim, rounding)
        of_widths = errors[:, widths - 1]
        options = best_choice(costs, of_widths, budget, relative_gap=RELATIVE_GAP).options
        error = of_widths[np.arange(len(options)), options].sum()
        if error < least:
            best, least = widths[options], error
    return best


def _widths(base_dim: int, rounding: Rounding) -> np.ndarray:
    """The widths a block may have up to base_dim, which is always one of them."""
    if rounding == "integer":
        return np.arange(1, base_dim + 1)
    return np.array([2**k for k in range((base_dim - 1).bit_length())] + [base_dim])


def nearest_temperature(plan: Plan) -> float:
    """The power law nearest to a plan's widths, whatever made them.

    It is the slope of log(width) over log(popularity), by least squares over the blocks, within [0, 1].
    """
    row_probs = np.array([block.row_prob for block in plan.blocks])
    block_dims = np.array([block.dim for block in plan.blocks])
    asked = row_probs > 0
    log_p, log_d = np.log(row_probs[asked]), np.log(block_dims[asked])
    spread = log_p - log_p.mean()
    if not (spread**2).sum() > 1e-12:
        return 0.0  # all are equally popular
    return round(float(np.clip(spread @ log_d / (spread @ spread), 0.0, 1.0)), 3)
