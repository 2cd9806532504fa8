"""Whole models as graphs: DLRM, matrix factorisation, NCF, and a layer on its own. Knows no files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from mixdim.layer.embedding import FeatureEmbeddings, MixedDimEmbedding
from mixdim.layer.mixed_tables import MixedTables
from mixdim.models import DLRM, MatrixFactorization, NeuralCollaborativeFiltering, WithFirstOrder
from mixdim.models.dlrm import LearnedVector
from mixdim.models.rating_model import RatingModel
from mixdim.serving.bags import look_up_bags
from mixdim.serving.graph import Graph
from mixdim.serving.lookup import Unknown, Vectors, checked_ids, in_order, look_up
from mixdim.serving.parts import Embedded, embedded, rows_of

BATCH = "batch"
FOLDED_WIDTH = 64  # of the top MLP's first layer; see `_first_of_top`
TASKS = {"binary": "probability", "rating": "rating"}  # and what the output is called


@dataclass(frozen=True)
class Asked:
    """What beside a model decides its graph: see `mixdim.export`."""

    bags: Sequence[str] = ()
    unknown: Unknown | None = None
    task: str | None = None


def graph_of(model: nn.Module, asked: Asked) -> Graph:
    """Write a model as a graph: ids in, probabilities, ratings or vectors out."""
    graph = Graph()
    match model:
        case DLRM() | WithFirstOrder():
            _finish(graph, _logits(graph, model, asked), asked.task or "binary")
        case MatrixFactorization():
            _finish(graph, _factorization(graph, model, asked), asked.task or "rating")
        case NeuralCollaborativeFiltering():
            _finish(graph, _neural(graph, model, asked), asked.task or "rating")
        case FeatureEmbeddings():
            layer = embedded(model)
            vectors = in_order(graph, _features(graph, layer, _ids(graph, layer, asked)))
            graph.output(vectors, "vectors", (BATCH, layer.num_features, layer.base_dim))
        case MixedDimEmbedding():
            layer = embedded(model)
            graph.output(_one_table(graph, layer, asked), "vectors", (BATCH, layer.base_dim))
    return graph


def feature_rows(model: nn.Module) -> dict[str, int]:
    """The rows of each feature that a model reads, by name; an error if it is no model to export."""
    match model:
        case RatingModel():
            users, items = rows_of(model.user_embedding), rows_of(model.item_embedding)
            if users.keys() == items.keys():  # such as those of two nn.Embedding
                users, items = {"user": sum(users.values())}, {"item": sum(items.values())}
            return users | items
        case DLRM():
            return rows_of(model.get_submodule("embeddings"))
        case WithFirstOrder(deep=DLRM()):
            return feature_rows(model.deep)
        case MixedTables():
            return rows_of(model)
    raise ValueError(
        "model must be a DLRM, MatrixFactorization or NeuralCollaborativeFiltering of mixdim.models, or "
        f"a mixdim layer, got {type(model).__name__}; torch.onnx.export takes others, with layers that "
        "have check_ids=False"
    )


def _finish(graph: Graph, outputs: str, task: str) -> None:
    """Say what a model's outputs (batch,) mean."""
    if task == "binary":
        outputs = graph.add("Sigmoid", outputs)
    graph.output(outputs, TASKS[task], (BATCH,))


class Ids(NamedTuple):
    """The inputs of all features, every id a row of its feature or padding."""

    single: list[int]  # features of one id a sample
    ids: str  # (batch, those), "" if there are none
    bags: dict[int, tuple[str, str]]  # values and offsets of the others


def _ids(graph: Graph, layer: Embedded, asked: Asked) -> Ids:
    """Declare the inputs of all features, and check them."""
    single, ids, bags = [n for n, name in enumerate(layer.names) if name not in asked.bags], "", {}
    if single:
        ids = graph.input("ids", np.int64, (BATCH, len(single)))
        ids = checked_ids(graph, layer, ids, single, asked.unknown)
    for n, name in enumerate(layer.names):
        if name in asked.bags:
            values = graph.input(f"{name}.values", np.int64, (f"{name}.count",))
            offsets = graph.input(f"{name}.offsets", np.int64, (f"{BATCH} + 1",))
            column = graph.add("Unsqueeze", values, graph.constant([1]))
            column = checked_ids(graph, layer, column, [n], asked.unknown)
            bags[n] = _single_column(graph, column), offsets
    return Ids(single, ids, bags)


def _features(graph: Graph, layer: Embedded, given: Ids) -> Vectors:
    """Look up all features."""
    found = look_up(graph, layer, given.ids, given.single) if given.single else Vectors([], [])
    for n, (values, offsets) in given.bags.items():
        found.values.append(look_up_bags(graph, layer, n, values, offsets))
        found.features.append(n)
    return found


def _one_table(graph: Graph, layer: Embedded, asked: Asked) -> str:
    """The vectors of a layer of one feature: (batch, base_dim)."""
    if asked.bags:
        ((found,), _) = _features(graph, layer, _ids(graph, layer, asked))
    else:
        ids = graph.input("ids", np.int64, (BATCH,))
        column = graph.add("Unsqueeze", ids, graph.constant([1]))
        ((found,), _) = look_up(graph, layer, checked_ids(graph, layer, column, [0], asked.unknown), [0])
    return graph.reshape(found, [-1, layer.base_dim])


def _logits(graph: Graph, model: DLRM | WithFirstOrder, asked: Asked) -> str:
    """The logit of each sample: (batch,)."""
    deep = model.deep if isinstance(model, WithFirstOrder) else model
    assert isinstance(deep, DLRM)
    layer = embedded(deep.get_submodule("embeddings"))
    ids = _ids(graph, layer, asked)
    dense = graph.input("dense", np.float32, (BATCH, deep.num_dense)) if deep.num_dense else ""
    if not isinstance(model, WithFirstOrder):
        return _dlrm(graph, deep, _features(graph, layer, ids), dense)
    weights = embedded(model.get_submodule("weights"))
    of_ids = graph.concat(_features(graph, weights, ids).values, axis=1)  # (batch, features, 1)
    terms = [graph.add("ReduceSum", of_ids, graph.constant([1, 2]), keepdims=0)]
    if dense:
        dense = graph.add("Sub", dense, graph.weights(model.means))
        dense = graph.add("Div", dense, graph.weights(model.deviations))
        terms.append(_single_column(graph, graph.add("MatMul", dense, graph.weights(model.dense.t()))))
    deep_terms = [_dlrm(graph, deep, _features(graph, layer, ids), dense), graph.weights(model.constant)]
    return graph.add("Sum", *deep_terms, *terms)


def _dlrm(graph: Graph, model: DLRM, found: Vectors, numbers: str) -> str:
    """The logit of each sample: (batch,)."""
    if isinstance(model.bottom, LearnedVector):
        shape = graph.add("Slice", graph.add("Shape", found.values[0]), *map(graph.constant, ([0], [1])))
        shape = graph.concat([shape, graph.constant([1])], axis=0)
        dense = graph.add("Expand", graph.weights(model.bottom.weight), shape)
    else:
        dense = _layers(graph, _modules(model.bottom), numbers)
    slot_of_dense = graph.add("Unsqueeze", dense, graph.constant([1]))
    slots = graph.concat([slot_of_dense, *found.values], axis=1)  # (batch, S, base_dim)
    products = graph.add("MatMul", slots, graph.add("Transpose", slots, perm=[0, 2, 1]))
    first, *others = _modules(model.top)
    assert isinstance(first, nn.Linear)
    hidden = _first_of_top(graph, first, dense, products, [0, *(1 + n for n in found.features)])
    return _single_column(graph, _layers(graph, others, hidden))


def _first_of_top(
    graph: Graph, linear: nn.Linear, dense: str, products: str, places: Sequence[int]
) -> str:
    """The top MLP's first layer, from the dense vector and the products of all slots (batch, S, S).

    Its weights (out, D + pairs) read the pairs of slots (1, 0), (2, 0), (2, 1), ...; `places` says which
    slot each is now. If it is narrow, products that are no pair, or the other half, get weights of 0:
    to choose the pairs first takes longer than to multiply the others with 0.
    """
    num_slots = len(places)
    now = torch.tensor(places).argsort()  # where each slot is
    rows, columns = torch.tril_indices(num_slots, num_slots, offset=-1)
    chosen = now[rows] * num_slots + now[columns]
    values = graph.reshape(products, [0, num_slots**2])
    if linear.out_features > FOLDED_WIDTH:
        # Pair by pair for all samples at once: to choose within each sample takes longer.
        by_pair = graph.add("Transpose", values, perm=[1, 0])
        by_pair = graph.add("Gather", by_pair, graph.constant(chosen.numpy()), axis=0)
        values = graph.concat([dense, graph.add("Transpose", by_pair, perm=[1, 0])], axis=1)
        return _layers(graph, [linear], values)
    weight = linear.weight.detach()
    of_dense, of_pairs = weight[:, : -len(chosen)].t(), weight[:, -len(chosen) :].t()
    of_pairs = weight.new_zeros(num_slots**2, len(weight)).index_copy(0, chosen, of_pairs)
    bias = [] if linear.bias is None else [graph.weights(linear.bias)]
    of_all = graph.add("Gemm", dense, graph.weights(of_dense), *bias)
    return graph.add("Gemm", values, graph.weights(of_pairs), of_all)


def _factorization(graph: Graph, model: MatrixFactorization, asked: Asked) -> str:
    """The rating of each sample: (batch,)."""
    vectors, columns = _users_and_items(graph, model, asked)
    last = graph.constant([-1])
    scores = graph.add("ReduceSum", graph.add("Mul", *vectors), last, keepdims=0)
    terms = [scores, graph.weights(model.mean)]
    for bias, column in zip(model.biases.values(), columns, strict=False):  # none, or both
        assert isinstance(bias, nn.Embedding)
        terms.append(graph.add("Gather", graph.weights(bias.weight[:, 0]), column))
    return graph.add("Sum", *terms)


def _neural(graph: Graph, model: NeuralCollaborativeFiltering, asked: Asked) -> str:
    """The rating of each sample: (batch,)."""
    vectors, _ = _users_and_items(graph, model, asked)
    outputs = _layers(graph, _modules(model.mlp), graph.concat(vectors, axis=1))
    return graph.add("Add", _single_column(graph, outputs), graph.weights(model.mean))


def _users_and_items(graph: Graph, model: RatingModel, asked: Asked) -> tuple[list[str], list[str]]:
    """The vectors (batch, base_dim) of users and items, and their ids (batch,), all of them rows."""
    ids = graph.input("ids", np.int64, (BATCH, 2))
    vectors, columns = [], []
    names = list(feature_rows(model))
    for number, module in enumerate((model.user_embedding, model.item_embedding)):
        side = embedded(module)
        unknown = None
        if asked.unknown is not None:
            unknown = {side.names[0]: asked.unknown[names[number]]}
        column = graph.add("Gather", ids, graph.constant([number]), axis=1)
        column = checked_ids(graph, side, column, [0], unknown)
        ((found,), _) = look_up(graph, side, column, [0])
        vectors.append(graph.reshape(found, [-1, side.base_dim]))
        columns.append(graph.reshape(column, [-1]))
    return vectors, columns


def _modules(sequence: nn.Module) -> list[nn.Module]:
    if not isinstance(sequence, nn.Sequential):
        raise ValueError(f"an MLP to export must be an nn.Sequential, got {type(sequence).__name__}")
    return list(sequence)


def _layers(graph: Graph, modules: Iterable[nn.Module], values: str) -> str:
    """Linear layers and activations, one after the other: (batch, inputs) -> (batch, outputs)."""
    for module in modules:
        match module:
            case nn.Linear():
                bias = [] if module.bias is None else [graph.weights(module.bias)]
                values = graph.add("Gemm", values, graph.weights(module.weight), *bias, transB=1)
            case nn.ReLU():
                values = graph.add("Relu", values)
            case nn.LeakyReLU():
                values = graph.add("LeakyRelu", values, alpha=module.negative_slope)
            case _:
                raise ValueError(
                    "an MLP to export must have nn.Linear, nn.ReLU and nn.LeakyReLU only, "
                    f"got {type(module).__name__}"
                )
    return values


def _single_column(graph: Graph, values: str) -> str:
    return graph.add("Squeeze", values, graph.constant([1]))
