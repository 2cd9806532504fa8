"""An optimizer's state moved from the parameters of one layer to those of another. Knows no optimizers.

What is kept of a number goes with it: the state of a block that was copied is copied, that of a
block that was fitted begins at zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mixdim.layer.fill import Move
from mixdim.layer.layout import LIFT

if TYPE_CHECKING:
    from mixdim.layer.embedding_base import MixedEmbeddingBase


@dataclass(frozen=True, eq=False)
class Transfer:
    """What became of each block between two layers; `source` is None if it was a matrix."""

    source: MixedEmbeddingBase | None
    target: MixedEmbeddingBase
    moves: tuple[Move, ...]

    def apply(self, optimizer: Optimizer) -> None:
        """Put the target's parameters in the place of the source's, with their state; others stay.

        Numbers that an optimizer keeps for a whole parameter, such as its steps, are the largest of the
        source's parameters.
        """
        if self.source is None:
            raise ValueError("the source was a matrix, so no optimizer has a state of it")
        old, new = dict(self.source.named_parameters()), dict(self.target.named_parameters())
        replaced = _replaced(optimizer, old, new)
        if not replaced:
            raise ValueError("the optimizer must have the tables or the lift of the source, it has none")
        states = {name: dict(optimizer.state.get(parameter, {})) for name, parameter in old.items()}
        moved = self._moved({n: s for n, s in states.items() if n in replaced}, old, new)
        for group in optimizer.param_groups:
            _replace(group, {id(old[name]): (name, into) for name, into in replaced.items()}, new)
        for name, into in replaced.items():
            optimizer.state.pop(old[name], None)
            for other in into:
                if moved[other]:
                    optimizer.state[new[other]] = moved[other]

    def _moved(
        self,
        states: dict[str, dict[str, Any]],
        old: dict[str, nn.Parameter],
        new: dict[str, nn.Parameter],
    ) -> dict[str, dict[str, Any]]:
        """The state of each new parameter."""
        assert self.source is not None
        by_key: dict[str, dict[str, Any]] = {}
        for name, state in states.items():
            for key, value in state.items():
                is_sparse = isinstance(value, Tensor) and value.is_sparse  # as SGD keeps momentum
                by_key.setdefault(key, {})[name] = value.to_dense() if is_sparse else value
        moved: dict[str, dict[str, Any]] = {name: {} for name in new}
        for key, values in by_key.items():
            if not all(isinstance(v, Tensor) and v.shape == old[n].shape for n, v in values.items()):
                largest = max(values.values(), key=float)
                for name in new:
                    moved[name][key] = largest.clone() if isinstance(largest, Tensor) else largest
                continue
            before = {name: values.get(name, torch.zeros_like(p)) for name, p in old.items()}
            after = {name: torch.zeros_like(parameter) for name, parameter in new.items()}
            mine, others = self.source.tables(of=before), self.target.tables(of=after)
            for move in self.moves:
                if move.source is not None and move.target.storage.is_trained:
                    parts = mine.of_block(move.source).parts(move.source)
                    others.of_block(move.target).fill(move.target, parts)
            for name in new:
                moved[name][key] = after[name]
        return moved


def _replaced(
    optimizer: Optimizer, old: dict[str, nn.Parameter], new: dict[str, nn.Parameter]
) -> dict[str, list[str]]:
    """By name of an old parameter that an optimizer has, the new ones that take its place.

    The first table gives its place to all tables, the lift to the lift; a new lift comes with tables.
    """
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    tables = [name for name in new if name != LIFT or LIFT not in old]
    found: dict[str, list[str]] = {}
    for names, into in (
        ([name for name in old if name != LIFT], tables),
        ([name for name in old if name == LIFT], [name for name in new if name == LIFT]),
    ):
        mine = [name for name in names if id(old[name]) in held]
        if mine and mine != names:
            raise ValueError(
                f"the optimizer must have all tables of the source, it has {', '.join(mine)} only"
            )
        found |= {name: into if number == 0 else [] for number, name in enumerate(mine)}
    return found


def _replace(
    group: dict[str, Any], places: dict[int, tuple[str, list[str]]], new: dict[str, nn.Parameter]
) -> None:
    """Put new parameters, and their names if the group has names, where old ones are."""
    params: list[Tensor] = []
    names: list[str] = []
    known = group.get("param_names", [""] * len(group["params"]))
    for parameter, full in zip(group["params"], known, strict=True):
        if id(parameter) not in places:
            params.append(parameter)
            names.append(full)
            continue
        name, into = places[id(parameter)]
        params += [new[other] for other in into]
        names += [full.removesuffix(name) + other for other in into]
    group["params"] = params
    if "param_names" in group:
        group["param_names"] = names
