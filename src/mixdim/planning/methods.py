"""Ways to spend bytes on the rows of features, by name. Knows nothing about training.

Each makes a plan from features, bytes and perhaps a width: mixed dimensions, and what they are compared
with. All count everything that is stored.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mixdim._util.arguments import whole_number
from mixdim.planning.bands import descending_order
from mixdim.planning.budget import BudgetTooSmallError, parse_budget
from mixdim.planning.feature import Block, Feature
from mixdim.planning.from_counts import CountedFeatures, FloorWarning, plan
from mixdim.planning.plan import Plan, id_map_bytes, is_shuffled
from mixdim.planning.sizing import last_fit, too_small
from mixdim.storages import Hashed, QuotientRemainder, Robe, Rows, Storage
from mixdim.storages.rows import check_bits

WIDTHS = (1, 2, 4, 8, 16)  # that are tried where nothing else is said

Pieces = Sequence[tuple[int, Storage]]  # sizes and storages of a feature's blocks, from popular to rare


@dataclass(frozen=True)
class Method:
    """A way to spend bytes.

    - `about`: what it does, in a few words.
    - `make(features, num_bytes, base_dim=...)`: a plan that costs at most so much, or an error.
    - `has_width`: whether it takes a base_dim. Which is best, nobody knows before.
    - `shares_rows`: whether ids share trained rows, each feature on its own.
    """

    about: str
    make: Callable[..., Plan]
    has_width: bool = True
    shares_rows: bool = False


def plan_by_method(
    name: str,
    features: CountedFeatures,
    num_bytes: int,
    *,
    base_dim: int | None = None,
    bits: int = 32,
) -> Plan:
    """Plan features by the method of this name, for at most so many bytes as they are served.

    With fewer `bits` than 32 the plan is quantized: `plan.trainable()` is what is trained, and takes
    more bytes. Too few bytes for any plan are a `BudgetTooSmallError` that says how many it takes.

    >>> from types import SimpleNamespace
    >>> counted = SimpleNamespace(
    ...     cardinalities={"item": 6}, counts={"item": [9, 5, 4, 1, 1, 1]}, ids_per_sample={})
    >>> cut = plan_by_method("cut", counted, num_bytes=80, base_dim=4)
    >>> [(block.size, block.dim) for block in cut.blocks], cut.nbytes()
    ([(4, 4), (2, 0)], 80)
    >>> plan_by_method("cut", counted, num_bytes=80, base_dim=4, bits=8).blocks[0].storage
    Rows(dim=4, bits=8)
    """
    method, num_bytes, bits = method_named(name), whole_number(num_bytes, "num_bytes"), check_bits(bits)
    options = {"base_dim": whole_number(base_dim, "base_dim")} if method.has_width else {}
    if base_dim is not None and not method.has_width:
        raise ValueError(f"method {name!r} finds its own base_dim, got {base_dim}")

    def make(trained_bytes: int) -> Plan:
        return method.make(features, trained_bytes, **options)

    return make(num_bytes) if bits == 32 else _quantized(make, num_bytes, bits)


def method_named(name: str) -> Method:
    """Return the entry of a method."""
    if name not in METHODS:
        raise ValueError(
            f"method must be one of {', '.join(METHODS)} (bits are an option of their own), got {name!r}"
        )
    return METHODS[name]


def _quantized(make: Callable[[int], Plan], num_bytes: int, bits: int) -> Plan:
    """The quantized plan that takes most bytes in training, of those of at most `num_bytes`."""

    def is_small_enough(trained_bytes: int) -> bool:
        try:
            return make(trained_bytes).quantized(bits).nbytes() <= num_bytes
        except BudgetTooSmallError:
            return True

    most = last_fit(is_small_enough, 1, num_bytes * 32 // bits + 1)
    try:
        return make(most).quantized(bits)
    except BudgetTooSmallError as error:
        raise BudgetTooSmallError(f"{num_bytes:,} bytes in {bits} bits are too few: {error}") from None


def _power_law(features: CountedFeatures, num_bytes: int, **options: Any) -> Plan:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FloorWarning)  # who compares methods knows where they end
        return plan(features, budget=f"{num_bytes}B", **options)


def _cut(features: CountedFeatures, num_bytes: int, *, base_dim: int) -> Plan:
    """Rows asked for often enough have vectors of their own; all others of a feature share one.

    How often is enough, the same for all features, follows from the budget; of rows that are asked for
    once less, as many as it allows.
    """
    rows = features.cardinalities
    falling = {name: -np.sort(-np.asarray(counts)) for name, counts in features.counts.items()}

    def kept(least_count: int) -> dict[str, int]:
        return {n: int(np.searchsorted(-c, -least_count, "right")) for n, c in falling.items()}

    def cost(own: Mapping[str, int]) -> int:
        return base_dim * sum(n + (n < rows[name]) for name, n in own.items())

    budget = parse_budget(f"{num_bytes}B", held_bytes=_bytes_of_orders(features))
    highest = int(max(counts[0] for counts in falling.values())) + 1  # nothing is asked for so often
    if cost(kept(highest)) > budget:
        raise too_small(budget, cost(kept(highest)), f"a vector of {base_dim} for each feature", 0)
    least_count = highest - last_fit(lambda by: cost(kept(highest - by)) <= budget, 0, highest + 1)
    own = kept(least_count)
    left = (budget - cost(own)) // base_dim
    for name, next_ones in kept(least_count - 1).items():
        more = min(left, next_ones - own[name])
        own[name], left = own[name] + more, left - more

    def pieces(name: str) -> Pieces:
        both = ((own[name], Rows(base_dim)), (rows[name] - own[name], Rows(0)))
        return [(size, storage) for size, storage in both if size]

    return _assembled(features, pieces, base_dim, {"rule": "cut", "least_count": least_count})


def _capped(
    features: CountedFeatures,
    num_bytes: int,
    storage_of: Callable[[int, int, int], Storage],
    rule: str,
    *,
    base_dim: int,
) -> Plan:
    """Store features of more rows than a cap in a way that needs no more than it, the others as usual.

    `storage_of(rows, base_dim, cap)` says how; the largest cap that the budget allows is taken.
    """
    sizes = features.cardinalities

    def storage(rows: int, cap: int) -> Storage:
        return Rows(base_dim) if rows <= cap else storage_of(rows, base_dim, cap)

    def cost(cap: int) -> int:
        return sum(storage(n, cap).cost(n, base_dim).parameters for n in sizes.values())

    budget = parse_budget(f"{num_bytes}B")
    if cost(1) > budget:
        raise too_small(budget, cost(1), f"what rows of {base_dim} can share", 0)
    cap = last_fit(lambda cap: cost(cap) <= budget, 1, max(sizes.values()) + 1)
    provenance = {"rule": rule, "cap": cap}
    return _assembled(features, lambda f: [(sizes[f], storage(sizes[f], cap))], base_dim, provenance)


def _hashed(rows: int, base_dim: int, cap: int, *, hashes: int) -> Storage:
    return Hashed(base_dim, buckets=cap, hashes=hashes)


def _quotient_remainder(rows: int, base_dim: int, cap: int) -> Storage:
    """As few rows to a quotient as the cap allows; its least possible number of stored rows at least."""
    root = math.isqrt(rows - 1) + 1  # buckets + rows / buckets is least there
    few, many = 1, root
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if middle + -(-rows // middle) <= cap else (middle, many)
    found = QuotientRemainder(base_dim, buckets=many)
    return found if found.stored_rows(rows) < rows else Rows(base_dim)


def _robe(features: CountedFeatures, num_bytes: int, *, base_dim: int) -> Plan:
    """All rows of all features are pieces of one array."""
    length = parse_budget(f"{num_bytes}B")
    if length < base_dim:
        raise too_small(length, base_dim, "a single row", 0)
    rows, storage = features.cardinalities, Robe(base_dim, length)
    provenance = {"rule": "robe", "length": length}
    return _assembled(features, lambda name: [(rows[name], storage)], base_dim, provenance)


def _bytes_of_orders(features: CountedFeatures) -> int:
    orders = [descending_order(np.asarray(counts)) for counts in features.counts.values()]
    return id_map_bytes([order for order in orders if is_shuffled(order)])


def _assembled(
    features: CountedFeatures,
    pieces: Callable[[str], Pieces],
    base_dim: int,
    provenance: Mapping[str, Any],
) -> Plan:
    """Put blocks of the given sizes and storages together, with their popularities."""
    found, orders = [], []
    for name, rows in features.cardinalities.items():
        counts, ids = np.asarray(features.counts[name]), features.ids_per_sample.get(name, 1.0)
        order, cut = descending_order(counts), pieces(name)
        mass, blocks, start = np.append(0, np.cumsum(counts[order])), [], 0
        for size, storage in cut:
            share = float(mass[start + size] - mass[start]) / max(float(mass[-1]), 1.0)
            prob = (share if len(cut) > 1 else 1.0) * ids / size
            blocks.append(Block(start, size, storage, prob))
            start += size
        found.append(Feature(name, rows, tuple(blocks), len(blocks)))
        if len(cut) > 1:
            orders.append((name, order))
    return Plan(base_dim, provenance, tuple(found), tuple(orders))


METHODS = {
    "uniform": Method("one width for all rows", partial(_power_law, temperature=0.0), has_width=False),
    "mixed": Method(
        "a width for each feature, by the popularity of its rows",
        partial(_power_law, temperature=0.3, rounding="integer"),
    ),
    "octaves": Method(
        "a width for each power of two of the counts, and one row for the rarest",
        partial(_power_law, temperature=0.5, bands="octaves", min_dim=0),
    ),
    "cut": Method("one width for frequent rows, and one row for all others", _cut),
    "hashed": Method(
        "rows of large features share hashed ones",
        partial(_capped, storage_of=partial(_hashed, hashes=1), rule="hashed"),
        shares_rows=True,
    ),
    "double-hashed": Method(
        "rows of large features are sums of two hashed ones",
        partial(_capped, storage_of=partial(_hashed, hashes=2), rule="double-hashed"),
        shares_rows=True,
    ),
    "quotient-remainder": Method(
        "rows of large features are products of a quotient's and a remainder's",
        partial(_capped, storage_of=_quotient_remainder, rule="quotient-remainder"),
        shares_rows=True,
    ),
    "robe": Method("all rows are pieces of one array", _robe),
}
