"""From what a user knows about the data to a plan: block, size, solve. Knows nothing about tables."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from mixdim._util.arguments import nonnegative_vector, real_number, unit_interval, whole_number
from mixdim.planning.bands import (
    OCTAVES,
    Bands,
    Blocks,
    equal_mass_bands,
    octave_bands,
    whole_feature,
)
from mixdim.planning.budget import parse_budget
from mixdim.planning.feature import Block, Feature, UnknownFeatureError
from mixdim.planning.filling import filled_dims
from mixdim.planning.plan import Plan, id_map_bytes, is_shuffled
from mixdim.planning.scaling import scaled_dims
from mixdim.planning.sizing import (
    RoundingOrFill,
    largest_base_dim,
    nearest_rounding,
    power_law_dims,
    round_dims,
    smallest_temperature,
)
from mixdim.storages import Rows
from mixdim.storages.rows import rows_cost


class FloorWarning(UserWarning):
    """Most rows are stored at width 1, where temperature does nothing."""


@runtime_checkable
class CountedFeatures(Protocol):
    """What knows its features' rows and how often each was looked up: a `mixdim.data.Dataset`."""

    @property
    def cardinalities(self) -> Mapping[str, int]:
        """Rows of each feature."""

    @property
    def counts(self) -> Mapping[str, Any]:
        """How often each row of each feature was queried."""

    @property
    def ids_per_sample(self) -> Mapping[str, float]:
        """Mean number of ids of the features that have more or fewer than one."""


def plan(
    rows: Mapping[str, int] | Sequence[int] | CountedFeatures,
    *,
    temperature: float | None = None,
    base_dim: int | None = None,
    budget: int | str | None = None,
    counts: Mapping[str, Any] | Sequence[Any] | None = None,
    bands: Bands | Mapping[str, Bands] | Sequence[Bands] = 1,
    ids_per_sample: float | Mapping[str, float] | Sequence[float] | None = None,
    rounding: RoundingOrFill = "power_of_two",
    min_dim: int = 1,
) -> Plan:
    """Plan how wide each block of each feature is stored.

    Give two of `temperature`, `base_dim` and `budget`; the third is solved: the largest base_dim, or
    the smallest temperature (to three decimals), that keeps within the budget. Given all three, base_dim
    bounds the widths min(base_dim, scale * p ** temperature), and the scale is solved.

    - `rows`: rows of each feature, by name; or a sequence, then the names are "0", "1", ...; or a
      `mixdim.data.Dataset`, which brings its counts and ids per sample with it.
    - `temperature`: 0 is uniform, 1 proportional to popularity (the paper's alpha).
    - `base_dim`: width of the vectors that leave the layer, and of the most popular block.
    - `budget`: parameters that the layer may have, projections included, or float32 bytes ("64MB"): of
      these, the ranks of ids that are not in order of popularity are paid first. Or "width:2": as many
      parameters as uniform dimensions of width 2 have.
    - `counts`: how often each row of a feature was queried, row by row.
    - `bands`: blocks of equal popularity mass to cut each feature into; more than 1 needs counts. Or
      "octaves": a band for each power of two of the counts. The layer then takes ids in descending
      order of popularity, or the permutation in `plan.orders`.
    - `ids_per_sample`: mean number of ids that a sample has in a feature, 1 if not given.
    - `rounding`: "power_of_two" or "integer", which leave some of a budget; or "fill": integers, and
      what they leave widens blocks by 1, in the order in which the power law would.
    - `min_dim`: with 0, blocks whose width is below 1/2 share one row: less than a parameter a row.

    The popularity p of a block is the mean over its rows of the probability that a sample asks for
    the row: (ids per sample) * (share of the feature's queries) / (rows). Widths follow the ratio of p
    to the largest p of all features, so features compete for one budget. (The paper once writes p as
    a sum over rows, which would make bands of equal mass equally wide.)

    >>> import mixdim
    >>> small = mixdim.plan({"user": 6040, "item": 3706}, temperature=0.3, budget="1MB")
    >>> small.base_dim, small.num_parameters, [block.dim for block in small.blocks]
    (26, 193412, [16, 26])
    """
    if isinstance(rows, CountedFeatures):
        counts = rows.counts if counts is None else counts
        ids_per_sample = rows.ids_per_sample if ids_per_sample is None else ids_per_sample
        rows = rows.cardinalities
    if isinstance(rows, str) or not isinstance(rows, Mapping | Sequence | np.ndarray):
        raise TypeError(f"rows must be a mapping or a sequence of row counts, got {rows!r}")
    rows = rows if isinstance(rows, Mapping) else {str(i): n for i, n in enumerate(rows)}
    if not rows:
        raise ValueError("rows must name at least one feature, got none")
    sizes = {name: whole_number(n, f"rows of feature {name!r}") for name, n in rows.items()}
    if [temperature, base_dim, budget].count(None) > 1:
        raise ValueError("give two of temperature, base_dim and budget, or all three")
    nearest = nearest_rounding(rounding, has_budget=budget is not None)
    if whole_number(min_dim, "min_dim", at_least=0) > 1:
        raise ValueError(f"min_dim must be 0 or 1, got {min_dim}")

    blocks = cut_features(
        sizes, per_feature(counts, "counts", sizes), per_feature(bands, "bands", sizes)
    )
    ids = {
        name: real_number(z, f"ids_per_sample of feature {name!r}")
        for name, z in per_feature(ids_per_sample, "ids_per_sample", sizes).items()
    }
    for name, mean in ids.items():
        if mean <= 0:
            raise ValueError(f"ids_per_sample of feature {name!r} must be above 0, got {mean}")
    block_sizes = np.concatenate([feature.block_sizes for feature in blocks.values()])
    row_probs = np.concatenate(
        [ids.get(name, 1.0) * feature.row_probs for name, feature in blocks.items()]
    )

    if base_dim is not None:
        base_dim = whole_number(base_dim, "base_dim")
    if temperature is not None:
        temperature = unit_interval(temperature, "temperature")
    held_bytes = bytes_of_orders(blocks)
    num_rows = sum(sizes.values())
    limit = 0 if budget is None else parse_budget(budget, held_bytes=held_bytes, num_rows=num_rows)
    rounded: dict[str, Any] = {"rounding": nearest, "min_dim": min_dim}
    solve: dict[str, Any] = {**rounded, "budget": limit, "held_bytes": held_bytes}
    rule = "power_law"
    all_three = temperature is not None and base_dim is not None and budget is not None
    if base_dim is None:
        assert temperature is not None
        base_dim = largest_base_dim(block_sizes, row_probs, temperature=temperature, **solve)
    elif temperature is None:
        temperature = smallest_temperature(block_sizes, row_probs, base_dim=base_dim, **solve)
    given: dict[str, Any] = {"temperature": temperature, "base_dim": base_dim}
    block_dims = round_dims(power_law_dims(row_probs, **given), base_dim=base_dim, **rounded)
    fits = rows_cost(block_sizes, block_dims, base_dim).parameters.sum() <= limit
    if all_three and not (rounding == "fill" and fits):
        rule, block_dims = "scaled_power_law", scaled_dims(block_sizes, row_probs, **given, **solve)
    provenance = {"rule": rule, "temperature": temperature}
    if rounding == "fill":
        block_dims = filled_dims(block_dims, block_sizes, row_probs, **given, budget=limit)
        provenance["rounding"] = rounding
    answer = assemble_plan(blocks, row_probs, block_dims, base_dim=base_dim, provenance=provenance)
    if temperature > 0 and min_dim and answer.floor_share > 0.5:
        remedy = (
            f"base_dim {base_dim} is too small for it; give a budget instead to solve for base_dim"
            if budget is None
            else "the budget leaves little else for so many rows"
        )
        warnings.warn(
            f"{answer.floor_share:.0%} of the rows sit at width 1, the floor, where temperature "
            f"{temperature:g} does nothing: {remedy}",
            FloorWarning,
            stacklevel=2,
        )
    return answer


def per_feature(values: Any, argument: str, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Spread an argument over the features: by name, in their order, or the same for all."""
    if values is None:
        return {}
    if isinstance(values, Mapping):
        for name in values:
            if name not in sizes:
                raise UnknownFeatureError.among(name, sizes)
        return dict(values)
    if argument != "counts" and np.ndim(values) == 0:
        return dict.fromkeys(sizes, values)
    if isinstance(values, str) or not hasattr(values, "__len__"):
        raise TypeError(f"{argument} must be a mapping by feature name, got {values!r}")
    if len(values) != len(sizes):
        raise ValueError(
            f"{argument} must have one entry for each of {len(sizes)} features, got {len(values)}"
        )
    return dict(zip(sizes, values, strict=True))


def cut_features(
    sizes: Mapping[str, int], counts: Mapping[str, Any], bands: Mapping[str, Any]
) -> dict[str, Blocks]:
    """Block every feature: as a whole, into bands of equal popularity mass, or into octaves."""
    blocks = {}
    for name, num_rows in sizes.items():
        number = bands.get(name, 1)
        if isinstance(number, str) and number != OCTAVES:
            raise ValueError(f"bands of feature {name!r} must be a number or 'octaves', got {number!r}")
        is_cut = number == OCTAVES or whole_number(number, f"bands of feature {name!r}") > 1
        if name in counts:
            feature_counts = nonnegative_vector(counts[name], f"counts of feature {name!r}")
            if len(feature_counts) != num_rows:
                raise ValueError(
                    f"counts of feature {name!r} must have one entry for each of its {num_rows} "
                    f"rows, got {len(feature_counts)}"
                )
        elif is_cut:
            raise ValueError(f"bands={number!r} of feature {name!r} need its counts: counts={{...}}")
        if not is_cut:
            blocks[name] = whole_feature(num_rows)
        elif number == OCTAVES:
            blocks[name] = octave_bands(feature_counts)
        else:
            blocks[name] = equal_mass_bands(feature_counts, number)
    return blocks


def bytes_of_orders(blocks: Mapping[str, Blocks]) -> int:
    """What a layer will hold to find the ranks of ids: nothing where ids are ranks already."""
    orders = [cut.order for cut in blocks.values() if cut.order is not None]
    return id_map_bytes([order for order in orders if is_shuffled(order)])


def assemble_plan(
    blocks: Mapping[str, Blocks],
    row_probs: np.ndarray,
    block_dims: np.ndarray,
    *,
    base_dim: int,
    provenance: Mapping[str, Any],
) -> Plan:
    """Put names, blocks and widths together."""
    features, orders, done = [], [], 0
    for name, cut in blocks.items():
        here = slice(done, done + cut.num_blocks)
        columns = (cut.block_starts, cut.block_sizes, block_dims[here], row_probs[here])
        rows = zip(*(column.tolist() for column in columns), strict=True)
        cut_into = tuple(Block(start, size, Rows(dim), prob) for start, size, dim, prob in rows)
        features.append(Feature(name, int(cut.block_sizes.sum()), cut_into, cut.num_requested))
        if cut.order is not None:
            orders.append((name, cut.order))
        done += cut.num_blocks
    return Plan(base_dim, provenance, tuple(features), tuple(orders))
