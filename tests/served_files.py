"""Export, open with ONNX Runtime, ask: what a server would do."""

import tempfile
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import torch

import mixdim
from mixdim.serving import parts
from mixdim.serving.session import ServedModel, inputs_of


@contextmanager
def served(module, **options):
    """The exported module, opened."""
    with tempfile.TemporaryDirectory() as folder:
        yield ServedModel(mixdim.export(module, Path(folder) / "model.onnx", **options), threads=1)


def answer(model, ids, dense=None, bags=None):
    """What an opened file says of samples."""
    dense = torch.zeros(len(ids), 0) if dense is None else dense
    samples = SimpleNamespace(ids=ids, dense=dense, bags=bags or {})
    return torch.from_numpy(model.run(inputs_of(samples)))


@contextmanager
def nothing_folded():
    """Even the smallest tables are written as they are stored."""
    with patch.multiple(parts, FOLDED_BYTES=0, FOLDED_QUANTIZED_BYTES=0):
        yield
