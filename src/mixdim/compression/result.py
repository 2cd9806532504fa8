"""What became of a model's tables, to be printed and read. Changes none of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mixdim._util.text import align
from mixdim.planning.budget import format_bytes
from mixdim.planning.plan import Plan

MOST_LINES = 40  # of tables


class Plans(Mapping[str, Plan]):
    """The plan of each table by its name; prints as one plan below the other."""

    def __init__(self, plans: Mapping[str, Plan]) -> None:
        self._plans = dict(plans)

    def __getitem__(self, name: str) -> Plan:
        return self._plans[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._plans)

    def __len__(self) -> int:
        return len(self._plans)

    def __str__(self) -> str:
        return "\n\n".join(str(plan) for plan in self._plans.values())

    __repr__ = __str__


@dataclass(frozen=True)
class TableOutcome:
    """What became of one table.

    `kept_energy` is the share that is kept of its squares by popularity, as the choice expects it.
    """

    name: str
    rows: int
    width: int
    bytes_before: int
    bytes_after: int
    plan: Plan | None = None
    kept_energy: float | None = None
    refused: str | None = None


@dataclass(frozen=True)
class Compression:
    """What `mixdim.compress` did.

    - `tables`: what became of each; `plan` and `refused` are the same by name.
    - `stale`: where old tables are still referred to, and what to do about it.
    - `optimizers`: which optimizers still hold old parameters, and what to do about it.
    - `moved`: how many of the given optimizers have the new parameters in their place.
    """

    tables: tuple[TableOutcome, ...]
    stale: tuple[str, ...] = ()
    optimizers: tuple[str, ...] = ()
    moved: int = 0

    @property
    def plan(self) -> Plans:
        """How the small tables are stored, by name."""
        return Plans({table.name: table.plan for table in self.tables if table.plan is not None})

    @property
    def refused(self) -> dict[str, str]:
        """Why tables were left as they were, by name."""
        return {table.name: table.refused for table in self.tables if table.refused is not None}

    @property
    def bytes_before(self) -> int:
        """Bytes of all tables of the model."""
        return sum(table.bytes_before for table in self.tables)

    @property
    def bytes_after(self) -> int:
        """The same now, with all that is kept to find rows, and with tables that were refused."""
        return sum(table.bytes_after for table in self.tables)

    @property
    def bytes_refused(self) -> int:
        """Bytes of the tables that were left as they were."""
        return sum(table.bytes_after for table in self.tables if table.refused is not None)

    @property
    def ratio(self) -> float:
        """How many times smaller the tables are that were compressed."""
        kept = self.bytes_refused
        return (self.bytes_before - kept) / (self.bytes_after - kept) if self.plan else 1.0

    def __str__(self) -> str:
        lines = [["table", "rows", "width", "bytes", "now", "kept energy", "dims by popularity"]]
        for table in self.tables[:MOST_LINES]:
            done = table.plan is not None
            lines.append([
                table.name,
                f"{table.rows:,}",
                str(table.width),
                format_bytes(table.bytes_before),
                format_bytes(table.bytes_after) if done else "as before",
                "" if table.kept_energy is None else f"{table.kept_energy:.1%}",
                _widths(table.plan) if table.plan else "",
            ])  # fmt: skip
        others = len(self.tables) - MOST_LINES
        kept = self.bytes_refused
        return "\n".join([
            *align(lines),
            *([f"... {others:,} more"] if others > 0 else []),
            f"compressed {self.ratio:.1f}x: {format_bytes(self.bytes_before - kept)} are "
            f"{format_bytes(self.bytes_after - kept)} now, all that finds rows included",
            *([f"left as they were: {format_bytes(kept)}"] if self.refused else []),
            *(f"  {name}: {reason}" for name, reason in self.refused.items()),
            f"all tables: {format_bytes(self.bytes_before)}, now {format_bytes(self.bytes_after)}",
            *(["still referring to old tables:"] if self.stale else []),
            *(f"  {line}" for line in self.stale),
            *(["optimizers:"] if self.optimizers else []),
            *(f"  {line}" for line in self.optimizers),
        ])  # fmt: skip


def _widths(plan: Plan) -> str:
    """Widths from popular to rare; with their bits, where numbers are codes."""
    described = [block.storage.describe(block.size) for block in plan.blocks]
    return ", ".join(described) if plan.least_bits < 32 else " ".join(str(b.dim) for b in plan.blocks)
