"""From ids to vectors inside a graph: checks, ranks, rows, groups of parts. Knows no models or storages.

Letters: a lookup takes M ids of each of F features; these have N parts, C of them in one group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mixdim.serving.graph import Graph
from mixdim.serving.parts import Embedded, Part

REFUSAL = "an_id_is_not_a_row_of_its_feature"  # the name of the node that fails
Unknown = Mapping[str, int]  # feature -> the id that takes the place of one that is no row


class Vectors(NamedTuple):
    """Vectors (M, features, base_dim) in several values, and the features in the order they come in."""

    values: list[str]
    features: list[int]

    def in_order(self, graph: Graph) -> str:
        """The vectors of all features side by side, by the numbers of the features: (M, F, base_dim)."""
        joined = graph.concat(self.values, axis=1)
        if self.features == sorted(self.features):
            return joined
        return graph.add("Gather", joined, graph.constant(np.argsort(self.features)), axis=1)


def checked_ids(
    graph: Graph, embedding: Embedded, ids: str, features: Sequence[int], unknown: Unknown | None
) -> str:
    """Ids that are rows of their feature, or padding: (M, F). Others become the unknown id, or fail."""
    is_fine = _is_below(graph, ids, [embedding.rows[f] for f in features])
    if embedding.padding_id is not None:
        is_padding = graph.add("Equal", ids, graph.constant(embedding.padding_id))
        is_fine = graph.add("Or", is_fine, is_padding)
    if unknown is not None:
        others = graph.constant([unknown[embedding.names[f]] for f in features])
        return graph.add("Where", is_fine, ids, others)
    # Gather refuses an index beyond its one entry: there is no operator to fail with otherwise.
    wrong = graph.cast(graph.add("Not", is_fine), np.int64)
    return graph.add("Add", ids, graph.add("Gather", graph.constant([0]), wrong, name=REFUSAL))


def look_up(graph: Graph, embedding: Embedded, ids: str, features: Sequence[int]) -> Vectors:
    """Look up one checked id for each of M samples and of some features: (M, F) -> (M, F, base_dim)."""
    if embedding.padding_id is not None:
        is_padding = graph.add("Equal", ids, graph.constant(embedding.padding_id))
        ids = graph.add("Where", is_padding, graph.constant(-1), ids)
    # Of a feature cut into bands the id decides where it is found; of others, all are found at once.
    alone = [f for f in features if len(embedding.parts[f]) > 1 or f in embedding.ranks]
    together = [f for f in features if f not in alone]
    found = Vectors([], [])
    if together:
        groups = _groups([embedding.parts[f][0] for f in together])
        in_order = [part.feature for group in groups for part in group]
        columns = _columns(graph, ids, [features.index(f) for f in in_order], len(features))
        masked = embedding.padding_id is not None
        found.values.extend(_lifted(graph, groups, columns, masked=masked))
        found.features.extend(in_order)
    for feature in alone:
        column = _columns(graph, ids, [features.index(feature)], len(features))
        found.values.append(_look_up_bands(graph, embedding, column, feature))
        found.features.append(feature)
    return found


def _is_below(graph: Graph, numbers: str, bounds: Sequence[int]) -> str:
    """Whether numbers are in [0, bound): without a sign, a negative one is beyond every bound."""
    return graph.add("Less", graph.cast(numbers, np.uint64), graph.constant(bounds, np.uint64))


def _columns(graph: Graph, ids: str, columns: list[int], width: int) -> str:
    if columns == list(range(width)):
        return ids
    return graph.add("Gather", ids, graph.constant(columns), axis=1)


def _look_up_bands(graph: Graph, embedding: Embedded, ids: str, feature: int) -> str:
    """Look up ids of a feature that is cut into bands, or whose ids are not ranks: (M, 1) -> (M, 1, D).

    Every band looks every id up, those of others as a row of zeros, and all is added up: bands are few,
    and the rare ones narrow.
    """
    if feature in embedding.ranks:
        is_padding = graph.add("Less", ids, graph.constant(0))
        ids = graph.cast(graph.add("Gather", graph.weights(embedding.ranks[feature]), ids), np.int64)
        if embedding.padding_id is not None:
            ids = graph.add("Where", is_padding, graph.constant(-1), ids)
    parts = embedding.parts[feature]
    groups = _groups(parts)
    masked = len(parts) > 1 or embedding.padding_id is not None
    lifted = _lifted(graph, groups, ids, masked=masked)
    planes = [
        plane if len(group) == 1 else graph.add("ReduceSum", plane, graph.constant([1]), keepdims=1)
        for plane, group in zip(lifted, groups, strict=True)
    ]
    return planes[0] if len(planes) == 1 else graph.add("Sum", *planes)


def _groups(parts: Sequence[Part]) -> list[list[Part]]:
    """Parts that a graph looks up together; first those of full width, which it does not lift."""
    found: dict[str, list[Part]] = {}
    for part in parts:
        found.setdefault(part.table.graph_group, []).append(part)
    return [found[name] for name in sorted(found)]


def _lifted(graph: Graph, groups: Sequence[Sequence[Part]], ranks: str, *, masked: bool) -> list[str]:
    """Look up ranks of all parts of groups: (M, N), or (M, 1) for all -> (M, C, base_dim) of each.

    If `masked`, a rank outside of its part gives zeros.
    """
    parts = [part for group in groups for part in group]
    places_of = [group[0].table.places_in_graph(group) for group in groups]
    places = [place for own in places_of for place in own]
    sizes = [len(group) for group in groups]
    rows = ranks
    if any(place.is_shared for place in places):
        rows = graph.add("Mul", rows, graph.constant([int(not place.is_shared) for place in places]))
    shifts = [
        place.first - (0 if place.is_shared else part.start)
        for part, place in zip(parts, places, strict=True)
    ]
    if any(shifts):
        rows = graph.add("Add", rows, graph.constant(shifts))
    masks: list[str | None] = [None for _ in groups]
    if masked:
        in_part = graph.add("Sub", ranks, graph.constant([part.start for part in parts]))
        is_here = _is_below(graph, in_part, [part.block.size for part in parts])
        rows = graph.add("Where", is_here, rows, graph.constant([place.zeros or 0 for place in places]))
        if any(place.zeros is None for place in places):
            masks = list(graph.split(is_here, sizes, axis=1))
    of_groups = graph.split(rows, sizes, axis=1)
    found = []
    for group, own_rows, own, mask in zip(groups, of_groups, places_of, masks, strict=True):
        vectors = group[0].table.forward_in_graph(graph, own_rows, group)
        if mask is not None and any(place.zeros is None for place in own):
            vectors = _masked(graph, vectors, mask)
        found.append(vectors)
    return found


def _masked(graph: Graph, vectors: str, mask: str) -> str:
    """Vectors (M, C, base_dim), or zeros where a mask (M, C) says so."""
    ones = graph.add("Unsqueeze", graph.cast(mask, np.float32), graph.constant([-1]))
    return graph.add("Mul", vectors, ones)
