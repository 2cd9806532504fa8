"""Whether ids are rows of their feature. Knows nothing about tables.

The check is an operator of its own, so that it also runs, and raises the same error, inside a graph
made by torch.compile or torch.export.
"""

from __future__ import annotations

from typing import Any

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


def ranks_of_ids(order: Any, num_rows: int, name: str) -> Tensor:
    """Invert `order`, which lists the ids of a feature from popular to rare: (num_rows,)."""
    ids = torch.as_tensor(order, device="cpu")  # also where the default device is "meta"
    require_integers(ids, f"order of feature {name!r}")
    ranks = torch.full((num_rows,), -1, device="cpu")
    if ids.shape == ranks.shape and not bool(((ids < 0) | (ids >= num_rows)).any()):
        ranks[ids.to(torch.int64)] = torch.arange(num_rows, device="cpu")
    if bool((ranks < 0).any()):
        raise ValueError(
            f"order of feature {name!r} must list each of its ids 0 to {num_rows - 1} once, "
            f"got {len(ids)} entries"
        )
    return ranks


@torch.library.custom_op("mixdim::checked_ids", mutates_args=())
def checked_ids(
    ids: Tensor, features: Tensor, num_rows: Tensor, padding_id: int | None, names: str
) -> Tensor:
    """Check ids and return them as int64, -1 where they are padding.

    `features` broadcasts with `ids` and gives the feature that each belongs to; `num_rows` holds the
    rows of each feature.
    """
    check_ids(ids, num_rows, padding_id, names, features=features)
    checked = ids.to(torch.int64, copy=True)
    return checked if padding_id is None else checked.masked_fill_(ids == padding_id, -1)


@checked_ids.register_fake
def _(ids: Tensor, features: Tensor, num_rows: Tensor, padding_id: int | None, names: str) -> Tensor:
    return torch.empty_like(ids, dtype=torch.int64)


def check_ids(
    ids: Tensor, num_rows: Tensor, padding_id: int | None, names: str, *, features: Tensor | None = None
) -> None:
    """Raise an IndexError that names an id out of range, its feature and how many rows that has."""
    if features is None:
        features = torch.zeros((), dtype=torch.int64, device=ids.device)
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
