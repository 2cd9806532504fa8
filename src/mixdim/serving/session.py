"""An exported ONNX file, opened with ONNX Runtime: batches in, numbers out. Knows no PyTorch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mixdim.serving.lookup import REFUSAL
from mixdim.serving.onnx_file import KEY

SILENT = 4  # ONNX Runtime writes lines of its own to standard error, unless they are fatal
Arrays = Mapping[str, np.ndarray]


class ServedModel:
    """A file that `mixdim.export` wrote, or another ONNX file with the same inputs.

    `about` is what the file says about itself: features and their rows, bags, task, and more.
    """

    def __init__(self, path: str | Path, *, threads: int | None = None) -> None:
        import onnxruntime

        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"{path} is not a file")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = SILENT
        if threads is not None:
            options.intra_op_num_threads = threads
        try:
            self.session = onnxruntime.InferenceSession(
                self.path, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its errors have no class of their own
            raise ValueError(f"{path} is damaged or no ONNX model: {_first_line(error)}") from None
        self._options = onnxruntime.RunOptions()
        self._options.log_severity_level = SILENT
        text = self.session.get_modelmeta().custom_metadata_map.get(KEY)
        self.about: dict[str, Any] = {} if text is None else json.loads(text)
        self.input_names = [entry.name for entry in self.session.get_inputs()]

    def run(self, inputs: Arrays) -> np.ndarray:
        """Return what the model says of each sample; inputs that it does not read are left out."""
        try:
            fed = {name: inputs[name] for name in self.input_names}
        except KeyError as error:
            raise ValueError(f"{self.path} also reads {error.args[0]!r}") from None
        try:
            (answer,) = self.session.run(None, fed, self._options)
        except Exception as error:
            if REFUSAL in str(error):
                raise ValueError(
                    f"an id is not a row of its feature, and {self.path} refuses it"
                ) from None
            raise ValueError(f"{self.path} cannot take these inputs: {_first_line(error)}") from None
        return np.asarray(answer)


def inputs_of(samples: Any) -> dict[str, np.ndarray]:
    """The inputs of an exported model, of a batch with `ids`, `dense` and `bags`."""
    inputs = {"ids": samples.ids.numpy(force=True).astype(np.int64)}
    inputs["dense"] = samples.dense.numpy(force=True)
    for name, (values, offsets) in samples.bags.items():
        inputs[f"{name}.values"] = values.numpy(force=True).astype(np.int64)
        inputs[f"{name}.offsets"] = offsets.numpy(force=True).astype(np.int64)
    return inputs


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
