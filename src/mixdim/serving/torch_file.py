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
from mixdim.layer.embedding import MixedDimEmbedding
from mixdim.layer.embedding_base import MixedEmbeddingBase
from mixdim.layer.paths import look_up_by_feature
from mixdim.models import Model
from mixdim.serving.layer_graph import ExportOptions, feature_rows, served_task

ABOUT = "mixdim.json"  # the file in the archive that says what it is
# What PyTorch notes about the source of each operator: half of a small file, and paths of this machine.
OF_THE_SOURCE = ("stack_trace", "nn_module_stack", "torch_fn", "source_fn_stack")
EXAMPLES = 4  # samples to trace with: of one sample, PyTorch would make a graph of its own


def write_pt2(model: nn.Module, options: ExportOptions, path: Path, about: Mapping[str, Any]) -> None:
    """Trace a model, for any batch, and write it."""
    program = traced(model, options)
    with written_atomically(path) as temporary:
        torch.export.save(program, temporary, extra_files={ABOUT: json.dumps(about)})


def traced(model: nn.Module, options: ExportOptions) -> torch.export.ExportedProgram:
    """A model as a graph of PyTorch's operators only; see `TensorModel` for its inputs."""
    with to_trace(model):
        wrapped = TensorModel(model, options).eval()
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

    def __init__(self, model: nn.Module, options: ExportOptions) -> None:
        super().__init__()
        self.model, self.bags = model, tuple(options.bags)
        rows = feature_rows(model)
        self.names = list(rows)
        self.num_dense = model.num_dense if isinstance(model, Model) else 0
        self.task = served_task(model, options) if isinstance(model, Model) else None
        unknown = [-1 if options.unknown is None else options.unknown[name] for name in rows]
        self.rows, self.unknown = list(rows.values()), None if options.unknown is None else unknown
        layers = model.embedding_layers() if isinstance(model, Model) else [model]
        paddings = {getattr(layer, "padding_id", None) for layer in layers}
        self.padding_id = paddings.pop() if len(paddings) == 1 else None
        for layer in model.modules():
            if isinstance(layer, MixedEmbeddingBase):
                _ = layer.indices  # made now: a trace may not hold new tensors

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
        bags = {
            name: (self._checked(values, self.names.index(name)), offsets)
            for name, values, offsets in zip(self.bags, others[::2], others[1::2], strict=True)
        }
        if not isinstance(self.model, MixedEmbeddingBase):
            outputs = self.model(SimpleNamespace(ids=ids, dense=dense, bags=bags))
            return outputs if self.task is None else self.task.prediction(outputs)
        if not bags:
            found: Tensor = self.model(ids)
            return found
        vectors = look_up_by_feature(self.model, ids, bags)
        return vectors.squeeze(1) if isinstance(self.model, MixedDimEmbedding) else vectors

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


@contextmanager
def to_trace(model: nn.Module) -> Iterator[None]:
    """While it is entered, layers do not check ids and take no row-sparse gradients."""
    layers = [module for module in model.modules() if isinstance(module, MixedEmbeddingBase)]
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
