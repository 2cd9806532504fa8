"""From trained tables and a budget to a plan: bands, widths and bits of all tables together.

Knows nothing about models, nor how a layer is filled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from mixdim._util.arguments import positive_number, whole_number
from mixdim.planning.band_options import Bits
from mixdim.planning.bands import MOST_BANDS, Bands, Blocks, Pieces, candidate_cuts, check_bands
from mixdim.planning.budget import BYTES_PER_PARAMETER, parse_budget
from mixdim.planning.from_counts import assemble_plan, bytes_of_orders, cut_features, per_feature
from mixdim.planning.measured_tables import MeasuredTable, ranges
from mixdim.planning.plan import Plan
from mixdim.planning.sizing import Rounding, check_rounding, too_small
from mixdim.planning.table_options import Choice, IdMapBytes, Options
from mixdim.planning.trained_table import TrainedTable, checked_weight
from mixdim.storages.rows import check_bits


def choose(
    tables: Sequence[TrainedTable],
    budget: int,
    *,
    bands: Bands | Sequence[Blocks] = 8,
    dims: Sequence[int] | None = None,
    bits: Literal["auto"] | Sequence[int] = (32,),
    base_dim: Literal["free"] | None = None,
    id_map_bytes: IdMapBytes | None = None,
) -> list[Choice]:
    """Choose bands, and a storage for each, for all tables within one budget of bytes.

    It minimises the sum over rows of p |e - e'|^2, tables weighted by how often they are used. A table
    that never is weighs what others do on average.

    - `bands`: the most bands of a field, or "octaves": one for each power of two of the count. Fewer
      are chosen where that is better, down to one, which needs no ranks of ids. Or, for each table, the
      blocks that it is cut into.
    - `dims`: the widths to choose from; 0 lets all rows of a band share one, their mean. A table's own
      width is always one of them. None is all.
    - `bits`: the bits of a number to choose from, one for all directions of a band; or "auto": of each
      direction its own, of `mixdim.Rows`, with the mean of a band where that pays.
    - `base_dim`: None is the width of each table, which can so be given back. "free" is for tables that
      are to be trained anew: the best of `dims`, one for all tables.
    - `id_map_bytes(rows, bands, rows of the table)`: bytes of the ranks of the ids of a field, where its
      bands are no ranges of ids. None: they are not part of the budget.

    A budget that is too small is a ValueError that says the smallest; so are weights that are not
    finite, by table and row.

    >>> counts = np.array([900, 500, 40, 30] + 996 * [1])  # ids are in order of popularity
    >>> table = TrainedTable("x", np.random.default_rng(0).normal(size=(1000, 16)), counts)
    >>> [(block.size, block.dim) for block in choose([table], budget=400)[0].plan.blocks]
    [(4, 16), (72, 0), (924, 0)]
    """
    if not tables:
        raise ValueError("tables must not be empty: there is no table to choose for")
    budget, least_dim = whole_number(budget, "budget"), 1 if base_dim == "free" else 0
    widest = max(table.width for table in tables)
    given = range(least_dim, widest + 1) if dims is None else dims
    widths = sorted({whole_number(dim, "dims", at_least=least_dim) for dim in given})
    offered = bits_to_offer(bits)
    if offered == "auto" and widths[0] > 1:
        raise ValueError(f"bits='auto' chooses widths too: dims must begin with 0 or 1, got {widths[0]}")
    options = Options(
        [
            MeasuredTable.of(table, use, pieces)
            for table, use, pieces in zip(tables, _uses(tables), _pieces_of(tables, bands), strict=True)
        ],
        widths,
        offered,
        bands if isinstance(bands, int) else MOST_BANDS,
        id_map_bytes,
    )
    base_dims: list[int | None] = [None]
    if base_dim == "free":
        base_dims = [*(dim for dim in widths if dim < widest), widest]
    return options.best(base_dims, budget)


def bits_to_offer(bits: Literal["auto"] | Sequence[int]) -> Bits:
    """Refuse bits that no row can be kept in."""
    if isinstance(bits, str):
        if bits != "auto":
            raise ValueError(f"bits must be 'auto' or numbers of bits, got {bits!r}")
        return "auto"
    offered = list(dict.fromkeys(check_bits(own) for own in bits))
    if not offered:
        raise ValueError("bits must not be empty")
    return offered


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
    trained = _trained_tables(tables, counts, ids_per_sample, sampled_ids)
    sizes = {name: table.rows for name, table in trained.items()}
    blocks = cut_features(
        sizes, per_feature(counts, "counts", sizes), per_feature(bands, "bands", sizes)
    )
    held_bytes = bytes_of_orders(blocks)
    limit = parse_budget(budget, held_bytes=held_bytes, num_rows=sum(sizes.values()))
    if sum(sizes.values()) > limit:
        raise too_small(limit, sum(sizes.values()), "one parameter for each row", held_bytes)
    widest = max(table.width for table in trained.values())
    powers = [2**k for k in range(widest.bit_length())]
    choices = choose(
        list(trained.values()),
        BYTES_PER_PARAMETER * limit,
        bands=list(blocks.values()),
        dims=powers if rounding == "power_of_two" else None,
        base_dim="free",
    )
    row_probs = [trained[name].use * cut.row_probs for name, cut in blocks.items()]
    dims = np.array([block.dim for choice in choices for block in choice.plan.blocks])
    base_dim, provenance = choices[0].plan.base_dim, {"rule": "spectral"}
    return assemble_plan(
        blocks, np.concatenate(row_probs), dims, base_dim=base_dim, provenance=provenance
    )


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
    trained, orders = _trained_tables(tables, counts, ids_per_sample), plan.orders
    whole = lost = 0.0
    for feature in plan.features:
        table = trained[feature.name]
        order = orders.get(feature.name, np.arange(table.rows))
        for block in feature.blocks:
            if block.storage.kind != "rows":
                raise ValueError(
                    f"feature {feature.name!r} has a block that is {block.storage.kind}: only of blocks "
                    "whose rows have numbers of their own it is known what they can hold"
                )
            energies = table.moments(order[block.start : block.start + block.size]).energies()
            whole, lost = (
                whole + table.use * energies.sum(),
                lost + table.use * energies[block.dim :].sum(),
            )
    return float(lost / whole) if whole else 0.0


def nearest_temperature(plan: Plan) -> float:
    """The power law nearest to a plan's widths, whatever made them.

    It is the slope of log(width) over log(popularity), by least squares over the blocks, within [0, 1].
    """
    row_probs = np.array([block.row_prob for block in plan.blocks])
    block_dims = np.array([block.dim for block in plan.blocks])
    seen = row_probs > 0
    log_p, log_d = np.log(row_probs[seen]), np.log(block_dims[seen])
    spread = log_p - log_p.mean()
    if not (spread**2).sum() > 1e-12:
        return 0.0  # all are equally popular
    return round(float(np.clip(spread @ log_d / (spread @ spread), 0.0, 1.0)), 3)


def _uses(tables: Sequence[TrainedTable]) -> list[float]:
    """How much an error in each table weighs.

    That is how often it is used: one that never is weighs what others do on average. Beside tables with
    a metric, one without has theirs on average, the same in all directions.
    """
    usual = float(np.mean([table.use for table in tables if table.use] or [1.0]))
    felt = [float(np.trace(t.metric)) / t.width for t in tables if t.metric is not None]
    usually_felt = float(np.mean(felt)) if felt else 1.0
    return [(t.use or usual) * (usually_felt if t.metric is None else 1.0) for t in tables]


def _pieces_of(
    tables: Sequence[TrainedTable], bands: Bands | Sequence[Blocks]
) -> Iterator[list[Pieces]]:
    """The ways to cut each table, field by field."""
    if isinstance(bands, Sequence) and not isinstance(bands, str):
        rows, given = [table.rows for table in tables], [int(b.block_sizes.sum()) for b in bands]
        if rows != given:
            raise ValueError(f"bands must be of tables of {rows} rows, got blocks of {given} rows")
        return ([Pieces.of_blocks(blocks)] for blocks in bands)
    check_bands(bands)
    return (
        [candidate_cuts(table.counts[a:b], bands) for a, b in ranges(table.fields)] for table in tables
    )


def _trained_tables(
    tables: Mapping[str, Any],
    counts: Any,
    ids_per_sample: Any,
    sampled_ids: Mapping[str, Any] | None = None,
) -> dict[str, TrainedTable]:
    """Tables by feature, as arguments of a plan describe them; rows never looked up count nothing."""
    if not isinstance(tables, Mapping) or not tables:
        raise ValueError("tables must map at least one feature name to its table of (rows, width)")
    sizes = {name: checked_weight(table, name).shape[0] for name, table in tables.items()}
    counts = per_feature(counts, "counts", sizes)
    samples = per_feature(sampled_ids, "sampled_ids", sizes)
    often = per_feature(ids_per_sample, "ids_per_sample", sizes)
    return {
        name: TrainedTable(
            name,
            table,
            counts.get(name),
            sampled_ids=samples.get(name),
            lookups=positive_number(often.get(name, 1.0), f"ids_per_sample of feature {name!r}"),
            itemsize=BYTES_PER_PARAMETER,
            unseen=0.0,
        )
        for name, table in tables.items()
    }
