"""Numbers as small whole ones with a scale for each few of them. Knows nothing about storages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mixdim._util.lazy import import_later

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from mixdim.serving.graph import Graph

import_later(globals(), torch="torch")

GROUP = {8: 64, 4: 32}  # by bits: how many consecutive values share a scale
LARGEST = {8: 127, 4: 7}  # the largest code; the least is its negative
CODES = {8: "int8", 4: "uint8"}  # their type; of 4 bits, two codes a byte, the first in the lower half
SCALES, SCALE_BYTES, LARGEST_SCALE = "float16", 2, 65504.0


def num_groups(values: int, bits: int) -> int:
    """How many scales values have."""
    return -(-values // GROUP[bits])


def code_bytes(values: int, bits: int) -> int:
    """How many bytes the codes of values have."""
    return -(-values * bits // 8)


def check_finite(values: Tensor) -> None:
    """Refuse numbers that a training which diverged may leave."""
    wrong = ~values.isfinite()
    if bool(wrong.any()):
        raise ValueError(f"its numbers must be finite, got {values[wrong][0].item()}")


def quantize_values(values: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Turn values into codes and scales: (n,) -> (code_bytes,), (num_groups,).

    A value becomes code * scale, which is at most scale / 2 away. The scale of a group is its largest
    absolute value / LARGEST, rounded up to float16: so no code is beyond LARGEST.

    >>> codes, scales = quantize_values(torch.tensor([0.5, -1.27, 0.011]), bits=8)
    >>> codes.tolist(), scales.tolist()
    ([50, -127, 1], [0.01000213623046875])
    """
    check_finite(values)
    count, group, largest = len(values), GROUP[bits], LARGEST[bits]
    padding = num_groups(count, bits) * group - count
    grouped = torch.nn.functional.pad(values, (0, padding)).view(-1, group)
    most = grouped.abs().amax(1)
    if bool((most > LARGEST_SCALE * largest).any()):
        bound = LARGEST_SCALE * largest
        raise ValueError(f"its numbers must be within {bound:g}, got {most.max().item():g}")
    scales = _rounded_up(most / largest, most, largest)
    steps = scales.to(values.dtype)[:, None]
    codes = torch.where(steps > 0, grouped / steps, 0.0).round().flatten()[:count]
    return _packed(codes.to(torch.int8), bits), scales


def values_at(codes: Tensor, bits: int, places: Tensor) -> Tensor:
    """Read codes at places, as float32: any shape."""
    if bits == 8:
        return codes[places].to(torch.float32)
    pair = codes[places >> 1]
    half = torch.where(places % 2 == 0, pair & 15, pair >> 4)
    return half.to(torch.float32) - 8


def _packed(codes: Tensor, bits: int) -> Tensor:
    """Codes as they are stored; those of 4 bits as code + 8, two a byte."""
    if bits == 8:
        return codes
    even, odd = torch.nn.functional.pad(codes + 8, (0, len(codes) % 2)).to(torch.uint8).view(-1, 2).t()
    return even | (odd << 4)


def _rounded_up(exact: Tensor, most: Tensor, largest: int) -> Tensor:
    """Scales in float16 whose largest code reaches the largest value."""
    scales = exact.to(torch.float16)
    is_short = scales.to(most.dtype) * largest < most
    bits = scales.view(torch.int16) + is_short.to(torch.int16)  # the next float16 above
    return bits.view(torch.float16)


def rows_in_graph(graph: Graph, held: tuple[Tensor, Tensor], rows: str, width: int, bits: int) -> str:
    """Read rows of `width` values from codes and scales with operators of ONNX: (...) -> (..., width).

    Codes and scales are gathered first and multiplied then: decoding a whole table takes 500 times
    longer.
    """
    codes, scales = held
    scale_of = graph.weights(scales, as_stored=True)
    group = graph.constant(GROUP[bits])
    first = rows if width == 1 else graph.add("Mul", rows, graph.constant(width))
    if GROUP[bits] % width == 0:  # a row has one scale
        scale = graph.add("Gather", scale_of, graph.add("Div", first, group))
        scale = graph.add("Unsqueeze", scale, graph.constant([-1]))
    else:
        group_of = graph.add("Div", _places_in_graph(graph, first, width), group)
        scale = graph.add("Gather", scale_of, group_of)
    if bits == 8:
        whole = graph.add("Gather", graph.weights(codes.view(-1, width)), rows)
        whole = graph.cast(whole, np.float32)
    else:
        half = _halves_in_graph(graph, codes, rows, first, width)
        whole = graph.add("Sub", graph.cast(half, np.float32), graph.constant(8, np.float32))
    return graph.add("Mul", whole, graph.cast(scale, np.float32))


def _halves_in_graph(graph: Graph, codes: Tensor, rows: str, first: str, width: int) -> str:
    """Read codes of 4 bits, each plus 8."""
    fifteen, four, two = graph.constant(15, np.uint8), graph.constant(4, np.uint8), graph.constant(2)
    if width % 2 == 0:  # a row is whole bytes
        byte = graph.add("Gather", graph.weights(codes.view(-1, width // 2)), rows)
        byte = graph.add("Unsqueeze", byte, graph.constant([-1]))
        low = graph.add("BitwiseAnd", byte, fifteen)
        high = graph.add("BitShift", byte, four, direction="RIGHT")
        return graph.reshape(graph.concat([low, high], axis=-1), [0, 0, width])
    places = _places_in_graph(graph, first, width)
    byte = graph.add("Gather", graph.weights(codes), graph.add("Div", places, two))
    is_even = graph.add("Equal", graph.add("Mod", places, two), graph.constant(0))
    low = graph.add("BitwiseAnd", byte, fifteen)
    high = graph.add("BitShift", byte, four, direction="RIGHT")
    return graph.add("Where", is_even, low, high)


def _places_in_graph(graph: Graph, first: str, width: int) -> str:
    """The number of each value of rows that begin with value `first`: (...) -> (..., width)."""
    first = graph.add("Unsqueeze", first, graph.constant([-1]))
    return graph.add("Add", first, graph.constant(np.arange(width)))
