"""The options of each model that a run can name, known without torch. Knows not how models work.

An option of a model is one field of `Options` in the model's file: so it is a flag of `mixdim train`, a
key of TOML files and records, and a line of docs/options.md. Options of two models that share a name are
one flag. Model files import torch, which takes seconds, and `--help` does not: so the declarations are
read from the files, and nothing else of these is run.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mixdim._util.options import Option, opt, options_of

PANEL = "Model"
MODELS = "mixdim.models"


def _declared() -> dict[str, type]:
    """The options that model files declare, by the name that `register` gives the model."""
    spec = find_spec(MODELS)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    found: dict[str, type] = {}
    for folder in spec.submodule_search_locations:
        for path in sorted(Path(folder).glob("*.py")):
            for model in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(model, ast.ClassDef) and (name := _registered_name(model)) is not None:
                    found[name] = _options(model, path)
    return found


def _registered_name(model: ast.ClassDef) -> str | None:
    """What `@register("name", ...)` above a class says."""
    for decorator in model.decorator_list:
        match decorator:
            case ast.Call(func=ast.Name(id="register"), args=[ast.Constant(value=str(name)), *_]):
                return name
    return None


def _options(model: ast.ClassDef, path: Path) -> type:
    """The class `Options` in a model's class; what it declares are calls of `opt` with plain values."""
    own = [node for node in model.body if isinstance(node, ast.ClassDef) and node.name == "Options"]
    names: dict[str, Any] = {"__name__": __name__, "dataclass": dataclass, "opt": opt, "PANEL": PANEL}
    code: Any = ast.fix_missing_locations(ast.Module(body=list(own), type_ignores=[]))
    exec(compile(code, str(path), "exec"), names)
    return names.get("Options", _NoOptions)


@dataclass(frozen=True)
class _NoOptions:
    """Those of a model that has none."""


MODEL_OPTIONS: dict[str, type] = _declared()


def declarations() -> dict[str, type]:
    """The options of all models by name, those too that somebody else has registered."""
    base = sys.modules.get(f"{MODELS}.base")
    registered = {} if base is None else {name: one.Options for name, one in base.MODELS.items()}
    others = {name: own for name, own in registered.items() if name not in MODEL_OPTIONS}
    return MODEL_OPTIONS | others


def model_options(model: str | None = None) -> Mapping[str, Option]:
    """The options of a model, or of all, by name; the help of each says which models have it."""
    known = declarations() if model is None else {model: declarations()[model]}
    return _joined(tuple(known.items()))


@cache
def _joined(models: tuple[tuple[str, type], ...]) -> Mapping[str, Option]:
    of_models: dict[str, dict[str, Option]] = {}
    for model, declaration in models:
        for name, option in options_of(declaration).items():
            of_models.setdefault(name, {})[model] = option
    return MappingProxyType({name: _one(name, options) for name, options in of_models.items()})


def _one(name: str, options: Mapping[str, Option]) -> Option:
    """The option of all models that have one of this name: it must be of one kind."""
    first = next(iter(options.values()))
    for model, option in options.items():
        if (option.kind, option.absent) != (first.kind, first.absent):
            raise TypeError(f"{name} of {model} must be {first.in_words}, as of {next(iter(options))}")
    models_of: dict[str, list[str]] = {}
    for model, option in options.items():
        default = "from the data" if option.from_data else option.text(option.default)
        text = f"{option.help.removesuffix('.')} (default: {default})."
        models_of.setdefault(text, []).append(model)
    return replace(
        first,
        help=" ".join(f"{', '.join(models)}: {text}" for text, models in models_of.items()),
        panel=first.panel or PANEL,
        from_data=any(option.from_data for option in options.values()),
    )
