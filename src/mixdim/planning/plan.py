"""The answer, as a value: print it, save it, cost it. Knows nothing about how it was found."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from mixdim.arguments import real_number, unit_interval, whole_number
from mixdim.planning.table import plan_table

JSON_FORMAT = "mixdim.plan"
JSON_VERSION = 1

# Copies of every parameter that an optimizer keeps beside it. Gradients come on top.
OPTIMIZER_STATE = {None: 0, "sgd": 0, "adagrad": 1, "adam": 2, "amsgrad": 3}


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
    """Rows `start` to `start + size` of a feature, stored at width `dim`.

    `row_prob` is the mean probability that a query asks for one given row of the block (p).
    """

    start: int
    size: int
    dim: int
    row_prob: float


@dataclass(frozen=True)
class Feature:
    """One categorical feature: its name, its rows, and its blocks from popular to rare.

    `bands_asked` is larger than the number of blocks when the counts could not be cut that finely.
    """

    name: str
    rows: int
    blocks: tuple[Block, ...]
    bands_asked: int = 1


@dataclass(frozen=True, repr=False)
class Plan:
    """Which width each block of each feature is stored at, and what that costs.

    Make one with `mixdim.plan`. It is immutable, compares by value, and prints as a table. It acts
    as a mapping from feature name to the plan of that feature alone, with the same base_dim and
    widths. `orders` gives, for each feature cut into bands, its ids from popular to rare, and layers
    follow it; it is not part of the plan's value and not saved with it.
    """

    base_dim: int
    temperature: float
    features: tuple[Feature, ...]
    named_orders: tuple[tuple[str, np.ndarray], ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        _check(self)

    @property
    def orders(self) -> dict[str, np.ndarray]:
        """For each feature cut into bands: `order[rank]` is the id of the row with that rank."""
        return dict(self._order_by_name)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """All blocks, feature by feature."""
        return tuple(block for feature in self.features for block in feature.blocks)

    @property
    def num_features(self) -> int:
        """How many features there are."""
        return len(self.features)

    @property
    def num_rows(self) -> int:
        """Rows of all features together."""
        return sum(feature.rows for feature in self.features)

    @property
    def table_parameters(self) -> int:
        """Parameters of all tables."""
        return sum(block.size * block.dim for block in self.blocks)

    @property
    def projection_parameters(self) -> int:
        """Parameters of all projections. A block of full width needs none."""
        narrow = (block for block in self.blocks if block.dim < self.base_dim)
        return sum(block.dim * self.base_dim for block in narrow)

    @property
    def num_parameters(self) -> int:
        """Parameters of the layer: tables and projections."""
        return self.table_parameters + self.projection_parameters

    @property
    def equivalent_uniform_dim(self) -> float:
        """The width at which a uniform layer over the same rows would cost the same."""
        return self.num_parameters / self.num_rows

    @property
    def floor_share(self) -> float:
        """Share of the rows stored at width 1, where temperature does nothing any more."""
        return sum(block.size for block in self.blocks if block.dim == 1) / self.num_rows

    @property
    def id_map_bytes(self) -> int:
        """Bytes of the rank of every id, of the features whose ids are not in order of popularity."""
        rows = [len(order) for _, order in self.named_orders if (order[1:] < order[:-1]).any()]
        return sum(rows) * (4 if max(rows, default=0) < 2**31 else 8)

    def nbytes(self, dtype: torch.dtype = torch.float32, optimizer: str | None = None) -> int:
        """Bytes of what the layer holds and, if named, of the optimizer's state for its parameters.

        `optimizer` is "sgd", "adagrad", "adam" or "amsgrad" (0, 1, 2 and 3 values per parameter).
        """
        if optimizer not in OPTIMIZER_STATE:
            known = ", ".join(repr(name) for name in OPTIMIZER_STATE)
            raise ValueError(f"optimizer must be one of {known}, got {optimizer!r}")
        trained = self.num_parameters * dtype.itemsize * (1 + OPTIMIZER_STATE[optimizer])
        return trained + self.id_map_bytes

    def compression(self, *, uniform_dim: int) -> float:
        """How many times smaller this is than a uniform layer of width `uniform_dim`."""
        return self.num_rows * whole_number(uniform_dim, "uniform_dim") / self.num_parameters

    @cached_property
    def _by_name(self) -> dict[str, Feature]:
        return {feature.name: feature for feature in self.features}

    @cached_property
    def _order_by_name(self) -> dict[str, np.ndarray]:
        return dict(self.named_orders)

    def __getitem__(self, name: str) -> Plan:
        if name not in self._by_name:
            raise UnknownFeatureError.among(name, self)
        order = self._order_by_name.get(name)
        orders = () if order is None else ((name, order),)
        return Plan(self.base_dim, self.temperature, (self._by_name[name],), orders)

    def __iter__(self) -> Iterator[str]:
        return (feature.name for feature in self.features)

    def __len__(self) -> int:
        return len(self.features)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __repr__(self) -> str:
        return (
            f"Plan(base_dim={self.base_dim}, temperature={self.temperature}, "
            f"{self.num_features} features, {self.num_parameters:,} parameters)"
        )

    def __str__(self) -> str:
        return plan_table(self)

    def to_json(self) -> str:
        """Write the plan as JSON, without its orders; `Plan.from_json` reads it back."""
        document = {
            "format": JSON_FORMAT,
            "version": JSON_VERSION,
            "base_dim": self.base_dim,
            "temperature": self.temperature,
            "num_parameters": self.num_parameters,
            "features": [asdict(feature) for feature in self.features],
        }
        return json.dumps(document, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """Read a plan that `to_json` wrote. Anything malformed is a ValueError that says where."""
        document = _parse_json(text)
        if document.get("format") != JSON_FORMAT:
            raise ValueError(f'not a plan: its "format" must be {JSON_FORMAT!r}')
        if document.get("version") != JSON_VERSION:
            raise ValueError(
                f"this mixdim reads plans of version {JSON_VERSION}, got {document.get('version')!r}"
            )
        try:
            plan = cls(
                base_dim=document["base_dim"],
                temperature=document["temperature"],
                features=tuple(_feature_from_json(entry) for entry in _objects(document, "features")),
            )
            stated = document["num_parameters"]
        except KeyError as error:
            raise ValueError(f"malformed plan: {error.args[0]!r} is missing") from None
        except (TypeError, ValueError) as error:
            raise ValueError(f"malformed plan: {error}") from None
        if stated != plan.num_parameters:
            raise ValueError(
                f"malformed plan: it states {stated} parameters but has {plan.num_parameters}"
            )
        return plan


def _parse_json(text: str | bytes) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:  # also text that is not UTF-8
        raise ValueError(f"not a plan: {error}") from None
    if not isinstance(document, dict):
        raise ValueError(f"not a plan: expected a JSON object, got {type(document).__name__}")
    return document


def _objects(parent: dict[str, Any], key: str) -> list[dict[str, Any]]:
    entries = parent[key]
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise TypeError(f"{key!r} must be a list of objects")
    return entries


def _feature_from_json(entry: dict[str, Any]) -> Feature:
    blocks = tuple(
        Block(block["start"], block["size"], block["dim"], block["row_prob"])
        for block in _objects(entry, "blocks")
    )
    return Feature(entry["name"], entry["rows"], blocks, entry["bands_asked"])


def _check(plan: Plan) -> None:
    """Refuse a plan that no layer can be built from."""
    base_dim = whole_number(plan.base_dim, "base_dim")
    unit_interval(plan.temperature, "temperature")
    if not plan.features:
        raise ValueError("a plan needs at least one feature")
    seen: set[str] = set()
    for feature in plan.features:
        if not isinstance(feature.name, str) or not feature.name:
            raise TypeError(f"a feature's name must be a non-empty string, got {feature.name!r}")
        if feature.name in seen:
            raise ValueError(f"feature {feature.name!r} is there twice")
        seen.add(feature.name)
        _check_blocks(feature, base_dim)


def _check_blocks(feature: Feature, base_dim: int) -> None:
    of_feature = f"of feature {feature.name!r}"
    rows = whole_number(feature.rows, f"rows {of_feature}")
    whole_number(feature.bands_asked, f"bands_asked {of_feature}")
    if not feature.blocks:
        raise ValueError(f"feature {feature.name!r} has no blocks")
    for block in feature.blocks:
        whole_number(block.start, f"start of a block {of_feature}", at_least=0)
        whole_number(block.size, f"size of a block {of_feature}")
        if whole_number(block.dim, f"dim of a block {of_feature}") > base_dim:
            raise ValueError(
                f"dim of a block {of_feature} must be at most base_dim {base_dim}, got {block.dim}"
            )
        if real_number(block.row_prob, f"row_prob of a block {of_feature}") < 0:
            raise ValueError(f"row_prob of a block {of_feature} must not be negative")
    edges = [block.start for block in feature.blocks] + [rows]
    sizes = [block.size for block in feature.blocks]
    if edges[0] != 0 or any(b - a != size for (a, b), size in zip(pairwise(edges), sizes, strict=True)):
        raise ValueError(f"the blocks {of_feature} do not cover its {rows} rows one after another")
