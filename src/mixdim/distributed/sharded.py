"""A model that is spread over ranks, as one of them sees it. Knows no files, no data, no placement.

The gradients of all ranks are averaged: where each has the mean loss of its share of a batch, and shares
are of one size, a step is that of one process with the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer

from mixdim.distributed.embeddings import ShardableEmbeddings
from mixdim.distributed.engine import DistributedModelParallel
from mixdim.distributed.placement import Place
from mixdim.distributed.quiet import quiet
from mixdim.distributed.tables import BlockTable


class HeldTable(NamedTuple):
    """A table and what this rank holds of it."""

    table: BlockTable
    place: Place
    weight: Any  # a Tensor if every rank holds all of it, else a ShardedTensor
    state: Any | None  # the optimizer's, likewise; None if it keeps none

    @property
    def parts(self) -> list[tuple[int, Tensor]]:
        """The first stored row of what is here, and the rows; nothing if others hold them."""
        if isinstance(self.weight, Tensor) and self.place.kind == "data_parallel":
            return [(0, self.weight)]
        shards = self.weight.local_shards()
        return [(shard.metadata.shard_offsets[0], shard.tensor) for shard in shards]


class Sharded:
    """A model whose tables are spread over ranks, with its optimizer.

    Call it with a batch; after `backward`, the tables that are not on every rank have taken their step
    already, and `step` takes that of all else. `module` is the model that was given, tables replaced.
    """

    def __init__(
        self,
        model: DistributedModelParallel,
        places: dict[str, dict[str, Place]],
        parts: list[Optimizer],
        small_tables: Optimizer | None,
    ) -> None:
        self.model, self.places = model, places
        self.parts, self.small_tables = parts, small_tables

    def __call__(self, batch: Any) -> Tensor:
        """The output of each sample of this rank's share."""
        with quiet():
            return self.model(batch)

    @property
    def module(self) -> nn.Module:
        """The model itself."""
        return self.model.module

    @property
    def embeddings(self) -> dict[str, ShardableEmbeddings]:
        """The embeddings in the model, by where they are in it."""
        return embeddings_in(self.module)

    def step(self) -> None:
        """Update all that is on every rank."""
        for part in self._optimizers():
            part.step()

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for part in self._optimizers():
            part.zero_grad(set_to_none=True)

    def dense_parameters(self) -> dict[str, nn.Parameter]:
        """All parameters but those of tables."""
        tables = tuple(inside(name, "tables.") for name in self.places)
        named = self.model.named_parameters()
        return {name: parameter for name, parameter in named if not name.startswith(tables)}

    def dense_tensors(self) -> dict[str, Tensor]:
        """All parameters and buffers but those of tables, as the state has them."""
        tables = tuple(inside(name, "tables.") for name in self.places)
        with quiet():
            state = self.model.state_dict()
        return {name: tensor for name, tensor in state.items() if not name.startswith(tables)}

    def tables(self) -> Iterator[tuple[str, HeldTable]]:
        """The tables, by a name that does not depend on where they are."""
        with quiet():
            weights = self.model.state_dict()
            states = self.model.fused_optimizer.state_dict()["state"]
        parameters = dict(self.model.named_parameters())
        for path, embeddings in self.embeddings.items():
            for table in embeddings.block_tables:
                name = inside(path, f"tables.embedding_bags.{table.name}.weight")
                place = self.places[path][table.name]
                if place.kind != "data_parallel":
                    state = states.get(name, {}).get(f"{table.name}.momentum1")
                elif self.small_tables is None or parameters[name] not in self.small_tables.state:
                    state = None
                else:
                    state = self.small_tables.state[parameters[name]]["sum"]
                yield inside(path, table.name), HeldTable(table, place, weights[name], state)

    def _optimizers(self) -> list[Optimizer]:
        return self.parts if self.small_tables is None else [*self.parts, self.small_tables]


def embeddings_in(model: nn.Module) -> dict[str, ShardableEmbeddings]:
    """The embeddings in a model, by where they are in it."""
    return {path: m for path, m in model.named_modules() if isinstance(m, ShardableEmbeddings)}


def inside(path: str, name: str) -> str:
    """The name in a model of what has this name in the module at `path`."""
    return f"{path}.{name}" if path else name
