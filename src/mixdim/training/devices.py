"""Where a model is, and how a batch gets there. Knows nothing about what either is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from mixdim.training.inputs import Batch

AnyBatch = TypeVar("AnyBatch", bound=Batch)
Source = tuple[
    Callable[[], Tensor], Callable[[Tensor], None]
]  # of random numbers: read its state, set it


def device_of(model: nn.Module) -> torch.device | None:
    """The device of a model's first parameter or buffer; None if it has neither.

    >>> device_of(nn.Linear(2, 1)), device_of(nn.ReLU())
    (device(type='cpu'), None)
    """
    first: Tensor | None = next(chain(model.parameters(), model.buffers()), None)
    return None if first is None else first.device


def to_device(batch: AnyBatch, device: torch.device | None) -> AnyBatch:
    """The batch with all its tensors on a device; the batch itself if its target is there already.

    A NamedTuple or a dataclass is made anew of its fields; tensors are also found in tuples, lists and
    mappings, such as bags. A batch of any other type must have a method `to(device)` that returns the
    moved batch.
    """
    if device is None or batch.target.device == device:
        return batch
    moved = _moved(batch, device)
    if moved is batch:
        raise TypeError(
            f"a batch of type {type(batch).__name__} cannot be moved from {batch.target.device} to "
            f"{device}, where the model is: give it a method to(device), or make it a NamedTuple"
        )
    return moved


def random_states(device: torch.device | None) -> dict[str, Tensor]:
    """The state of torch's random numbers by where they are drawn: "torch" is the CPU."""
    return {name: read() for name, (read, _) in _random_sources(device).items()}


def set_random_states(states: Mapping[str, Tensor], device: torch.device | None) -> list[str]:
    """Draw on from what `random_states` returned; returns the sources that it does not speak of."""
    sources = _random_sources(device)
    for name in sources.keys() & states.keys():
        sources[name][1](states[name].clone())
    return sorted(sources.keys() - states.keys())


def _random_sources(device: torch.device | None) -> dict[str, Source]:
    """How to read and to set the state of the CPU's random numbers, and of the device's own."""
    sources: dict[str, Source] = {"torch": (torch.get_rng_state, torch.set_rng_state)}
    try:
        module: Any = None if device is None else torch.get_device_module(device)
    except RuntimeError:  # as of "meta"
        return sources
    if device is not None and hasattr(module, "get_rng_state"):
        place = {} if device.type == "mps" else {"device": device}
        sources[device.type] = (
            partial(module.get_rng_state, **place),
            partial(module.set_rng_state, **place),
        )
    return sources


def _moved(value: Any, device: torch.device) -> Any:
    if callable(getattr(value, "to", None)):  # a tensor, or something that knows how
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: _moved(item, device) for key, item in value.items()}
    if isinstance(value, tuple | list):
        items = [_moved(item, device) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if is_dataclass(value) and not isinstance(value, type):
        held = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        return replace(value, **{name: _moved(item, device) for name, item in held.items()})
    return value
