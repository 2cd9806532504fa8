"""Plans that the power law is compared with: lifted uniform, and bands pooled over all features."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mixdim._util.arguments import unit_interval, whole_number
from mixdim.planning.bands import Blocks, equal_mass_bands, whole_feature
from mixdim.planning.from_counts import assemble_plan
from mixdim.planning.plan import Plan
from mixdim.planning.sizing import power_law_dims, round_dims


def lifted_uniform_plan(cardinalities: Mapping[str, int], *, dim: int, base_dim: int) -> Plan:
    """Tables of one width, lifted to a wider base_dim by one projection a feature.

    What it gains over uniform tables of width `dim` comes from base_dim alone: from the wider MLPs and
    interactions above, not from how parameters are shared out among rows.

    >>> lifted = lifted_uniform_plan({"site": 5, "user": 9}, dim=2, base_dim=16)
    >>> [block.dim for block in lifted.blocks], lifted.table_parameters, lifted.projection_parameters
    ([2, 2], 28, 64)
    """
    base_dim = whole_number(base_dim, "base_dim")
    if whole_number(dim, "dim") > base_dim:
        raise ValueError(f"dim must be at most base_dim {base_dim}, got {dim}")
    blocks = {name: whole_feature(rows) for name, rows in cardinalities.items()}
    row_probs = np.concatenate([cut.row_probs for cut in blocks.values()])
    dims = np.full(len(row_probs), dim)
    provenance = {"rule": "lifted", "dim": int(dim)}
    return assemble_plan(blocks, row_probs, dims, base_dim=base_dim, provenance=provenance)


def pooled_plan(
    counts: Mapping[str, np.ndarray], *, bands: int, temperature: float, base_dim: int
) -> Plan:
    """Widths by popularity alone, as if the rows of all features were the words of one vocabulary.

    All rows are sorted by count and cut into `bands` of equal mass (Alg. 3, over the pool); the power
    law (Alg. 1) gives each band its width; a feature's rows in a band are a block of that width. So rows
    of one popularity are equally wide, whatever their feature, and a feature has several widths: what
    the paper says costs more than 1 % accuracy (App. A), after Baevski and Auli's adaptive embeddings.
    There one projection serves a whole band; here every feature has one of its own, which adds freedom
    to the pool, and which its budget pays for.

    Counts of each feature must fall, as those of a prepared folder do: then the blocks of a feature
    are ranges of its ids.

    >>> import numpy as np
    >>> pooled = pooled_plan({"site": np.array([6, 2]), "user": np.array([3, 3, 1, 1])},
    ...     bands=2, temperature=1.0, base_dim=8)
    >>> [[(block.size, block.dim) for block in feature.blocks] for feature in pooled.features]
    [[(1, 8), (1, 4)], [(1, 8), (3, 4)]]
    """
    temperature = unit_interval(temperature, "temperature")
    base_dim = whole_number(base_dim, "base_dim")
    for name, of_feature in counts.items():
        if (np.diff(of_feature) > 0).any():
            raise ValueError(f"counts of feature {name!r} must fall from id to id")
    pool = equal_mass_bands(np.concatenate(list(counts.values())), bands)
    exact = power_law_dims(pool.row_probs, temperature=temperature, base_dim=base_dim)
    dims = round_dims(exact, base_dim=base_dim, rounding="power_of_two")
    band_of = np.empty(sum(map(len, counts.values())), dtype=np.int64)  # by place in the pool
    band_of[pool.order] = np.repeat(np.arange(pool.num_blocks), pool.block_sizes)
    blocks, found = {}, []
    edges = np.cumsum([len(of_feature) for of_feature in counts.values()])[:-1]
    for (name, of_feature), bands_here in zip(counts.items(), np.split(band_of, edges), strict=True):
        numbers, starts = np.unique(bands_here, return_index=True)
        sizes = np.diff(np.append(starts, len(of_feature)))
        mass = np.add.reduceat(of_feature.astype(np.float64), starts)
        blocks[name] = Blocks(sizes, mass / max(mass.sum(), 1.0), num_requested=bands)
        found.append(numbers)
    row_probs = np.concatenate([cut.row_probs for cut in blocks.values()])
    block_dims = dims[np.concatenate(found)]
    provenance = {"rule": "pooled", "temperature": temperature, "bands": int(bands)}
    return assemble_plan(blocks, row_probs, block_dims, base_dim=base_dim, provenance=provenance)
