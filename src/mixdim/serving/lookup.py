"""From ids to vectors inside a graph: checks, ranks, rows, groups of parts. Knows nothing about models.

Letters: a lookup takes M ids of each of F features; these have N parts, C of them in one group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mixdim.serving.graph import Graph
from mixdim.serving.parts import Embedded, Part
from mixdim.serving.takes import Group, groups_of

REFUSAL = "an_id_is_not_a_row_of_its_feature"  # the name of the node that fails
Unknown = Mapping[str, int]  # feature -> the id that takes the place of one that is no row


class Vectors(NamedTuple):
    """Vectors (M, features, base_dim) in several values, and the features in the order they come in."""

    values: list[str]
    features: list[int]


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
        groups = groups_of([embedding.parts[f][0] for f in together], embedding.base_dim)
        in_order = [part.feature for group in groups for part in group.parts]
        columns = _columns(graph, ids, [features.index(f) for f in in_order], len(features))
        masked = embedding.padding_id is not None
        found.values.extend(_lifted(graph, groups, columns, masked=masked))
        found.features.extend(in_order)
    for feature in alone:
        column = _columns(graph, ids, [features.index(feature)], len(features))
        found.values.append(_look_up_bands(graph, embedding, column, feature))
        found.features.append(feature)
    return found


def in_order(graph: Graph, found: Vectors) -> str:
    """The vectors of all features side by side, by the numbers of the features: (M, F, base_dim)."""
    joined = graph.concat(found.values, axis=1)
    if found.features == sorted(found.features):
        return joined
    return graph.add("Gather", joined, graph.constant(np.argsort(found.features)), axis=1)


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
    groups = groups_of(parts, embedding.base_dim)
    masked = len(parts) > 1 or embedding.padding_id is not None
    lifted = _lifted(graph, groups, ids, masked=masked)
    planes = [
        plane
        if len(group.parts) == 1
        else graph.add("ReduceSum", plane, graph.constant([1]), keepdims=1)
        for plane, group in zip(lifted, groups, strict=True)
    ]
    return planes[0] if len(planes) == 1 else graph.add("Sum", *planes)


def _lifted(graph: Graph, groups: Sequence[Group], ranks: str, *, masked: bool) -> list[str]:
    """Look up ranks of all parts of groups: (M, N), or (M, 1) for all -> (M, C, base_dim) of each.

    If `masked`, a rank outside of its part gives zeros.
    """
    parts: list[Part] = [part for group in groups for part in group.parts]
    places = [place for group in groups for place in group.places]
    sizes = [len(group.parts) for group in groups]
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
        is_here = _is_below(graph, in_part, [part.size for part in parts])
        rows = graph.add("Where", is_here, rows, graph.constant([place.nowhere for place in places]))
        if any(group.needs_mask for group in groups):
            masks = list(graph.split(is_here, sizes, axis=1))
    of_groups = graph.split(rows, sizes, axis=1)
    return [_lift(graph, *each) for each in zip(groups, of_groups, masks, strict=True)]


def _lift(graph: Graph, group: Group, rows: str, mask: str | None) -> str:
    """Look up the rows of one group: (M, C) -> (M, C, base_dim)."""
    projections = group.projections()
    if projections is None:
        vectors = group.take(graph, rows, parts_first=False)
    elif len(group.parts) == 1:
        stored = group.take(graph, rows, parts_first=False)
        vectors = graph.add("MatMul", stored, graph.weights(projections[0]))
    else:  # one product of all samples for each part
        stored = group.take(graph, graph.add("Transpose", rows, perm=[1, 0]), parts_first=True)
        lifted = graph.add("MatMul", stored, graph.weights(projections))  # (C, M, base_dim)
        vectors = graph.add("Transpose", lifted, perm=[1, 0, 2])
    if mask is None or not group.needs_mask:
        return vectors
    ones = graph.add("Unsqueeze", graph.cast(mask, np.float32), graph.constant([-1]))
    return graph.add("Mul", vectors, ones)
