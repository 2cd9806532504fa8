"""The answer, as a value: print it, save it, cost it. Knows nothing about how it was found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mixdim._util.arguments import whole_number
from mixdim.planning.feature import Block, Feature, UnknownFeatureError
from mixdim.planning.folding import folded
from mixdim.planning.plan_checks import check_plan
from mixdim.planning.plan_file import load_document, save_document
from mixdim.planning.plan_json import Parts, parse, parts_of, to_document, write
from mixdim.planning.table import plan_table
from mixdim.storages import Cost, Storage
from mixdim.storages.rows import check_bits
from mixdim.storages.storage import FLOAT_BYTES

if TYPE_CHECKING:
    import torch

# Copies of every parameter that an optimizer keeps beside it. Gradients come on top.
OPTIMIZER_STATE = {None: 0, "amsgrad": 3, "adam": 2, "adagrad": 1, "sgd": 0}
OPTIMIZER_NAMES = [name for name in OPTIMIZER_STATE if name]


@dataclass(frozen=True, repr=False, eq=False)
class Plan:
    """How each block of each feature is stored, and what that costs.

    Make one with `mixdim.plan`. It is immutable, compares by value, and prints as a table. It acts
    as a mapping from feature name to the plan of that feature alone, with the same base_dim and
    widths. `provenance` says which rule chose the widths, with its arguments, such as
    {"rule": "power_law", "temperature": 0.3}. `orders` gives, for each feature cut into bands, its ids
    from popular to rare: layers follow it, files keep it.
    """

    base_dim: int
    provenance: Mapping[str, Any]
    features: tuple[Feature, ...]
    named_orders: tuple[tuple[str, np.ndarray], ...] = field(default=())

    def __post_init__(self) -> None:
        check_plan(self)
        object.__setattr__(self, "provenance", dict(self.provenance))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Plan):
            return NotImplemented
        mine, others = self.shuffled_orders, other.shuffled_orders
        return (
            (self.base_dim, self.provenance, self.features)
            == (other.base_dim, other.provenance, other.features)
            and mine.keys() == others.keys()
            and all(np.array_equal(order, others[name]) for name, order in mine.items())
        )

    def __hash__(self) -> int:
        return hash((self.base_dim, self.features))

    @property
    def temperature(self) -> float | None:
        """The temperature that the widths were made by (the paper's alpha), or None."""
        return self._rule_of_widths.get("temperature")

    @property
    def orders(self) -> dict[str, np.ndarray]:
        """For each feature cut into bands: `order[rank]` is the id of the row with that rank."""
        return dict(self.named_orders)

    @cached_property
    def shuffled_orders(self) -> dict[str, np.ndarray]:
        """Those of the orders that say something: of features whose ids are not ranks already."""
        return {name: order for name, order in self.named_orders if is_shuffled(order)}

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

    @cached_property
    def cost(self) -> Cost:
        """What all blocks and the ranks of ids cost; every size of a plan follows from it."""
        costs = [block.storage.cost(block.size, self.base_dim) for block in self.blocks]
        table, projection, held, _ = (sum(part) for part in zip(*costs, strict=True))
        shared = sum(storage.shared_parameters for storage in self.sharing)
        return Cost(table, projection, held + self.id_map_bytes, shared)

    @property
    def sharing(self) -> tuple[Storage, ...]:
        """The storages whose blocks share an array, each once."""
        found = {block.storage.group: block.storage for block in self.blocks}
        return tuple(storage for storage in found.values() if storage.shared_parameters)

    @property
    def untrained_bytes(self) -> int:
        """Bytes of the blocks that are held and not trained (`mixdim.Rows`)."""
        return self.cost.held_bytes - self.id_map_bytes

    @property
    def table_parameters(self) -> int:
        """Parameters of all tables."""
        return self.cost.table

    @property
    def projection_parameters(self) -> int:
        """Parameters of all projections. A block of full width needs none."""
        return self.cost.projection

    @property
    def num_parameters(self) -> int:
        """Parameters of the layer: tables, projections and shared arrays."""
        return self.cost.parameters

    @property
    def equivalent_uniform_dim(self) -> float:
        """The width at which a uniform layer over the same rows would cost the same."""
        return self._float32_numbers / self.num_rows

    @property
    def floor_share(self) -> float:
        """Share of the rows stored at width 1, where temperature does nothing any more."""
        return sum(block.size for block in self.blocks if block.dim == 1) / self.num_rows

    @property
    def id_map_bytes(self) -> int:
        """Bytes of the rank of every id, of the features whose ids are not in order of popularity."""
        return id_map_bytes(self.shuffled_orders.values())

    def nbytes(self, dtype: torch.dtype | None = None, optimizer: str | None = None) -> int:
        """Bytes of what the layer holds and, if named, of the optimizer's state for its parameters.

        `dtype` is the type of the parameters; torch.float32 if it is not given.
        `optimizer` is "amsgrad", "adam", "adagrad" or "sgd" (3, 2, 1 and 0 values per parameter).
        """
        if optimizer not in OPTIMIZER_STATE:
            known = ", ".join(map(repr, OPTIMIZER_NAMES))
            raise ValueError(f"optimizer must be one of {known}, got {optimizer!r}")
        itemsize = FLOAT_BYTES if dtype is None else dtype.itemsize
        trained = self.cost.parameters * itemsize * (1 + OPTIMIZER_STATE[optimizer])
        return trained + self.cost.held_bytes

    def compression(self, *, uniform_dim: int) -> float:
        """How many times smaller this is than a uniform layer of width `uniform_dim`."""
        return self.num_rows * whole_number(uniform_dim, "uniform_dim") / self._float32_numbers

    @property
    def _float32_numbers(self) -> float:
        """How many numbers in float32 cost what the blocks do."""
        return self.num_parameters + self.untrained_bytes / FLOAT_BYTES

    def with_storage(self, feature: str, storage: Storage, *, band: int = -1) -> Plan:
        """The same plan with one block stored in another way: the last, rarest one unless told.

        >>> import mixdim
        >>> counts = {"item": [9, 5, 4, 1, 1, 1]}
        >>> plan = mixdim.plan({"item": 6}, counts=counts, bands=2, temperature=0.5, base_dim=4)
        >>> small = plan.with_storage("item", mixdim.Hashed(2, buckets=1, hashes=1))
        >>> plan.num_parameters, small.num_parameters
        (24, 18)
        """
        chosen, band = self[feature].features[0], whole_number(band, "band", at_least=-(2**63))
        if not -len(chosen.blocks) <= band < len(chosen.blocks):
            raise ValueError(f"feature {feature!r} has {len(chosen.blocks)} bands, got band {band}")
        blocks = list(chosen.blocks)
        blocks[band] = replace(blocks[band], storage=storage)
        changed = replace(chosen, blocks=tuple(blocks))
        features = tuple(changed if one is chosen else one for one in self.features)
        by_hand = self.provenance["rule"] == "by_hand"
        was = self.provenance.get("was", self.provenance) if by_hand else self.provenance
        return replace(self, features=features, provenance={"rule": "by_hand", "was": was})

    def quantized(self, bits: int = 8) -> Plan:
        """The plan that is served: rows of their own in 1 to 8 bits a number (`mixdim.Rows`).

        What is stored in another way stays, and so do the rows that blocks of width 0 share.

        >>> import mixdim
        >>> plan = mixdim.plan({"item": 1000, "shop": 50}, temperature=0.3, base_dim=16)
        >>> plan.nbytes(), plan.quantized().nbytes(), plan.quantized(bits=4).nbytes()
        (35712, 9104, 4704)
        """
        bits = check_bits(bits)
        served = self._stored(lambda storage: storage.quantized(bits))
        if served is self:
            return self
        return replace(served, provenance={"rule": "quantized", "bits": bits, "was": self.provenance})

    def trainable(self) -> Plan:
        """The plan that is trained, where this one is served: every number in 32 bits.

        >>> import mixdim
        >>> plan = mixdim.plan({"item": 1000, "shop": 50}, temperature=0.3, base_dim=16)
        >>> plan.quantized().trainable() == plan
        True
        """
        trained = self._stored(lambda storage: storage.trainable())
        return replace(trained, provenance=self._rule_of_widths)

    @property
    def is_trained(self) -> bool:
        """Whether training changes every block: whether the plan is what it would be trained as."""
        return all(block.storage.is_trained for block in self.blocks)

    @property
    def least_bits(self) -> int:
        """The bits of a number in the blocks that are kept in the fewest: 32 unless quantized."""
        return min(block.storage.least_bits for block in self.blocks)

    @property
    def _rule_of_widths(self) -> Mapping[str, Any]:
        """What chose the widths; to quantize a plan changes none."""
        is_quantized = self.provenance["rule"] == "quantized"
        return self.provenance.get("was", self.provenance) if is_quantized else self.provenance

    def folded(self, max_bytes: int, *, quantized_bytes: int = 0) -> Plan:
        """The plan that is exported: small features and blocks are stored at full width.

        A feature, or else a block of it, is small if it takes at most `max_bytes` at full width in
        float32; with quantized numbers, at most `quantized_bytes`. A feature that is small as a whole
        has its rows by id and keeps no order. Adjacent blocks of full width become one.

        >>> import mixdim
        >>> plan = mixdim.plan({"item": 1000, "shop": 50}, temperature=0.3, base_dim=16)
        >>> [block.dim for block in plan.blocks], [block.dim for block in plan.folded(2**16).blocks]
        ([8, 16], [16, 16])
        """
        return folded(self, max_bytes, quantized_bytes)

    def _stored(self, change: Callable[[Storage], Storage]) -> Plan:
        """The same plan with blocks stored in another way; itself if nothing changes."""
        features = tuple(
            replace(feature, blocks=tuple(replace(b, storage=change(b.storage)) for b in feature.blocks))
            for feature in self.features
        )
        return self if features == self.features else replace(self, features=features)

    def check_trained(self) -> None:
        """Refuse, for what trains a layer, a plan with blocks that nobody trains."""
        for feature in self.features:
            for block in feature.blocks:
                if not block.storage.is_trained:
                    raise ValueError(
                        f"feature {feature.name!r} is stored as {block.storage}, which is not trained: "
                        "train plan.trainable(), then quantize what was learned (mixdim.quantize)"
                    )

    @cached_property
    def _by_name(self) -> dict[str, Feature]:
        return {feature.name: feature for feature in self.features}

    def __getitem__(self, name: str) -> Plan:
        if name not in self._by_name:
            raise UnknownFeatureError.among(name, self)
        orders = tuple((own, order) for own, order in self.named_orders if own == name)
        return Plan(self.base_dim, self.provenance, (self._by_name[name],), orders)

    def __iter__(self) -> Iterator[str]:
        return (feature.name for feature in self.features)

    def __len__(self) -> int:
        return len(self.features)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __repr__(self) -> str:
        return (
            f"Plan(base_dim={self.base_dim}, provenance={self.provenance}, "
            f"{self.num_features} features, {self.num_parameters:,} parameters)"
        )

    def __str__(self) -> str:
        return plan_table(self)

    def to_json(self) -> str:
        """Write the plan as JSON, orders included; `Plan.from_json` reads it back."""
        return write(to_document(self, self.shuffled_orders))

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """Read a plan that `to_json` wrote. Anything malformed is a ValueError that says where."""
        return cls._of(parts_of(parse(text)))

    def save(self, path: str | Path) -> None:
        """Write the plan to a file; large orders go into a file beside it, whose checksum it has."""
        save_document(self, self.shuffled_orders, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan from its file, with its orders."""
        try:
            return cls._of(load_document(Path(path)))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @classmethod
    def _of(cls, parts: Parts) -> Plan:
        try:
            plan = cls(parts.base_dim, parts.provenance, parts.features, parts.orders)
        except (TypeError, ValueError) as error:
            raise ValueError(f"malformed plan: {error}") from None
        if parts.num_parameters != plan.num_parameters:
            raise ValueError(
                f"malformed plan: it states {parts.num_parameters} parameters but has "
                f"{plan.num_parameters}"
            )
        return plan


def is_shuffled(order: np.ndarray) -> bool:
    """Whether an order of ids says anything: whether ids are not ranks already."""
    return bool((order[1:] < order[:-1]).any())


def id_map_bytes(orders: Iterable[np.ndarray]) -> int:
    """Bytes that a layer holds for orders that are not in order of popularity: a rank for each id."""
    rows = [len(order) for order in orders]
    return sum(rows) * (4 if max(rows, default=0) < 2**31 else 8)
