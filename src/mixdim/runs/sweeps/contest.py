"""Methods at equal bytes: the runs that compare them. Draws nothing.

Nobody knows the best width of a method before it is tried. So every method is tried at a few widths with
the first seed, and the best of them by validation is repeated with the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from mixdim.data import Dataset
from mixdim.planning.budget import BYTES_PER_PARAMETER, BudgetTooSmallError, format_bytes, parse_bytes
from mixdim.planning.methods import WIDTHS, method_named, stored_bytes
from mixdim.runs.config import RunConfig
from mixdim.runs.sweeps.records import Record
from mixdim.runs.sweeps.sweep import SweepRun, run_sweep
from mixdim.runs.sweeps.winners import winners
from mixdim.runs.train import plan_of

REFERENCE = "uniform"
LEAST_SPENT = 0.5  # of its bytes: a width that leaves more to others is no use of them


@dataclass(frozen=True)
class Contest:
    """The runs of a contest with the first seed, and the methods that no width makes small enough."""

    reference: RunConfig  # uniform, of the width that sizes are shares of
    candidates: list[RunConfig]
    too_large: list[str]  # a line each


def contest(
    told: RunConfig,
    dataset: Dataset,
    methods: Sequence[str],
    sizes: Sequence[str],
    *,
    reference_width: int = 16,
    widths: Sequence[int] = WIDTHS,
) -> Contest:
    """Find the runs that compare methods within the same bytes of embeddings.

    `sizes` are bytes ("4MB"), or shares ("1/8") of what uniform dimensions of `reference_width` cost.
    Widths that leave most of the bytes are left out, unless there is no better one.
    """
    whole = sum(dataset.cardinalities.values()) * reference_width * BYTES_PER_PARAMETER
    told = replace(told, seed=0)
    reference = replace(told, method=REFERENCE, budget=f"{whole}B")
    candidates, too_large = [], []
    for size in sizes:
        num_bytes = bytes_of(size, whole)
        for method in methods:
            tried: dict[RunConfig, int] = {}
            reason = ""
            for base_dim in widths if method_named(method).has_width else (None,):
                config = replace(told, method=method, base_dim=base_dim, budget=f"{num_bytes}B")
                try:
                    plan = plan_of(config.effective_for(dataset), dataset)
                except BudgetTooSmallError as error:
                    reason = reason or str(error)
                else:
                    tried[config] = stored_bytes(method, plan)
            enough = min(LEAST_SPENT * num_bytes, max(tried.values(), default=0))
            candidates += [config for config, spent in tried.items() if spent >= enough]
            if not tried:
                too_large.append(
                    f"{method} is not possible in {size} ({format_bytes(num_bytes)}): {reason}"
                )
    return Contest(reference, candidates, too_large)


def bytes_of(size: str, whole: int) -> int:
    """The bytes that a size says: "4MB", or "1/8" of `whole`, rounded down.

    >>> bytes_of("1/8", 1001), bytes_of("2kB", 1001)
    (125, 2000)
    """
    if "/" not in size:
        return parse_bytes(size)
    try:
        share = Fraction(size.replace(" ", ""))
    except (ValueError, ZeroDivisionError):
        raise ValueError(
            f"a size must be a share such as 1/8, or bytes such as 4MB, got {size!r}"
        ) from None
    if share <= 0:
        raise ValueError(f"a share of bytes must be above 0, got {size!r}")
    return int(share * whole)


def run_contest(
    asked: Contest,
    folders: Sequence[str],
    records: Path,
    *,
    seeds: int,
    sweep: Callable[..., list[Record]] = run_sweep,
    **options: Any,
) -> list[Record]:
    """Make the runs of a contest that are not in the file `records`; seed i takes folder i in turn.

    `options` are those of `run_sweep`. What is finished stays: after a stop, the same call goes on.
    """

    def with_seeds(configs: Iterable[RunConfig], numbers: Sequence[int]) -> list[SweepRun]:
        return [
            SweepRun(replace(config, seed=seed, data=folders[seed % len(folders)]))
            for seed in numbers
            for config in configs
        ]

    first = with_seeds(dict.fromkeys([asked.reference, *asked.candidates]), [0])  # "1/1" asks twice
    found = sweep(first, records, **options)
    best = {winner.records[0].key for winner, _ in winners(found)}
    repeated = [run.config for run, record in zip(first, found, strict=True) if record.key in best]
    return found + sweep(with_seeds(repeated, range(1, seeds)), records, **options)
