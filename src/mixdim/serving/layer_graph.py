"""A layer or a model as a graph: its inputs, checked, their vectors, and what the outputs mean.

Knows no model: each writes its own forward pass, see `Model.to_graph`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import nn

from mixdim.layer.embedding import MixedDimEmbedding
from mixdim.layer.embedding_base import MixedEmbeddingBase
from mixdim.models import MODELS, Model
from mixdim.models.tables import rows_of
from mixdim.serving.bags import look_up_bags
from mixdim.serving.graph import Graph
from mixdim.serving.lookup import Unknown, Vectors, checked_ids, look_up
from mixdim.serving.parts import Embedded, embedded
from mixdim.tasks import Task, task_of

BATCH = "batch"


@dataclass(frozen=True)
class ExportOptions:
    """What beside a model decides its graph: see `mixdim.export`."""

    bags: Sequence[str] = ()
    unknown: Unknown | None = None
    task: str | None = None


def graph_of(model: nn.Module, options: ExportOptions) -> Graph:
    """Write a model as a graph: ids in, probabilities, ratings or vectors out."""
    graph = Graph()
    inputs = GraphInputs(graph, options)
    if isinstance(model, MixedEmbeddingBase):
        _write_layer(graph, model, inputs)
        return graph
    assert isinstance(model, Model)
    task, outputs = served_task(model, options), model.to_graph(graph, inputs)
    if task.graph_operator:
        outputs = graph.add(task.graph_operator, outputs)
    graph.output(outputs, task.output_name, (BATCH,))
    return graph


def served_task(model: Model, options: ExportOptions) -> Task:
    """The task that says what a model's outputs mean."""
    return task_of(options.task or model.task)


def feature_rows(model: nn.Module) -> dict[str, int]:
    """The rows of each feature that a model reads, by name; an error if it is no model to export."""
    if isinstance(model, MixedEmbeddingBase):
        return rows_of(model)
    if isinstance(model, Model):
        return model.feature_rows()
    known = ", ".join(sorted(kind.__name__ for kind in MODELS.values()))
    raise ValueError(
        f"model must be a mixdim.models.Model ({known}) or a mixdim layer, got {type(model).__name__}; "
        "torch.onnx.export takes others, with layers that have check_ids=False"
    )


class Ids(NamedTuple):
    """The inputs of all features, every id a row of its feature or padding."""

    single: list[int]  # features of one id a sample
    ids: str  # (batch, those), "" if there are none
    bags: dict[int, tuple[str, str]]  # values and offsets of the others


class GraphInputs:
    """The inputs of a graph: declared when a model first reads them, every id checked."""

    def __init__(self, graph: Graph, options: ExportOptions) -> None:
        self.graph, self.options = graph, options
        self._ids: Ids | None = None

    def dense(self, columns: int) -> str:
        """The numbers of a sample: (batch, columns); "" if there are none."""
        return self.graph.input("dense", np.float32, (BATCH, columns)) if columns else ""

    def look_up(self, module: nn.Module) -> Vectors:
        """The vectors of all features of a layer, of ids that the first such layer checks for all."""
        graph, layer = self.graph, embedded(module)
        if self._ids is None:
            self._ids = self._declared(layer)
        single, ids, bags = self._ids
        found = look_up(graph, layer, ids, single) if single else Vectors([], [])
        for feature, (values, offsets) in bags.items():
            found.values.append(look_up_bags(graph, layer, feature, values, offsets))
            found.features.append(feature)
        return found

    def look_up_columns(self, tables: Mapping[str, nn.Module]) -> tuple[list[str], list[str]]:
        """Vectors (batch, base_dim) of a table for each column of `ids`, by feature, and the columns."""
        graph, unknown = self.graph, self.options.unknown
        ids = graph.input("ids", np.int64, (BATCH, len(tables)))
        vectors, columns = [], []
        for number, (name, module) in enumerate(tables.items()):
            table = embedded(module)
            column = graph.add("Gather", ids, graph.constant([number]), axis=1)
            own = None if unknown is None else {table.names[0]: unknown[name]}
            column = checked_ids(graph, table, column, [0], own)
            ((found,), _) = look_up(graph, table, column, [0])
            vectors.append(graph.reshape(found, [-1, table.base_dim]))
            columns.append(graph.reshape(column, [-1]))
        return vectors, columns

    def look_up_checked(self, module: nn.Module, column: str) -> str:
        """Vectors (batch, base_dim) of a table of one feature, of ids (batch,) that were checked."""
        graph, table = self.graph, embedded(module)
        ((found,), _) = look_up(graph, table, graph.reshape(column, [-1, 1]), [0])
        return graph.reshape(found, [-1, table.base_dim])

    def _declared(self, layer: Embedded) -> Ids:
        """Declare the inputs of all features, and check them."""
        graph, options, ids, bags = self.graph, self.options, "", {}
        single = [n for n, name in enumerate(layer.names) if name not in options.bags]
        if single:
            ids = graph.input("ids", np.int64, (BATCH, len(single)))
            ids = checked_ids(graph, layer, ids, single, options.unknown)
        for n, name in enumerate(layer.names):
            if name in options.bags:
                values = graph.input(f"{name}.values", np.int64, (f"{name}.count",))
                offsets = graph.input(f"{name}.offsets", np.int64, (f"{BATCH} + 1",))
                column = graph.add("Unsqueeze", values, graph.constant([1]))
                column = checked_ids(graph, layer, column, [n], options.unknown)
                bags[n] = graph.add("Squeeze", column, graph.constant([1])), offsets
        return Ids(single, ids, bags)


def _write_layer(graph: Graph, layer: MixedEmbeddingBase, inputs: GraphInputs) -> None:
    """Write a layer on its own: vectors out."""
    if not isinstance(layer, MixedDimEmbedding):
        shape = (BATCH, layer.num_features, layer.base_dim)
        graph.output(inputs.look_up(layer).in_order(graph), "vectors", shape)
        return
    if inputs.options.bags:
        ((found,), _) = inputs.look_up(layer)
    else:
        table, ids = embedded(layer), graph.input("ids", np.int64, (BATCH,))
        column = graph.add("Unsqueeze", ids, graph.constant([1]))
        column = checked_ids(graph, table, column, [0], inputs.options.unknown)
        ((found,), _) = look_up(graph, table, column, [0])
    graph.output(graph.reshape(found, [-1, layer.base_dim]), "vectors", (BATCH, layer.base_dim))
