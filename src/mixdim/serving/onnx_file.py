"""A graph as an ONNX file: written as a whole or not at all, with its weights beside it if large.

Knows nothing about models.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mixdim._util.files import follow_links, written_atomically
from mixdim.serving.graph import IR_VERSION, OPSET, Graph

LARGEST_FILE = 2**31 - 2**20  # a file of this format cannot have 2 GiB; a margin is left for its nodes
SMALLEST_BESIDE = 1024  # bytes; smaller arrays stay in the file itself
KEY = "mixdim"  # of what a file says about itself


def write_onnx(
    graph: Graph, path: Path, about: Mapping[str, Any], *, largest: int = LARGEST_FILE
) -> None:
    """Write a graph; if its arrays have more bytes than `largest`, they go into a file beside it."""
    from onnx import ModelProto, helper

    total = sum(array.nbytes for array in graph.arrays.values())
    path = follow_links(path)
    before = _data_files(path)
    data = path.with_name(f"{path.name}.{secrets.token_hex(4)}.data") if total > largest else None
    proto = helper.make_graph(graph.nodes, "mixdim", graph.inputs, graph.outputs)
    model: ModelProto = helper.make_model(
        proto,
        producer_name="mixdim",
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
    )
    helper.set_model_props(model, {KEY: json.dumps(about)})
    try:
        if data is not None:
            with written_atomically(data) as temporary, temporary.open("wb") as file:
                for name, array in graph.arrays.items():
                    model.graph.initializer.append(_tensor(name, array, data.name, file))
        else:
            model.graph.initializer.extend(_tensor(*item) for item in graph.arrays.items())
        with written_atomically(path) as temporary:
            temporary.write_bytes(model.SerializeToString())
    except BaseException:
        if data is not None:
            data.unlink(missing_ok=True)
        raise
    for old in before:  # of the model that was replaced
        old.unlink(missing_ok=True)


def _tensor(name: str, array: np.ndarray, location: str = "", file: Any = None) -> Any:
    """An array, in the model or, if it is large, in a file beside it."""
    from onnx import StringStringEntryProto, TensorProto, helper

    tensor = TensorProto(
        name=name, dims=array.shape, data_type=helper.np_dtype_to_tensor_dtype(array.dtype)
    )
    if file is None or array.nbytes < SMALLEST_BESIDE:
        tensor.raw_data = array.tobytes()
        return tensor
    file.write(bytes(-file.tell() % 4096))  # so that it can be mapped into memory
    place = {"location": location, "offset": str(file.tell()), "length": str(array.nbytes)}
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.extend(StringStringEntryProto(key=k, value=v) for k, v in place.items())
    file.write(array.data)
    return tensor


def _data_files(path: Path) -> list[Path]:
    """The files of weights that earlier exports wrote beside a model."""
    pattern = re.compile(re.escape(path.name) + r"\.[0-9a-f]{8}\.data")
    return [file for file in path.parent.glob("*.data") if pattern.fullmatch(file.name)]


def files_of(path: Path) -> list[Path]:
    """A model and the file of its weights, if it has one."""
    return [path, *_data_files(path)]
