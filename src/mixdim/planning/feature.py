"""A feature cut into blocks, each with the way it is stored. Knows nothing about choosing widths."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from mixdim._util.arguments import WrongTypeError, real_number, whole_number
from mixdim.storages import Storage, check_storage


class UnknownFeatureError(KeyError, ValueError):
    """A feature name that the plan does not have, as a key or in an argument."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would print the message in quotes

    @classmethod
    def among(cls, name: object, known: Iterable[str]) -> UnknownFeatureError:
        """Name the unknown feature and those that there are."""
        return cls(f"unknown feature {name!r}; the features are {', '.join(known)}")


@dataclass(frozen=True)
class Block:
    """Rows `start` to `start + size` of a feature, and how they are stored.

    `row_prob` is the mean probability that a query asks for one given row of the block (p).
    """

    start: int
    size: int
    storage: Storage
    row_prob: float

    @property
    def dim(self) -> int:
        """The width at which it is stored."""
        return self.storage.dim


@dataclass(frozen=True)
class Feature:
    """One categorical feature: its name, its rows, and its blocks from popular to rare.

    `requested_bands` is larger than the number of blocks when the counts could not be cut that finely.
    """

    name: str
    rows: int
    blocks: tuple[Block, ...]
    requested_bands: int = 1


def check_feature(feature: Feature, base_dim: int) -> None:
    """Refuse a feature that no layer can be built for."""
    if not isinstance(feature.name, str) or not feature.name:
        raise WrongTypeError(f"a feature's name must be a non-empty string, got {feature.name!r}")
    of_feature = f"of feature {feature.name!r}"
    rows = whole_number(feature.rows, f"rows {of_feature}")
    whole_number(feature.requested_bands, f"requested_bands {of_feature}")
    if not feature.blocks:
        raise ValueError(f"feature {feature.name!r} has no blocks")
    for block in feature.blocks:
        whole_number(block.start, f"start of a block {of_feature}", at_least=0)
        whole_number(block.size, f"size of a block {of_feature}")
        check_storage(block.storage, f"storage of a block {of_feature}")
        width = block.storage.width(base_dim)
        if width > base_dim:
            what = f"dim of a block {of_feature}{' with its mean' if width > block.dim else ''}"
            raise ValueError(f"{what} must be at most base_dim {base_dim}, got {width}")
        if real_number(block.row_prob, f"row_prob of a block {of_feature}") < 0:
            raise ValueError(f"row_prob of a block {of_feature} must not be negative")
    edges = [block.start for block in feature.blocks] + [rows]
    sizes = [block.size for block in feature.blocks]
    if edges[0] != 0 or any(b - a != size for (a, b), size in zip(pairwise(edges), sizes, strict=True)):
        raise ValueError(f"the blocks {of_feature} do not cover its {rows} rows one after another")
