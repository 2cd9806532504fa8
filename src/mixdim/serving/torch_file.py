"""A model as a .pt2 file, through torch.export: loadable with PyTorch alone. Knows no ONNX."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from mixdim._util.files import written_atomically
from mixdim.layer.bags import Bags, reduce_bags
from mixdim.layer.embedding import FeatureEmbeddings, MixedDimEmbedding
from mixdim.layer.interaction import dot_interaction
from mixdim.layer.lookup import lookup_each
from mixdim.layer.mixed_tables import MixedTables
from mixdim.models import DLRM, WithFirstOrder
from mixdim.serving.models import Asked, feature_rows

ABOUT = "mixdim.json"  # the file in the archive that says what it is
# What PyTorch notes about the source of each operator: half of a small file, and paths of this machine.
OF_THE_SOURCE = ("stack_trace", "nn_module_stack", "torch_fn", "source_fn_stack")
EXAMPLES = 4  # samples to trace with: of one sample, PyTorch would make a graph of its own


def write_pt2(model: nn.Module, asked: Asked, path: Path, about: Mapping[str, Any]) -> None:
    """Trace a model, for any batch, and write it."""
    program = traced(model, asked)
    with written_atomically(path) as temporary:
        torch.export.save(program, temporary, extra_files={ABOUT: json.dumps(about)})


def traced(model: nn.Module, asked: Asked) -> torch.export.ExportedProgram:
    """A model as a graph of PyTorch's operators only; see `TensorModel` for its inputs."""
    with to_trace(model):
        wrapped = TensorModel(model, asked).eval()
        inputs, shapes = wrapped.example()
        program = torch.export.export(wrapped, inputs, dynamic_shapes=(shapes,))
    for node in program.graph.nodes:
        for name in OF_THE_SOURCE:
            node.meta.pop(name, None)
    return program


class TensorModel(nn.Module):
    """A model that takes tensors: ids, dense if it reads any, and values and offsets of each bag.

    Of a layer alone, ids are (batch, features), or (batch,) if it is a `MixedDimEmbedding`.
    """

    def __init__(self, model: nn.Module, asked: Asked) -> None:
        super().__init__()
        self.model, self.bags = model, tuple(asked.bags)
        rows = feature_rows(model)
        self.names = list(rows)
        deep = model.deep if isinstance(model, WithFirstOrder) else model
        self.num_dense = deep.num_dense if isinstance(deep, DLRM) else 0
        is_binary = asked.task == "binary" if asked.task else isinstance(deep, DLRM)
        self.gives_probabilities = is_binary and not isinstance(model, MixedTables)
        unknown = [-1 if asked.unknown is None else asked.unknown[name] for name in rows]
        self.rows, self.unknown = list(rows.values()), None if asked.unknown is None else unknown
        layer = deep.get_submodule("embeddings") if isinstance(deep, DLRM) else deep
        self.padding_id = layer.padding_id if isinstance(layer, MixedTables) else None

    @property
    def input_names(self) -> list[str]:
        """What the inputs are called in an ONNX file."""
        bags = [f"{name}.{part}" for name in self.bags for part in ("values", "offsets")]
        return ["ids", *(["dense"] if self.num_dense else []), *bags]

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return probabilities, ratings or vectors."""
        ids, *others = inputs
        single = [n for n, name in enumerate(self.names) if name not in self.bags]
        is_row = isinstance(self.model, MixedDimEmbedding) and not self.bags
        ids = self._checked(ids, single[0] if is_row else single)
        dense = (
            others.pop(0) if self.num_dense else ids.new_zeros((ids.shape[0], 0), dtype=torch.float32)
        )
        if self.bags:
            outputs = self._with_bags(ids, dense, others, single)
        elif isinstance(self.model, MixedTables):
            outputs = self.model(ids)
        else:
            outputs = self.model(SimpleNamespace(ids=ids, dense=dense, bags={}))
        return outputs.sigmoid() if self.gives_probabilities else outputs

    def example(self) -> tuple[tuple[Tensor, ...], tuple[dict[int, Any], ...]]:
        """Inputs to trace with, of nothing but zeros, and which of their dimensions may have any length.

        They are kept in the file, so they must be nobody's data.
        """
        batch, single = torch.export.Dim("batch"), len(self.names) - len(self.bags)
        is_row = isinstance(self.model, MixedDimEmbedding) and not self.bags
        shape = (EXAMPLES,) if is_row else (EXAMPLES, single)
        inputs, shapes = [torch.zeros(shape, dtype=torch.int64)], [{0: batch}]
        if self.num_dense:
            inputs.append(torch.zeros(EXAMPLES, self.num_dense))
            shapes.append({0: batch})
        for number, _ in enumerate(self.bags):
            inputs += [torch.zeros(2 * EXAMPLES, dtype=torch.int64), 2 * torch.arange(EXAMPLES + 1)]
            shapes += [{0: torch.export.Dim(f"values{number}")}, {0: batch + 1}]
        return tuple(inputs), tuple(shapes)

    def _checked(self, ids: Tensor, features: Sequence[int] | int) -> Tensor:
        """Ids that are rows of their feature, or padding; others become the unknown id, or fail."""
        is_wrong = (ids < 0) | (ids >= torch.tensor(self.rows)[features])
        if self.padding_id is not None:
            is_wrong = is_wrong & (ids != self.padding_id)
        if self.unknown is not None:
            return torch.where(is_wrong, torch.tensor(self.unknown)[features], ids)
        # An index beyond the one entry is refused when it is looked up.
        return ids + torch.zeros(1, dtype=torch.int64)[is_wrong.to(torch.int64)]

    def _with_bags(
        self, ids: Tensor, dense: Tensor, others: Sequence[Tensor], single: Sequence[int]
    ) -> Tensor:
        """Look up feature by feature: the layer's own way needs two samples at least, in a graph."""
        bags = {}
        for place, name in enumerate(self.bags):
            number, (values, offsets) = self.names.index(name), others[2 * place : 2 * place + 2]
            bags[number] = self._checked(values, number), offsets

        def look_up(layer: nn.Module) -> Tensor:
            assert isinstance(layer, MixedTables)
            planes = {n: _vectors(layer, n, ids[:, column]) for column, n in enumerate(single)}
            planes |= {n: _pooled(layer, n, *bag, ids.shape[0]) for n, bag in bags.items()}
            return torch.stack([planes[n] for n in range(len(self.names))], dim=1)

        def logits(model: nn.Module, numbers: Tensor) -> Tensor:
            vectors = look_up(model.get_submodule("embeddings"))
            interactions = dot_interaction(model.get_submodule("bottom")(numbers), vectors)
            return model.get_submodule("top")(interactions).squeeze(1)

        match self.model:
            case WithFirstOrder():
                numbers = self.model.standardised(dense)
                outputs = logits(self.model.deep, numbers)
                return self.model.added(outputs, numbers, look_up(self.model.get_submodule("weights")))
            case DLRM():
                return logits(self.model, dense)
            case FeatureEmbeddings():
                return look_up(self.model)
        return look_up(self.model).squeeze(1)


def _vectors(layer: MixedTables, feature: int, ids: Tensor) -> Tensor:
    """The vectors of ids of one feature: (V,) -> (V, base_dim)."""
    rows = layer.ids(ids, layer.indices.features[feature])
    return lookup_each(layer.tables(), rows, layer.layout.of_feature[feature])


def _pooled(layer: MixedTables, feature: int, values: Tensor, offsets: Tensor, batch: int) -> Tensor:
    """The pooled bags of one feature: (V,), (B + 1,) -> (B, base_dim)."""
    if layer.pooling == "concat":
        raise ValueError("bags to export need pooling sum, mean, max, product, got 'concat'")
    samples = torch.searchsorted(offsets, torch.arange(values.shape[0]), right=True) - 1
    bags = Bags(values, torch.zeros_like(values), samples, None, 1, batch)
    bags = layer.ids.without_padding(bags)
    vectors = _vectors(layer, feature, bags.values)
    if layer.pooling == "max" or layer.pooling == "product":
        return reduce_bags(bags, vectors, layer.pooling).squeeze(1)
    summed = vectors.new_zeros(batch, layer.base_dim).index_add(0, bags.samples, vectors)
    return summed if layer.pooling == "sum" else summed / bags.lengths().clamp(min=1)


@contextmanager
def to_trace(model: nn.Module) -> Iterator[None]:
    """While it is entered, layers do not check ids and take no row-sparse gradients."""
    layers = [module for module in model.modules() if isinstance(module, MixedTables)]
    before = [(layer.check_ids, layer.sparse) for layer in layers]
    was_training = model.training
    try:
        for layer in layers:
            layer.check_ids, layer.sparse = False, False
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)
        for layer, (check_ids, sparse) in zip(layers, before, strict=True):
            layer.check_ids, layer.sparse = check_ids, sparse
