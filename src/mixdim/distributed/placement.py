"""Which rank holds which table, and what that costs: decided before any process is started.

Knows nothing about TorchRec. Every rank comes to the same answer on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from mixdim._util.arguments import whole_number
from mixdim._util.text import align
from mixdim.distributed.tables import BlockTable, tables_of
from mixdim.layer.layout import Layout
from mixdim.planning.budget import format_bytes
from mixdim.planning.plan import OPTIMIZER_STATE, Plan

Sharding = Literal["auto", "table_wise", "row_wise"]
REPLICATE_BELOW = 2**20  # bytes of a table
LARGE = 1 / 8  # of a rank's mean share


@dataclass(frozen=True)
class Place:
    """Where a table is: on every rank, cut by rows over all of them, or whole on `rank`."""

    kind: Literal["data_parallel", "row_wise", "table_wise"]
    rank: int | None = None


def place_tables(
    tables: Sequence[BlockTable],
    world: int,
    *,
    sharding: Sharding = "auto",
    replicate_below: int = REPLICATE_BELOW,
) -> dict[str, Place]:
    """Place each table, by name.

    - A table below `replicate_below` bytes is on every rank: sending its vectors around would cost more.
      That must not depend on how many ranks there are.
    - "table_wise": each other table is whole on one rank, the largest first to the one with least.
    - "row_wise": each other table is cut into equal shares of rows, unless a rank would have none.
    - "auto": by rows the tables larger than an eighth of a rank's mean share, the others whole: so no
      rank has more than 9/8 of the mean.
    """
    if sharding not in get_args(Sharding):
        raise ValueError(f"sharding must be one of {', '.join(get_args(Sharding))}, got {sharding!r}")
    whole_number(world, "the number of ranks")
    whole_number(replicate_below, "replicate_below", at_least=0)
    sharded = [table for table in tables if table.nbytes >= replicate_below]
    share = sum(table.nbytes for table in sharded) / world
    places, held = {}, [0] * world
    for table in sorted(sharded, key=lambda table: -table.nbytes):
        by_rows = sharding == "row_wise" or (sharding == "auto" and table.nbytes > share * LARGE)
        if by_rows and can_be_cut(table.layout.rows, world):
            places[table.name] = Place("row_wise")
            held = [size + table.nbytes // world for size in held]
        else:
            rank = held.index(min(held))
            places[table.name] = Place("table_wise", rank)
            held[rank] += table.nbytes
    return {table.name: places.get(table.name, Place("data_parallel")) for table in tables}


def can_be_cut(rows: int, world: int) -> bool:
    """Whether equal shares of ceil(rows / world) leave some for the last rank.

    With an empty share, TorchRec trains wrong weights on a CPU, and says nothing.
    """
    return world > 1 and (world - 1) * -(-rows // world) < rows


def rows_at(table: BlockTable, place: Place, rank: int, world: int) -> tuple[int, int]:
    """The first stored row of a table that a rank holds, and the row after the last."""
    rows = table.layout.rows
    if place.kind == "row_wise":
        share = -(-rows // world)
        return rank * share, min((rank + 1) * share, rows)
    return (0, rows) if place.rank in (None, rank) else (0, 0)


@dataclass(frozen=True)
class RankBytes:
    """What one rank holds of a plan, in bytes."""

    tables: int  # of tables that others do not hold, or not these rows of
    state: int  # the optimizer's, of these
    replicated: int  # the same on every rank: small tables, projections, ranks of ids, and their state

    @property
    def total(self) -> int:
        """All of it."""
        return self.tables + self.state + self.replicated


def bytes_by_rank(
    plan: Plan,
    world: int,
    *,
    optimizer: str = "adagrad",
    sharding: Sharding = "auto",
    replicate_below: int = REPLICATE_BELOW,
) -> list[RankBytes]:
    """What each of `world` ranks will hold of the embeddings of a plan."""
    tables = tables_of(Layout.of(plan), list(plan))
    places = place_tables(tables, world, sharding=sharding, replicate_below=replicate_below)
    copies = OPTIMIZER_STATE[optimizer]
    shared = sum(t.nbytes for t in tables if places[t.name].kind == "data_parallel")
    replicated = (shared + 4 * plan.projection_parameters) * (1 + copies) + plan.id_map_bytes
    found = []
    for rank in range(world):
        held = 0
        for table in tables:
            if places[table.name].kind != "data_parallel":
                first, last = rows_at(table, places[table.name], rank, world)
                held += 4 * (last - first) * table.layout.width
        found.append(RankBytes(held, held * copies, replicated))
    return found


def rank_table(by_rank: Sequence[RankBytes], optimizer: str = "adagrad") -> str:
    """What each rank holds, as a table for people."""
    lines = [["rank", "tables", f"{optimizer} state", "on every rank", "in all"]]
    for rank, held in enumerate(by_rank):
        sizes = held.tables, held.state, held.replicated, held.total
        lines.append([str(rank), *map(format_bytes, sizes)])
    note = "embeddings alone: MLPs, batches and the libraries themselves come on top, on every rank"
    return "\n".join([*align(lines), note])
