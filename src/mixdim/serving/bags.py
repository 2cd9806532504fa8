"""Bags of ids inside a graph: values and offsets in, one vector a sample out. Knows no storages.

The bag of sample i is `values[offsets[i] : offsets[i + 1]]`; it may be empty.
"""

from __future__ import annotations

import numpy as np

from mixdim.serving.graph import Graph
from mixdim.serving.lookup import look_up
from mixdim.serving.parts import Embedded

POOLINGS = ("sum", "mean", "max", "product")
REDUCTIONS = {"sum": "add", "mean": "add", "max": "max", "product": "mul"}
NEUTRAL = {"sum": 0.0, "mean": 0.0, "max": float("-inf"), "product": 1.0}


def look_up_bags(
    graph: Graph,
    embedding: Embedded,
    feature: int,
    values: str,
    offsets: str,
) -> str:
    """Look up and pool the bags of one feature, of checked ids: (V,), (B + 1,) -> (B, 1, base_dim)."""
    pooling, base_dim = embedding.pooling, embedding.base_dim
    if pooling not in POOLINGS:
        raise ValueError(f"bags to export need pooling {', '.join(POOLINGS)}, got {pooling!r}")
    column = graph.add("Unsqueeze", values, graph.constant([1]))
    ((found,), _) = look_up(graph, embedding, column, [feature])
    vectors = graph.reshape(found, [-1, base_dim])  # (V, D)
    number, num_bags = _numbers(graph, values, offsets)
    lengths = _lengths(graph, embedding, values, offsets, number, num_bags)  # (B,)
    if embedding.padding_id is not None and pooling in ("max", "product"):
        is_padding = graph.add("Equal", column, graph.constant(embedding.padding_id))
        neutral = graph.constant(NEUTRAL[pooling], np.float32)
        vectors = graph.add("Where", is_padding, neutral, vectors)
    shape = graph.concat([num_bags, graph.constant([base_dim])], axis=0)
    start = graph.add("Expand", graph.constant(NEUTRAL[pooling], np.float32), shape)
    pooled = graph.add("ScatterND", start, number, vectors, reduction=REDUCTIONS[pooling])
    if pooling == "mean":
        least = graph.add("Max", lengths, graph.constant(1))
        pooled = graph.add("Div", pooled, graph.cast(least, np.float32))
    if pooling == "max":
        has_none = graph.add("Equal", lengths, graph.constant(0))
        pooled = graph.add("Where", has_none, graph.constant(0.0, np.float32), pooled)
    return graph.add("Unsqueeze", pooled, graph.constant([1]))


def _numbers(graph: Graph, values: str, offsets: str) -> tuple[str, str]:
    """The number of each value's bag, (V, 1), and how many bags there are, (1,).

    The bag of value j is the number of bags that end at or before j.
    """
    one, many = graph.constant([1]), graph.constant([2**62])
    ends = graph.add("Slice", offsets, one, many)
    num_bags, num_values = graph.add("Shape", ends), graph.add("Shape", values)
    zeros = graph.add("Expand", graph.constant(0), graph.add("Add", num_values, one))
    ones = graph.add("Expand", graph.constant(1), num_bags)
    column = graph.add("Unsqueeze", ends, one)
    ended = graph.add("ScatterND", zeros, column, ones, reduction="add")
    number = graph.add("CumSum", ended, graph.constant(0))
    number = graph.add("Slice", number, graph.constant([0]), num_values)
    return graph.add("Unsqueeze", number, one), num_bags


def _lengths(
    graph: Graph, embedding: Embedded, values: str, offsets: str, number: str, num_bags: str
) -> str:
    """How many values each bag has that are not padding: (B, 1)."""
    if embedding.padding_id is None:
        zero, one, last = graph.constant([0]), graph.constant([1]), graph.constant([-1])
        ends = graph.add("Slice", offsets, one, graph.constant([2**62]))
        lengths = graph.add("Sub", ends, graph.add("Slice", offsets, zero, last))
    else:
        is_value = graph.add("Not", graph.add("Equal", values, graph.constant(embedding.padding_id)))
        zeros = graph.add("Expand", graph.constant(0), num_bags)
        counted = graph.cast(is_value, np.int64)
        lengths = graph.add("ScatterND", zeros, number, counted, reduction="add")
    return graph.add("Unsqueeze", lengths, graph.constant([1]))
