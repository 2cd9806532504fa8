"""A model that is spread over ranks, as one of them sees it. Knows no files, no data, no placement.

The gradients of all ranks are averaged: where each has the mean loss of its share of a batch, and shares
are of one size, a step is that of one process with the whole batch. Tensors are named as those of the
plain model: `table_4` of a layer is several tables here, of each of which a rank may hold some rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mixdim.distributed.embeddings import ShardableEmbeddings
from mixdim.distributed.engine import DistributedModelParallel
from mixdim.distributed.placement import Place
from mixdim.distributed.process_group import torchrec_warnings
from mixdim.distributed.tables import BlockTable
from mixdim.training.learner import (
    MODEL,
    OPTIMIZER,
    Rates,
    check_shapes,
    not_finite,
    with_prefix,
    without_prefix,
)
from mixdim.training.optimizers import STEP, NamedParts, OptimizerKind, scale_rates
from mixdim.training.shards import Held, Shard, StoredTensor, shards_of

SUM, SUM_BY_ROW = "sum", "sum_by_row"


class HeldTable(NamedTuple):
    """A table and what this rank holds of it."""

    table: BlockTable
    place: Place
    weight: Any  # a Tensor if every rank holds all of it, else a ShardedTensor
    state: Any | None  # the optimizer's, likewise; None if it keeps none

    @property
    def parts(self) -> list[tuple[int, Tensor]]:
        """The first stored row of what is here, and the rows; nothing if others hold them."""
        return self._parts(self.weight)

    @property
    def state_parts(self) -> list[tuple[int, Tensor]]:
        """The same of the optimizer's state: (rows, width), or (rows, 1) if it keeps a number a row."""
        found = [] if self.state is None else self._parts(self.state)
        return [(first, rows if rows.dim() > 1 else rows.unsqueeze(1)) for first, rows in found]

    def _parts(self, held: Any) -> list[tuple[int, Tensor]]:
        if isinstance(held, Tensor) and self.place.kind == "data_parallel":
            return [(0, held.detach())]
        return [(shard.metadata.shard_offsets[0], shard.tensor) for shard in held.local_shards()]


class ShardedLearner:
    """A model whose tables are spread over ranks, with its optimizer.

    Made by `mixdim.distributed.shard`. After `backward`, the tables that are not on every rank have
    taken their step already, and `step` takes that of all else. `model` is called with a batch; `module`
    is the model that was given, its tables replaced.
    """

    def __init__(
        self,
        model: DistributedModelParallel,
        places: dict[str, dict[str, Place]],
        *,
        rates: Rates,
        kind: OptimizerKind,
        state_key: str | None,
        device: torch.device,
    ) -> None:
        self.rates = rates
        self.places, self.state_key, self.device = places, state_key, device
        self.steps = 0  # that tables have taken: what plain optimizers count for each parameter
        self._model = model
        self.table_decay = 0.0  # of rows, at the full rate, in the steps that ask for them
        self.rate_factor = 1.0
        self.dense = NamedParts(kind, self.dense_parameters(), [])
        self.small_tables: Optimizer | None = None

    def __call__(self, batch: Any) -> Tensor:
        """Return the output of each sample of this rank's share."""
        return self.forward(batch)

    def forward(self, batch: Any, seen: Any = None) -> Tensor:
        """Return the output of each sample of this rank's share."""
        output: Tensor = self._model(batch) if seen is None else self._model(batch, seen)
        return output

    def scale_rates(self, factor: float) -> None:
        """Take the next steps with this factor of the learning rates."""
        self.rate_factor = factor
        self.dense.scale_rates(factor)
        if self.small_tables is not None:
            scale_rates(self.small_tables, factor)
        fused = self._model.fused_optimizer
        scale_rates(fused, factor)
        fused.step()  # hands the rates to the tables, which take their steps in `backward`

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of a loss, and update the tables that are not on every rank."""
        if self.table_decay:
            for embeddings in self.embeddings.values():
                embeddings.decay(1 - self.rate_factor * self.table_decay)
        with torchrec_warnings():
            loss.backward()

    @property
    def model(self) -> nn.Module:
        """The model on all ranks."""
        spread: nn.Module = self._model
        return spread

    @property
    def module(self) -> nn.Module:
        """The model itself."""
        module: nn.Module = self._model.module
        return module

    @property
    def embeddings(self) -> dict[str, ShardableEmbeddings]:
        """The embeddings in the model, by where they are in it."""
        return embeddings_in(self.module)

    def step(self) -> None:
        """Update all that is on every rank."""
        if any(embeddings.is_to_decay for embeddings in self.embeddings.values()):
            raise RuntimeError("call learner.backward(loss) and not loss.backward(): it decays weights")
        self.dense.step()
        if self.small_tables is not None:
            self.small_tables.step()
        self.steps += 1

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self.dense.zero_grad()
        if self.small_tables is not None:
            self.small_tables.zero_grad(set_to_none=True)

    def settle(self) -> None:
        """Nothing is put off here."""

    def dense_parameters(self) -> dict[str, nn.Parameter]:
        """All parameters but those of tables."""
        tables = tuple(inside(name, "tables.") for name in self.places)
        named = self._model.named_parameters()
        return {name: parameter for name, parameter in named if not name.startswith(tables)}

    def dense_tensors(self) -> dict[str, Tensor]:
        """All parameters and buffers but those of tables, as the state has them."""
        tables = tuple(inside(name, "tables.") for name in self.places)
        with torchrec_warnings():
            state = self._model.state_dict()
        return {name: tensor for name, tensor in state.items() if not name.startswith(tables)}

    def tables(self) -> Iterator[tuple[str, HeldTable]]:
        """The tables, with the place of their layer in the model."""
        with torchrec_warnings():
            weights = self._model.state_dict()
            states = self._model.fused_optimizer.state_dict()["state"]
        parameters = dict(self._model.named_parameters())
        for path, embeddings in self.embeddings.items():
            for table in embeddings.block_tables:
                name = inside(path, f"tables.embedding_bags.{table.name}.weight")
                place = self.places[path][table.name]
                if place.kind != "data_parallel":
                    state = states.get(name, {}).get(f"{table.name}.momentum1")
                elif self.small_tables is None or parameters[name] not in self.small_tables.state:
                    state = None
                else:
                    state = self.small_tables.state[parameters[name]].get("sum")
                yield path, HeldTable(table, place, weights[name], state)

    def tensors(self) -> dict[str, Held]:
        """Return what this rank holds, not copied; rows that others hold are shards of none."""
        found: dict[str, Held] = {
            **with_prefix(MODEL, self.dense_tensors()),
            **with_prefix(OPTIMIZER, self.dense.state()[0]),
        }
        shards: dict[str, list[Shard]] = {}
        for path, held in self.tables():
            name, shape = self._plain(path, held.table)
            shards.setdefault(MODEL + name, []).extend(_shards(held.parts, held.table, shape))
            if self.state_key is not None:
                place = f"{OPTIMIZER}{name}"
                one = self.state_key == SUM_BY_ROW
                of_state = _shards(held.state_parts, held.table, shape, one_number=one)
                shards.setdefault(f"{place}/{self.state_key}", []).extend(of_state)
                found[f"{place}/{STEP}"] = torch.tensor(float(self.steps))
        return {**found, **shards}

    def numbers(self) -> dict[str, float]:
        """Return what of the optimizer's state is no tensor."""
        return self.dense.state()[1]

    def load(self, stored: Mapping[str, StoredTensor], numbers: Mapping[str, float] | None) -> None:
        """Take over the rows that this rank holds, of a learner on any number of ranks or on one."""
        of_layers = ((path, table) for path, e in self.embeddings.items() for table in e.block_tables)
        tables = {self._plain(path, table)[0] for path, table in of_layers}

        def is_of_table(name: str) -> bool:
            return name.startswith(OPTIMIZER) and _parameter(name.removeprefix(OPTIMIZER)) in tables

        def is_filled(name: str) -> bool:
            return name.startswith(MODEL) or (numbers is not None and is_of_table(name))

        mine = {name: shards_of(held) for name, held in self.tensors().items() if is_filled(name)}
        theirs = {name: found for name, found in stored.items() if is_filled(name)}
        check_shapes(
            {name.removeprefix(MODEL): shards[0].shape for name, shards in mine.items()},
            {name.removeprefix(MODEL): found.shape for name, found in theirs.items()},
        )
        for name, shards in mine.items():
            if not all(map(theirs[name].has_block, shards)):
                raise ValueError(f"{name.removeprefix(MODEL)!r} is cut into other blocks there")
        others = without_prefix(OPTIMIZER, stored).items()
        dense = {n: found.read() for n, found in others if _parameter(n) not in tables}
        if numbers is not None:
            self.dense.check_state(dense, numbers)
        for name, shards in mine.items():
            for shard in shards:
                theirs[name].fill(shard)
        if numbers is not None:
            self.dense.load_state(dense, numbers)
            steps = [
                s.tensor for n, (s, *_) in mine.items() if n.endswith(f"/{STEP}") and is_of_table(n)
            ]
            self._set_steps(max(map(int, steps), default=0))

    def _set_steps(self, steps: int) -> None:
        self.steps = steps
        for state in [] if self.small_tables is None else self.small_tables.state.values():
            if STEP in state:
                state[STEP].fill_(steps)

    def not_finite(self) -> str | None:
        """Return the name of a parameter, of which this rank holds a part, that is not finite."""
        held = [
            (self._plain(path, held.table)[0], rows)
            for path, held in self.tables()
            for _, rows in held.parts
        ]
        return not_finite([*self.dense_parameters().items(), *held])

    def _plain(self, path: str, table: BlockTable) -> tuple[str, tuple[int, ...]]:
        """The name and the shape of the tensor of the plain model that a table is a block of."""
        name = f"table_{table.block.storage.group}"
        return inside(path, name), self.embeddings[path].layout.tensors[name].shape


def _shards(
    parts: list[tuple[int, Tensor]],
    table: BlockTable,
    shape: tuple[int, ...],
    *,
    one_number: bool = False,
) -> list[Shard]:
    """What is here of a block of a tensor."""
    packed = table.layout
    if one_number:  # a stored row, which is one of the block's then
        packed, shape = replace(packed, dim=1, quantum=1), (shape[0], 1)
    held = parts or [(0, torch.empty(0, packed.width))]
    return [Shard(rows, shape, table.block.first_row, packed, first) for first, rows in held]


def _parameter(place: str) -> str:
    """The name of a parameter, of which this is a part of the state."""
    return place.rpartition("/")[0]


def embeddings_in(model: nn.Module) -> dict[str, ShardableEmbeddings]:
    """The embeddings in a model, by where they are in it."""
    return {path: m for path, m in model.named_modules() if isinstance(m, ShardableEmbeddings)}


def inside(path: str, name: str) -> str:
    """The name in a model of what has this name in the module at `path`."""
    return f"{path}.{name}" if path else name
