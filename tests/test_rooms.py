"""Who may import whom: the package reads in one direction, room by room and down to sub-rooms."""

import ast
import importlib
import inspect
import sys
from functools import cache
from pathlib import Path

import pytest

import mixdim

SOURCE = Path(__file__).parent.parent / "src" / "mixdim"
FILES = sorted(SOURCE.rglob("*.py"))
BASICS = {"arguments", "files", "initialisation", "locks", "printing", "starting", "stopping"}
RUNS, SWEEPS, PAPER = ({f"experiments.{name}"} for name in ("runs", "sweeps", "paper"))
CORE = {
    "",
    "arguments",
    "storages",
    "planning",
    "layer",
    "models",
    "theory",
    "data",
    "serving",
    "training",
}

# A room, or a file that differs from its room, and what of the package it may import besides itself.
# "" is the public face, `import mixdim`; naming a room allows what is in it.
MAY_IMPORT = {
    **{name: set() for name in (*BASICS, "clipping", "data_parallel")},
    "theory": {"arguments"},
    "storages": {"arguments", "initialisation"},
    "storages.quantised": {"initialisation", "kernels", "storages"},
    "planning": {"arguments", "files", "printing", "storages"},
    "planning.from_spectra": {"arguments", "planning", "storages", "theory.choice", "theory.spectra"},
    "layer": {"", "arguments", "data_parallel", "initialisation", "kernels", "planning", "storages"},
    # What kernels check in the same words as the plain path, which needs no tables.
    "kernels": {"layer.ids", "layer.bags"},
    "optim": {"", "arguments", "kernels"},
    "compression": {
        *("arguments", "files", "layer", "planning", "printing", "storages", "theory.choice"),
    },
    "models": {
        *("arguments", "initialisation", "kernels", "layer.interaction", "layer.scores", "planning"),
    },
    "serving": {"arguments", "files", "layer", "models", "planning", "storages"},
    # Not the models: they take its embeddings as they take the layer's.
    "distributed": {
        *("arguments", "files", "initialisation", "layer", "planning", "printing", "storages"),
        "training",
    },
    "data": BASICS,
    "training": {"arguments", "files", "locks", "optim", "planning"},
    "integrations": {"storages", "planning", "layer", "kernels", "optim", "models"},
    "experiments": {*CORE, *BASICS, "experiments"},
    "experiments.runs": {*CORE, "compression", "distributed", "files", "locks", "printing", "stopping"},
    "experiments.sweeps": {*CORE, "locks", "printing", *RUNS},
    "experiments.theory": {"arguments", "files", "printing", "theory"},
    "experiments.report": {
        *("files", "planning.budget", "printing", "experiments.runs.beside_baselines"),
        *SWEEPS,
    },
    "experiments.paper": {*CORE, "files", *RUNS, *SWEEPS},
    "experiments.figures": {"files", "planning", "printing", "experiments.theory", *SWEEPS, *PAPER},
    "experiments.reproduce": {*CORE, *BASICS, "experiments"},
    "cli": {"", "data", "distributed", "experiments", "kernels", "planning", "training", *BASICS},
    "__main__": {"cli"},
    "__init__": {
        *("clipping", "compression", "data_parallel", "layer", "optim", "planning", "serving"),
        *("starting", "storages", "training"),
    },
}
# These have extras; all others need torch, numpy and safetensors only.
BEYOND_THE_CORE = {
    *("__main__", "cli", "data", "distributed", "experiments", "serving", "theory", "integrations"),
}
# Records in, figure out; and where pictures, words and numbers are put together.
USE_DRAWINGS = {"experiments.figures", "experiments.reproduce", "experiments.demo", "cli", "__main__"}


def module_of(path):
    name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    return name.removesuffix(".__init__")


def is_within(module, room):
    return module == room or (room != "" and module.startswith(f"{room}."))


def rule_for(module):
    """The room in MAY_IMPORT that a module belongs to, the innermost if there are several."""
    rooms = [room for room in MAY_IMPORT if is_within(module, room)]
    assert rooms, f"say in MAY_IMPORT what the new room of {module!r} may import"
    return max(rooms, key=len)


def is_module(name):
    path = SOURCE.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


@cache
def imports_of(path):
    """The modules that a file imports at run time."""
    return tuple(_imports_of(path))


def _imports_of(path):
    tree = ast.parse(path.read_text())
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", None) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            submodules = [alias.name for alias in node.names if is_module(f"{node.module}.{alias.name}")]
            yield from (f"{node.module}.{name}" for name in submodules)
            if len(submodules) < len(node.names):
                yield node.module


@cache
def own_imports_of(path):
    """The modules of the package that a file imports, as MAY_IMPORT names them."""
    parts = [name.split(".") for name in imports_of(path)]
    return {".".join(name[1:]) for name in parts if name[0] == "mixdim"}


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_a_file_imports_only_the_rooms_it_may(path):
    room = rule_for(module_of(path))
    allowed = {room, *MAY_IMPORT[room]}
    wrong = {name for name in own_imports_of(path) if not any(is_within(name, r) for r in allowed)}
    assert wrong == set()


def test_rooms_do_not_import_each_other():
    """Cutting at the rooms named above, the package has an order; kernels see two files of the layer."""
    waits_for = {room: set() for room in MAY_IMPORT}
    for path in FILES:
        room = rule_for(module_of(path))
        found = {rule_for(name) for name in own_imports_of(path) if name}
        waits_for[room] |= {other for other in found if not is_within(room, other)}
    waits_for["kernels"].discard("layer")
    done = set()
    while len(done) < len(waits_for):
        ready = {room for room, others in waits_for.items() if others <= done} - done
        assert ready, {room: others - done for room, others in waits_for.items() if room not in done}
        done |= ready


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_numbers_never_import_drawings(path):
    if any(is_within(module_of(path), room) for room in USE_DRAWINGS):
        return
    assert not any(name.split(".")[0] == "matplotlib" for name in imports_of(path))
    found = own_imports_of(path)
    assert {name for name in found for room in USE_DRAWINGS if is_within(name, room)} == set()


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_the_core_needs_torch_numpy_and_safetensors_only(path):
    if any(is_within(module_of(path), room) for room in BEYOND_THE_CORE):
        return
    tops = {name.split(".")[0] for name in imports_of(path)}
    assert tops <= {"mixdim", "torch", "numpy", "safetensors"} | sys.stdlib_module_names


def test_mixdim_plan_and_compress_are_functions_and_nothing_else():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("mixdim.plan")
    importlib.import_module("mixdim.planning.plan")
    assert inspect.isfunction(mixdim.plan)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("mixdim.compress")
    importlib.import_module("mixdim.compression.compressing")
    assert inspect.isfunction(mixdim.compress)
    assert all(hasattr(mixdim, name) for name in mixdim.__all__)
    for room in ("data", "distributed", "models", "serving", "theory", "training"):
        assert getattr(mixdim, room).__name__ == f"mixdim.{room}"
