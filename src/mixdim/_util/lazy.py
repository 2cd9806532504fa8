"""Modules that are imported when something of them is first used. Knows none of them by name."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class _Later:
    """Stands for a module until an attribute of it is asked for; then the module takes its place."""

    def __init__(self, module: str, namespace: dict[str, Any], name: str) -> None:
        self._module, self._namespace, self._name = module, namespace, name

    def __getattr__(self, attribute: str) -> Any:
        module = import_module(self._module)
        self._namespace[self._name] = module
        return getattr(module, attribute)


def import_later(namespace: dict[str, Any], **modules: str) -> None:
    """Give a namespace modules under these names, each imported when it is first used.

    For libraries that take seconds to import, such as torch, in files whose values do without them.
    Import them under TYPE_CHECKING too, so that type checkers and readers know the names.

    >>> import_later(globals(), fractions="fractions")
    >>> fractions.Fraction(1, 2) + fractions.Fraction(1, 3)
    Fraction(5, 6)
    """
    for name, module in modules.items():
        namespace[name] = _Later(module, namespace, name)
