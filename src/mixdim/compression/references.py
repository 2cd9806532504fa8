"""Who still holds what was taken out of a model: optimizers, and references of other code.

Knows nothing about compression: it is told which tensors and modules are gone.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer, SparseAdam

from mixdim.planning.budget import format_bytes

OWN_PARTS = {"_parameters", "_buffers", "_modules"}
MOST_VISITED, MOST_WITHIN = 200_000, 10_000  # objects: somebody's model may refer to a data set
PLAIN = (str, bytes, int, float, complex, bool, type(None), type)


class StaleReferences(NamedTuple):
    """Who refers to what is gone: references in the model, optimizers, and whose tables these hold."""

    stale: tuple[str, ...]
    optimizers: tuple[str, ...]
    tables: frozenset[str]


class RemovedTables:
    """Tables that are taken out of a model, by name; it keeps none of them alive."""

    def __init__(self, modules: Mapping[str, nn.Embedding | nn.EmbeddingBag]) -> None:
        self.modules: Mapping[str, Callable[[], Any]] = {
            name: weakref.ref(module) for name, module in modules.items()
        }
        self.weights: Mapping[str, Callable[[], Any]] = {
            name: weakref.ref(module.weight) for name, module in modules.items()
        }
        self.nbytes = {name: module.weight.nbytes for name, module in modules.items()}

    def found_in(self, model: nn.Module, moved: Sequence[Optimizer] = ()) -> StaleReferences:
        """Look for references in a model and, everywhere, for optimizers that are not moved."""
        names = {id(ref()): name for refs in (self.modules, self.weights) for name, ref in refs.items()}
        optimizers = [
            optimizer
            for optimizer in _optimizers_with({id(ref()) for ref in self.weights.values()})
            if not any(optimizer is other for other in moved)
        ]
        stale, tables = [], set()
        places: dict[int, str] = {}
        for path, value in _paths_to(model, {*names, *map(id, optimizers)}):
            if isinstance(value, Optimizer):
                places.setdefault(id(value), path)
                continue
            name = names[id(value)]
            tables.add(name)
            is_module = isinstance(value, nn.Module)
            what, new = ("table", "") if is_module else ("weight", ".parameters()")
            stale.append(
                f"{path} is the old {what} of {name}: put model.get_submodule({name!r}){new} there"
            )
        lines = []
        for optimizer in optimizers:
            held = {id(one) for group in optimizer.param_groups for one in group["params"]}
            owned = [name for name, ref in self.weights.items() if id(ref()) in held]
            tables.update(owned)
            place = places.get(id(optimizer), "one that you hold")
            advice = "make it anew, or give it to mixdim.compress as optimizers=[...]"
            if isinstance(optimizer, SparseAdam):
                advice = "make another one anew, projections have dense gradients"
            lines.append(
                f"{type(optimizer).__name__} ({place}) has the old weight of {', '.join(owned)} and "
                f"would train nothing of the new: {advice}"
            )
        return StaleReferences(tuple(stale), tuple(lines), frozenset(tables))

    def held_elsewhere(self, explained: Collection[str]) -> Iterator[str]:
        """Say which tables are still in memory though nothing that was found refers to them."""
        for name, ref in self.weights.items():
            if name not in explained and ref() is not None:
                yield (
                    f"something outside of the model refers to the old table of {name}: it takes "
                    f"{format_bytes(self.nbytes[name])} until that variable or list lets it go"
                )


def _optimizers_with(parameters: set[int]) -> list[Optimizer]:
    """All optimizers of this process that hold one of these parameters, given by their ids."""
    kinds, waiting = {Optimizer}, [Optimizer]
    while waiting:
        kinds.update(found := waiting.pop().__subclasses__())
        waiting += found
    return [
        found
        for found in gc.get_objects()
        # Not isinstance: it would ask objects such as lazy imports for their __class__, and is slow.
        if type(found) in kinds
        and any(id(one) in parameters for group in found.param_groups for one in group["params"])
    ]


def check_movable(optimizers: Sequence[Any]) -> None:
    """Refuse what cannot go on with a small table's parameters."""
    if isinstance(optimizers, Optimizer):
        raise ValueError(
            f"optimizers must be a list, got one {type(optimizers).__name__}: put it in [ ]"
        )
    for number, optimizer in enumerate(optimizers):
        if not isinstance(optimizer, Optimizer):
            raise ValueError(
                f"optimizers[{number}] must be a torch.optim.Optimizer, got {type(optimizer).__name__}"
            )
        if isinstance(optimizer, SparseAdam):
            raise ValueError(
                f"optimizers[{number}] is a SparseAdam, which takes no dense gradients such as those of "
                "projections: make another one after compressing"
            )


def move(optimizer: Optimizer, replaced: Mapping[Tensor, Sequence[nn.Parameter]]) -> None:
    """Put new parameters where an optimizer has old ones; state of the others stays."""
    for group in optimizer.param_groups:
        group["params"] = [new for old in group["params"] for new in replaced.get(old, [old])]
    for old in replaced:
        optimizer.state.pop(old, None)


def _paths_to(model: nn.Module, gone: Collection[int]) -> Iterator[tuple[str, Any]]:
    """Where a model still refers to what is gone, beside its registered parts: the path, and what.

    Lists, tuples, dicts, sets and attributes of objects are followed; `gone` are ids of objects.
    """
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = []
    for name, module in model.named_modules():
        seen.add(id(module))
        prefix = f"model.{name}" if name else "model"
        waiting += [
            (f"{prefix}.{key}", value) for key, value in vars(module).items() if key not in OWN_PARTS
        ]
    waiting.reverse()
    visited = 0
    while waiting and visited < MOST_VISITED:
        path, value = waiting.pop()
        visited += 1
        if id(value) in gone:
            yield path, value
            continue
        if isinstance(value, (*PLAIN, Tensor, Optimizer)) or id(value) in seen:
            continue
        seen.add(id(value))
        waiting += reversed(list(_within(path, value)))


def _within(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The objects that an object refers to, with their paths; of very many, the first."""
    if isinstance(value, dict):
        named = islice(value.items(), MOST_WITHIN)
        yield from ((f"{path}[{_key(key)}]", one) for key, one in named)
    elif isinstance(value, list | tuple):
        yield from ((f"{path}[{number}]", one) for number, one in enumerate(value[:MOST_WITHIN]))
    elif isinstance(value, set | frozenset):
        yield from ((f"an element of {path}", one) for one in islice(value, MOST_WITHIN))
    else:
        with suppress(Exception):  # of objects that answer for others
            yield from ((f"{path}.{name}", one) for name, one in vars(value).items())


def _key(key: Any) -> str:
    return repr(key) if isinstance(key, str | int) else f"a {type(key).__name__}"
