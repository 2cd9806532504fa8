"""Numbers as small whole ones with a scale for each few of them. Knows nothing about storages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixdim._util.lazy import import_later

if TYPE_CHECKING:
    import torch
    from torch import Tensor

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
