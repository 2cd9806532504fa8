"""A graph of ONNX operators, written node by node. Knows nothing about models or files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

OPSET, IR_VERSION = 18, 10  # bitwise operators and reductions of ScatterND came with 18


class Graph:
    """Nodes, the arrays they read, inputs and outputs; values are known by their names."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.arrays: dict[str, np.ndarray] = {}
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self._small: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._next = 0

    def input(self, name: str, kind: type[np.generic], shape: Sequence[str | int]) -> str:
        """Declare an input; a dimension that is a name may have any length."""
        self.inputs.append(_value_info(name, kind, shape))
        return name

    def output(self, value: str, name: str, shape: Sequence[str | int]) -> None:
        """Declare a value an output, float32, under another name."""
        self.add("Identity", value, output=name)
        self.outputs.append(_value_info(name, np.float32, shape))

    def constant(self, values: Any, kind: type[np.generic] = np.int64) -> str:
        """The name of a small array; equal ones are held once."""
        array = np.asarray(values, dtype=kind)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._small:
            self._small[key] = self._hold(array)
        return self._small[key]

    def weights(self, tensor: Tensor, *, as_stored: bool = False) -> str:
        """The name of an array of weights, in float32 unless they are integers or `as_stored`."""
        tensor = tensor.detach().to("cpu")
        if tensor.is_floating_point() and not as_stored:
            tensor = tensor.to(torch.float32)
        return self._hold(tensor.contiguous().numpy())

    def add(
        self, operator: str, *inputs: str, output: str = "", name: str = "", **attributes: Any
    ) -> str:
        """Add a node of one output, and return its name."""
        return self._add(operator, inputs, [output or self._name("v")], name, attributes)[0]

    def split(self, value: str, sizes: Sequence[int], *, axis: int) -> list[str]:
        """Cut a value along an axis into parts of given sizes."""
        if len(sizes) == 1:
            return [value]
        outputs = [self._name("v") for _ in sizes]
        return self._add("Split", (value, self.constant(sizes)), outputs, "", {"axis": axis})

    def concat(self, values: Sequence[str], *, axis: int) -> str:
        """Put values one behind the other."""
        return values[0] if len(values) == 1 else self.add("Concat", *values, axis=axis)

    def cast(self, value: str, kind: type[np.generic]) -> str:
        """The same numbers as another type."""
        return self.add("Cast", value, to=_type_number(kind))

    def reshape(self, value: str, shape: Sequence[int]) -> str:
        """The same numbers in another shape; a length of 0 is what it was before."""
        return self.add("Reshape", value, self.constant(shape))

    def _add(
        self,
        operator: str,
        inputs: Sequence[str],
        outputs: list[str],
        name: str,
        attributes: dict[str, Any],
    ) -> list[str]:
        from onnx import helper

        name = name and self._name(f"{name}_")  # no two nodes may have one name
        self.nodes.append(helper.make_node(operator, inputs, outputs, name=name, **attributes))
        return outputs

    def _hold(self, array: np.ndarray) -> str:
        name = self._name("w")
        self.arrays[name] = array
        return name

    def _name(self, letter: str) -> str:
        self._next += 1
        return f"{letter}{self._next}"


def _value_info(name: str, kind: type[np.generic], shape: Sequence[str | int]) -> Any:
    from onnx import helper

    return helper.make_tensor_value_info(name, _type_number(kind), shape)


def _type_number(kind: type[np.generic]) -> int:
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(np.dtype(kind)))
