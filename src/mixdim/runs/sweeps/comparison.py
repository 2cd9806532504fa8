"""Methods at equal bytes: the runs that compare them. Draws nothing.

Nobody knows the best width of a method before it is tried. So every method is tried at a few widths with
the first seed, and the best of them by validation is repeated with the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

from mixdim.data import Dataset
from mixdim.planning.budget import BYTES_PER_PARAMETER, BudgetTooSmallError, format_bytes, parse_bytes
from mixdim.planning.methods import WIDTHS, method_named
from mixdim.runs.config import RunConfig, run_options
from mixdim.runs.plans import number_bytes, plan_of, vector_bytes
from mixdim.runs.sweeps.frame import best_by_method, run_frame
from mixdim.runs.sweeps.methods import with_bits
from mixdim.runs.sweeps.records import Record
from mixdim.runs.sweeps.sweep import RunRequest, run_sweep

REFERENCE = "uniform"
LEAST_SPENT = 0.5  # of its bytes: a width that leaves more to others is no use of them
# Options of the reference that need no word: they are its name, or do nothing to uniform dimensions.
OF_THE_METHOD = {"method", "budget", "temperature", "base_dim", "rounding", "min_dim"}
REASONS = {
    "first_order": "the bytes that are compared are all for vectors",
    "from_baseline": "it needs first_order",
    "bands": "a method makes its own bands",
}


@dataclass(frozen=True)
class Comparison:
    """The runs of a comparison with the first seed, and the methods that are not possible.

    No width makes them small enough, or nothing of them can be quantized.
    """

    reference: RunConfig  # uniform, of the width that sizes are shares of
    candidates: list[RunConfig]
    not_possible: list[str]  # a line each
    differences: str | None  # from `mixdim train`, in a line


def comparison(
    given: RunConfig,
    dataset: Dataset,
    methods: Sequence[str],
    sizes: Sequence[str],
    *,
    bits: Sequence[int] = (32,),
    reference_width: int = 16,
    widths: Sequence[int] = WIDTHS,
) -> Comparison:
    """Find the runs that compare methods within the same bytes of all that grows with ids.

    `sizes` are bytes ("4MB"), or shares ("1/8") of what uniform dimensions of `reference_width` cost.
    Every method is served in each number of `bits`. Widths that leave most of the bytes are left out,
    unless there is no better one.
    """
    given = replace(given, seed=0, bits=32)
    rows = sum(dataset.cardinalities.values())
    whole = rows * reference_width * BYTES_PER_PARAMETER
    reference = replace(given, method=REFERENCE, budget=f"{whole}B")
    whole += number_bytes(reference.resolved(dataset), dataset.cardinalities)
    reference = replace(reference, budget=f"{whole}B")
    candidates, not_possible = [], []
    for size, number, method in product(sizes, bits, methods):
        num_bytes = bytes_of(size, whole)
        tried: dict[RunConfig, int] = {}
        reason = ""
        for base_dim in widths if method_named(method).has_width else (None,):
            budget = f"{num_bytes}B"
            config = replace(given, method=method, bits=number, base_dim=base_dim, budget=budget)
            try:
                full = config.resolved(dataset)
                plan = plan_of(full, dataset)
            except BudgetTooSmallError as error:
                reason = reason or str(error)
                continue
            if plan.least_bits == number:
                left = vector_bytes(full, dataset.cardinalities, num_bytes, number)
                tried[config] = plan.nbytes() + num_bytes - left
            else:
                reason = "no row of it has numbers of its own to quantize"
        enough = min(LEAST_SPENT * num_bytes, max(tried.values(), default=0))
        candidates += [config for config, spent in tried.items() if spent >= enough]
        if not tried:
            name = with_bits(method, number)
            not_possible.append(
                f"{name} is not possible in {size} ({format_bytes(num_bytes)}): {reason}"
            )
    alone = replace(given, temperature=0.0, base_dim=reference_width)
    differences = _differences(reference.resolved(dataset), alone.resolved(dataset))
    return Comparison(reference, candidates, not_possible, differences)


def _differences(reference: RunConfig, alone: RunConfig) -> str | None:
    """The options that the reference has otherwise than the same uniform run by `mixdim train`, and why.

    Each by itself has its reason in a comparison; to get the same run, give them to `mixdim train`.
    """
    found = []
    others = reference.to_dict()
    for name, usual in alone.to_dict().items():
        value = others.get(name)
        value = 1 if name == "bands" and value is None else value  # a uniform plan has one
        if name in OF_THE_METHOD or value == usual:
            continue
        text = " ".join(run_options()[name].arguments(value))
        found.append(f"{text} ({REASONS[name]})" if name in REASONS else text)
    if not found:
        return None
    width = f"--temperature 0 --base-dim {alone.base_dim}"
    return f"the uniform reference is the run of mixdim train {width} with {', '.join(found)}"


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


def run_comparison(
    compared: Comparison,
    folders: Sequence[str],
    records: Path,
    *,
    seeds: int,
    sweep: Callable[..., list[Record]] = run_sweep,
    **options: Any,
) -> list[Record]:
    """Make the runs of a comparison that are not in the file `records`; seed i takes folder i in turn.

    `options` are those of `run_sweep`. What is finished stays: after a stop, the same call goes on.
    """

    def with_seeds(configs: Iterable[RunConfig], numbers: Sequence[int]) -> list[RunRequest]:
        return [
            RunRequest(replace(config, seed=seed, data=folders[seed % len(folders)]))
            for seed in numbers
            for config in configs
        ]

    first = with_seeds(
        dict.fromkeys([compared.reference, *compared.candidates]), [0]
    )  # "1/1" asks twice
    # Of the runs that differ in nothing but the width, one is repeated with every other seed.
    searches = {replace(run.config, base_dim=None) for run in first}
    found = sweep(first, records, later=len(searches) * (seeds - 1), **options)
    best = {found[number].key for number in best_by_method(run_frame(found))["number"]}
    made = len({record.key for record in found})
    repeated = [run.config for run, record in zip(first, found, strict=True) if record.key in best]
    return found + sweep(with_seeds(repeated, range(1, seeds)), records, earlier=made, **options)
