"""Modules that are imported when something of them is first used. Knows no module by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


class _Later(ModuleType):
    """Stands for a module until an attribute of it is asked for; then the module takes its place.

    It is a module itself, so that torch.compile and torch.export trace code that uses it first.
    """

    def __init__(self, module: str, namespace: dict[str, Any], name: str) -> None:
        super().__init__(module)
        self._namespace, self._name = namespace, name

    def __getattr__(self, attribute: str) -> Any:
        module = import_module(self.__name__)
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


def names_later(
    namespace: dict[str, Any], *, names: Mapping[str, str], modules: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package that imports its public names when they are used.

    `names` says which module of the package each name comes from, and `modules` which module of the
    package each name is. A name is looked for once: then it is in the package's namespace (PEP 562).
    """
    package, modules = namespace["__name__"], modules or {}

    def get(name: str) -> Any:
        if name in names:
            value = getattr(import_module(f"{package}.{names[name]}"), name)
        elif name in modules:
            value = import_module(f"{package}.{modules[name]}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name)
        namespace[name] = value
        return value

    def list_names() -> list[str]:
        return sorted({*names, *modules, *(name for name in namespace if name.startswith("__"))})

    return get, list_names
