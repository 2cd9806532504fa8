"""Which row of the layer each id is: the only code that turns ids into rows. Knows nothing about tables.

An id of a feature has a rank, and rank r of a feature is row `feature_start + r` of the layer. Ids are
ranks already (identity), or a map holds the rank of each: as whole numbers (int32), or packed into about
half a byte an id where the ids of a band ascend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from mixdim._util.arguments import whole_number
from mixdim.kernels.ids import SEPARATOR, check_ids, require_integers
from mixdim.layer.bags import Bags
from mixdim.layer.rank_code import RankCode
from mixdim.planning.feature import UnknownFeatureError


@torch.library.custom_op("mixdim::checked_ids", mutates_args=())
def checked_ids(
    ids: Tensor, features: Tensor, num_rows: Tensor, padding_id: int | None, names: str
) -> Tensor:
    """Check ids and return them as int64, -1 where they are padding.

    An operator, so that it also runs, and raises the same error, inside a graph made by torch.compile or
    torch.export. `features` broadcasts with `ids` and gives the feature that each belongs to; `num_rows`
    holds the rows of each feature.
    """
    check_ids(ids, num_rows, padding_id, names, features=features)
    checked = ids.to(torch.int64, copy=True)
    return checked if padding_id is None else checked.masked_fill_(ids == padding_id, -1)


@checked_ids.register_fake
def _(ids: Tensor, features: Tensor, num_rows: Tensor, padding_id: int | None, names: str) -> Tensor:
    return torch.empty_like(ids, dtype=torch.int64)


class KernelIds(NamedTuple):
    """Ids as kernels take them, and what these must know to find ranks."""

    ids: Tensor
    padding_id: int | None
    rank_of_id: Tensor | None


class IdMap(nn.Module):
    """The way from the ids of all features of a layer to its rows; its state is saved with the layer.

    Made with `identity`, `ordered` or `packed`. A layer sets `padding_id`, the id that stands for no
    id, and `check_ids`, whether an id out of range raises an IndexError.

    >>> ids = IdMap.ordered({"user": 3, "item": 4}, {"item": [2, 0, 1, 3]})
    >>> ids(torch.tensor([[0, 2], [2, 0]]), torch.tensor([0, 1]))
    tensor([[0, 3],
            [2, 4]])
    """

    rank_of_id: Tensor | None  # of the features whose ids are not ranks, one after the other
    _places: tuple[Tensor, ...] | None = None  # see `_on`

    def __init__(
        self,
        rows: Mapping[str, int],
        ranks: Mapping[str, Tensor] | None = None,
        codes: Mapping[str, RankCode] | None = None,
    ) -> None:
        super().__init__()
        self.feature_rows = dict(rows)
        self.names = SEPARATOR.join(rows)
        self.padding_id: int | None = None
        self.check_ids = True
        self._numbers = {name: number for number, name in enumerate(rows)}
        ranks, codes = ranks or {}, codes or {}
        for name, code in codes.items():
            if code.num_rows != rows[name]:
                raise ValueError(
                    f"the code of feature {name!r} must have its {rows[name]} ids, got {code.num_rows}"
                )
        self.order_starts = [-1] * len(self.feature_rows)  # where the ranks of each feature begin
        starts = accumulate((len(own) for own in ranks.values()), initial=0)
        for name, start in zip(ranks, starts, strict=False):
            self.order_starts[self.number_of(name)] = start
        held = list(ranks.values())
        self.register_buffer("rank_of_id", torch.cat(held) if held else None)
        self.codes = nn.ModuleDict({str(self.number_of(name)): code for name, code in codes.items()})
        self._places = self._on(torch.device("cpu"))

    @classmethod
    def identity(cls, rows: Mapping[str, int]) -> Self:
        """Ids are ranks already."""
        return cls(rows)

    @classmethod
    def ordered(cls, rows: Mapping[str, int], orders: Mapping[str, Any]) -> Self:
        """From the ids of some features, from popular to rare; ids of the others are ranks already.

        Of an order that says so too, nothing is held.
        """
        for name in orders:
            if name not in rows:
                raise UnknownFeatureError.among(name, rows)
        found = {n: _ranks_of_ids(orders[n], size, n) for n, size in rows.items() if n in orders}
        shuffled = {
            name: ranks.to(torch.int32 if len(ranks) < 2**31 else torch.int64)
            for name, ranks in found.items()
            if not torch.equal(ranks, torch.arange(len(ranks), device="cpu"))
        }
        return cls(rows, shuffled)

    @classmethod
    def packed(cls, rows: Mapping[str, int], bands: Mapping[str, Sequence[np.ndarray | int]]) -> Self:
        """From the band of every id; in each band ids ascend. See `RankCode.of`."""
        return cls(rows, codes={name: RankCode.of(of_ids) for name, of_ids in bands.items()})

    @property
    def nbytes(self) -> int:
        """Bytes of its state."""
        return sum(tensor.nbytes for tensor in self.buffers())

    @property
    def device(self) -> torch.device | None:
        """Where its state is; None if it has none."""
        return next((tensor.device for tensor in self.buffers()), None)

    def number_of(self, feature: str) -> int:
        """The number of a feature."""
        if feature not in self._numbers:
            raise UnknownFeatureError.among(feature, self._numbers)
        return self._numbers[feature]

    def is_identity(self, feature: int) -> bool:
        """Whether the ids of a feature are ranks already."""
        return self.order_starts[feature] < 0 and str(feature) not in self.codes

    def forward(self, ids: Tensor, features: Tensor) -> Tensor:
        """Turn ids into rows of the layer, -1 for padding; `features` broadcasts with `ids`."""
        starts = self._on(features.device)[1]
        ids = self._checked(ids, features)
        rows = self.ranks(ids, features) + starts[features]
        return rows if self.padding_id is None else rows.where(ids >= 0, -1)

    def bags(self, bags: Bags) -> Bags:
        """Turn bags of ids into bags of rows of the layer, without padding."""
        rows = bags._replace(values=self(bags.values, bags.features))
        return rows if self.padding_id is None else rows.where(rows.values >= 0)

    def without_padding(self, bags: Bags) -> Bags:
        """Bags of ids without those that are padding."""
        return bags if self.padding_id is None else bags.where(bags.values != self.padding_id)

    def for_kernels(self, ids: Tensor, features: Callable[[], Tensor]) -> KernelIds:
        """Ids that kernels read as they are; of a packed map, ranks. `features` is as for `forward`."""
        if not self.codes:
            return KernelIds(ids, self.padding_id, self.rank_of_id)
        of_ids = features()
        ids = self._checked(ids, of_ids)
        ranks = self.ranks(ids, of_ids)
        if self.padding_id is None:
            return KernelIds(ranks, None, None)
        return KernelIds(ranks.where(ids >= 0, -1), -1, None)

    def ranks(self, ids: Tensor, features: Tensor) -> Tensor:
        """Turn ids into ranks of popularity; what is negative stays."""
        if self.rank_of_id is not None:
            start = self._on(features.device)[2][features]
            ordered = (start >= 0) & (ids >= 0)
            ids = torch.where(ordered, self.rank_of_id[torch.where(ordered, start + ids, 0)], ids)
        for number, code in self.codes.items():
            if len(self.feature_rows) == 1:
                ranks = code(ids if self.padding_id is None else ids.clamp(min=0))
                ids = ranks if self.padding_id is None else ranks.where(ids >= 0, ids)
            else:
                mine = (features == int(number)) & (ids >= 0)
                ids = code(ids.where(mine, 0)).where(mine, ids)
        return ids

    def ranks_of(self, feature: int) -> Tensor:
        """The rank of every id of a feature: (rows,)."""
        rows, device = list(self.feature_rows.values())[feature], self.device
        return self.ranks(torch.arange(rows, device=device), torch.tensor(feature, device=device))

    def _checked(self, ids: Tensor, features: Tensor) -> Tensor:
        """Ids in int64 that are rows of their feature, or -1 for padding."""
        if self.check_ids:
            num_rows = self._on(features.device)[0]
            return checked_ids(ids, features, num_rows, self.padding_id, self.names)
        ids = ids.to(torch.int64)
        return ids if self.padding_id is None else ids.masked_fill(ids == self.padding_id, -1)

    def _on(self, device: torch.device) -> tuple[Tensor, ...]:
        """Rows, first rows and starts of orders by feature, on a device; those of the last are kept."""
        if self._places is None or self._places[0].device != device:
            rows = list(self.feature_rows.values())
            numbers = (rows, list(accumulate(rows, initial=0))[:-1], self.order_starts)
            self._places = tuple(torch.tensor(own, dtype=torch.int64, device=device) for own in numbers)
        return self._places

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        """Only move along: no one can draw a map anew, and it has types of its own.

        Where the layer goes to a device without memory, the map stays as it is.
        """
        device = fn(torch.empty(0, device=self.device)).device
        if device.type != "meta" and device != self.device:
            super()._apply(lambda tensor: tensor.to(device), recurse)  # type: ignore[no-untyped-call]  # torch has no type for it
        return self

    def set_padding(self, padding_id: int | None) -> None:
        """Let an id stand for no id."""
        if padding_id is not None:
            padding_id = whole_number(padding_id, "padding_id", at_least=-(2**63))
        self.padding_id = padding_id


def _ranks_of_ids(order: Any, num_rows: int, name: str) -> Tensor:
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
