"""What ids and offsets of bags must be, and the error if they are not. Knows no tables, no kernels."""

from __future__ import annotations

import torch
from torch import Tensor

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
SEPARATOR = "\n"  # between feature names: an operator takes one string, not a list


class IdOutOfRangeError(IndexError, ValueError):
    """An id that is no row of its feature: wrong data, not a bug, unlike other IndexErrors."""


def require_integers(ids: Tensor, what: str) -> None:
    """Refuse ids that are not integers: a float id is a mistake, never a row."""
    if not isinstance(ids, Tensor):
        raise TypeError(f"{what} must be a tensor of integers, got {type(ids).__name__}")
    if ids.dtype not in INTEGERS:
        raise TypeError(f"{what} must be integers such as torch.int64, got {ids.dtype}")


def check_ids(
    ids: Tensor, num_rows: Tensor, padding_id: int | None, names: str, *, features: Tensor
) -> None:
    """Raise an IndexError that names an id out of range, its feature and how many rows that has.

    `features` broadcasts with `ids` and gives the feature that each belongs to; `num_rows` holds the
    rows of each feature.
    """
    outside = (ids < 0) | (ids >= num_rows[features])
    if padding_id is not None:
        outside &= ids != padding_id
    if not outside.any():
        return
    first = tuple(outside.nonzero()[0])
    feature = int(features.expand_as(ids)[first])
    rows = int(num_rows[feature])
    others = int(outside.sum()) - 1
    name = names.split(SEPARATOR)[feature]
    raise IdOutOfRangeError(
        f"id {int(ids[first])} of feature {name!r} is out of range: the feature has {rows} rows, "
        f"ids 0 to {rows - 1}" + (f" ({others} more ids are out of range)" if others else "")
    )


def check_offsets(offsets: Tensor, num_values: int, *, one_length: bool = False) -> None:
    """Refuse offsets that do not rise from 0 to the number of values, or not by the same each time."""
    lengths = offsets.diff()
    if int(offsets[0]) != 0 or int(offsets[-1]) != num_values or bool((lengths < 0).any()):
        raise ValueError(
            f"offsets must rise from 0 to the number of values {num_values} and never fall, "
            f"got {int(offsets[0])} to {int(offsets[-1])}"
        )
    if one_length and len(lengths) and int(lengths.min()) != int(lengths.max()):
        raise ValueError(
            "pooling='concat' needs the same number of ids in every bag, "
            f"got bags of {int(lengths.min())} to {int(lengths.max())} ids"
        )
