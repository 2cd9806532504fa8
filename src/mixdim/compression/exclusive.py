"""One at a time with somebody's model, and nobody else who uses it. Knows nothing about compression."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from weakref import WeakSet

from torch import nn

from mixdim.compression.find import ModelTable

_BUSY: WeakSet[nn.Module] = WeakSet()
_LOCK = threading.Lock()


@contextmanager
def exclusive(model: nn.Module) -> Iterator[None]:
    """Refuse a model that another thread is observing or compressing."""
    with _LOCK:
        if model in _BUSY:
            raise RuntimeError("the model is being observed or compressed on another thread")
        _BUSY.add(model)
    try:
        yield
    finally:
        with _LOCK:
            _BUSY.discard(model)


@contextmanager
def untouched(tables: Sequence[ModelTable]) -> Iterator[None]:
    """Raise in the end if tables were asked for or written to meanwhile, by whatever thread."""
    read: list[str] = []
    versions = [_version(table) for table in tables]
    hooks = [
        table.module.register_forward_pre_hook(lambda *_, name=table.name: read.append(name))
        for table in tables
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    changed = [
        table.name for table, version in zip(tables, versions, strict=True) if _version(table) != version
    ]
    for names, what in ((read, "asked for"), (changed, "changed")):
        if names:
            raise RuntimeError(
                f"the model is in use on another thread: {names[0]} was {what} while it was being "
                "compressed; nothing has been changed, stop using it and compress again"
            )


def _version(table: ModelTable) -> int:
    """How often a weight was written to; one that was made in inference mode does not say."""
    weight = table.module.weight
    return 0 if weight.is_inference() else weight._version
