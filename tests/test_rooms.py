"""Who may import whom, and which word may stand in which room: the rules that keep the house."""

import ast
import importlib
import inspect
import re
import sys
from functools import cache
from pathlib import Path

import pytest

import mixdim
from mixdim.models import MODELS

SOURCE = Path(__file__).parent.parent / "src" / "mixdim"
FILES = sorted(SOURCE.rglob("*.py"))
# A room, and the rooms it may import beside itself; what stands lower never imports what stands higher.
MAY_IMPORT = {
    "_util": set(),
    "tasks": {"_util"},
    "kernels": {"_util"},
    "storages": {"_util", "kernels"},
    "planning": {"_util", "storages"},
    "layer": {"_util", "kernels", "storages", "planning"},
    "optim": {"_util", "kernels"},
    "models": {"_util", "kernels", "storages", "planning", "layer"},
    "data": {"_util", "tasks"},
    "compression": {"_util", "kernels", "storages", "planning", "layer"},
    "serving": {"_util", "tasks", "storages", "planning", "layer", "models"},
    "training": {"_util", "tasks", "planning", "optim"},
    "distributed": {"_util", "tasks", "kernels", "storages", "planning", "layer", "training"},
    "runs": {
        *("_util", "tasks", "storages", "planning", "layer", "models", "data", "compression"),
        *("serving", "training", "distributed", ""),
    },
    "lab": {
        *("_util", "tasks", "storages", "planning", "layer", "models", "data", "training"),
        *("runs", ""),
    },
    "cli": {
        *("_util", "tasks", "kernels", "planning", "data", "training", "distributed", "runs", ""),
        "lab",  # its commands, in cli/lab*.py alone: see below
    },
    "theory": {"lab"},  # its other name
    "__main__": {"cli"},
    "": {"_util"},  # and all public rooms once they are used: tests/test_imports.py
}
# These have extras; all others need torch, numpy and safetensors only.
BEYOND_THE_CORE = {"__main__", "theory", "cli", "data", "distributed", "runs", "serving", "lab"}
# Numbers never import drawings.
DRAWINGS = ("mixdim.runs.figures", "mixdim.lab.figures", "matplotlib")
MAY_DRAW = ("runs.figures", "lab.figures", "lab.reproduce", "lab.demo", "cli")


def module_of(path):
    name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    return name.removesuffix(".__init__").replace("__init__", "")


def room_of(module):
    return module.split(".")[0]


def is_module(name):
    path = SOURCE.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


@cache
def nodes_of(path):
    """All nodes of a file; parsing is the most of these tests' time."""
    return tuple(ast.walk(ast.parse(path.read_text())))


@cache
def imports_of(path):
    """The modules that a file imports at run time."""
    return tuple(_imports_of(path))


def _imports_of(path):
    for_types = {
        inner
        for node in nodes_of(path)
        if isinstance(node, ast.If) and getattr(node.test, "id", None) == "TYPE_CHECKING"
        for branch in node.body
        for inner in ast.walk(branch)
    }
    for node in nodes_of(path):
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


def own_imports_of(path):
    """The modules of the package that a file imports; "" is `import mixdim` itself."""
    parts = [name.split(".") for name in imports_of(path)]
    return {".".join(name[1:]) for name in parts if name[0] == "mixdim"}


def test_a_file_imports_only_the_rooms_it_may():
    wrong = []
    for path in FILES:
        module = module_of(path)
        allowed = {room_of(module), *MAY_IMPORT[room_of(module)]}
        wrong += [(module, name) for name in own_imports_of(path) if room_of(name) not in allowed]
    assert wrong == []


def test_no_room_stands_on_another_that_stands_on_it():
    above = {room: others - {""} for room, others in MAY_IMPORT.items() if room}
    done = set()
    while len(done) < len(above):
        ready = {room for room, others in above.items() if others <= done} - done
        assert ready, {room: others - done for room, others in above.items() if room not in done}
        done |= ready


def test_nothing_imports_the_lab_but_its_commands_and_its_other_name():
    found = {module_of(path) for path in FILES if any(room_of(n) == "lab" for n in own_imports_of(path))}
    assert {module for module in found if room_of(module) != "lab"} == {
        "cli.lab",
        "cli.lab_theory",
        "theory",
    }


def test_numbers_never_import_drawings():
    wrong = [
        (module_of(path), name)
        for path in FILES
        if not module_of(path).startswith(MAY_DRAW)
        for name in imports_of(path)
        if name.startswith(DRAWINGS)
    ]
    assert wrong == []


def test_the_core_needs_torch_numpy_and_safetensors_only():
    core = [path for path in FILES if room_of(module_of(path)) not in BEYOND_THE_CORE]
    tops = {name.split(".")[0] for path in core for name in imports_of(path)}
    assert tops <= {"mixdim", "torch", "numpy", "safetensors"} | sys.stdlib_module_names


# Words, and the one room that may know them.
WORDS = {
    r"^\s*(import onnx\b|from onnx\b)": "serving",
    r"isinstance\(.*\b(storage|Storage|Rows|Hashed|QuotientRemainder|Robe)\b": "storages",
    r"\bis_cpu\b": "kernels",
    r"\bavailable\(\)|\bCOMPILED\b": "kernels",
    r"^\s*(import|from) torch\.distributed\b": "distributed",
}
# Here a function may import what others import at the top: commands import what they need when they run,
# and TorchRec, which is installed on its own, is behind `distributed`.
MAY_IMPORT_LATE = {"cli", "__main__"}


def test_no_import_in_a_function_breaks_a_cycle():
    wrong = []
    for path in FILES:
        for function in nodes_of(path):
            if not isinstance(function, ast.FunctionDef) or room_of(module_of(path)) in MAY_IMPORT_LATE:
                continue
            found = [node for node in ast.walk(function) if isinstance(node, ast.ImportFrom)]
            wrong += [
                (module_of(path), node.module)
                for node in found
                if node.module.startswith("mixdim") and not node.module.startswith("mixdim.distributed")
            ]
    assert wrong == []


@pytest.mark.parametrize("word", WORDS)
def test_a_word_stands_in_one_room_only(word):
    found = {
        room_of(module_of(path)) for path in FILES if re.search(word, path.read_text(), re.MULTILINE)
    }
    assert found == {WORDS[word]}


def test_only_models_know_the_class_of_a_model():
    """All else asks what a `Model` says of itself; a new model is a file that nobody else names."""
    classes, wrong = {model.__name__ for model in MODELS.values()}, []
    for path in FILES:
        if room_of(module_of(path)) in ("models", "lab"):
            continue
        for node in nodes_of(path):
            named = (getattr(node, word, None) for word in ("id", "attr", "name"))
            wrong += [(module_of(path), name) for name in named if name in classes]
    assert wrong == []


def test_mixdim_plan_and_compress_are_functions_and_nothing_else():
    for name in ("plan", "compress"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(f"mixdim.{name}")
        assert inspect.isfunction(getattr(mixdim, name))
