"""Who may import whom: the package reads in one direction."""

import ast
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "mixdim"

# Each room may import the rooms before it in its line, and nothing else of the package.
MAY_IMPORT = {
    "arguments": set(),
    "files": set(),
    "folder_lock": set(),
    "stopping": set(),
    "budget": {"arguments"},
    "blocking": {"arguments"},
    "sizing": {"arguments", "budget", "blocking"},
    "plan_table": {"budget"},
    "plan": {"arguments", "plan_table"},
    "planning": {"arguments", "budget", "blocking", "sizing", "plan"},
    "theory": {"arguments"},
    "spectral_planning": {"arguments", "blocking", "budget", "plan", "planning", "sizing", "theory"},
    "packing": {"plan"},
    "ids": set(),
    "bags": {"ids"},
    "lookup": {"bags", "packing"},
    "kernels": {"ids"},
    "interaction": {"", "kernels"},
    "optim": {"", "arguments", "kernels"},
    "mixed_tables": {"", "arguments", "bags", "ids", "kernels", "lookup", "packing", "plan"},
    "embedding": {"ids", "interaction", "kernels", "mixed_tables", "plan"},
    "scores": {"embedding", "ids", "kernels"},
    "models": {"arguments", "embedding", "interaction", "mixed_tables", "plan", "scores"},
    "feature_file": {"arguments", "plan"},
    "data": {"arguments", "files", "folder_lock", "plan_table", "stopping"},
    "training": {"arguments", "budget", "folder_lock", "optim", "plan"},
    "experiments": {
        *("", "arguments", "blocking", "budget", "data", "embedding", "files", "folder_lock"),
        *(
            "mixed_tables",
            "models",
            "plan",
            "plan_table",
            "planning",
            "sizing",
            "spectral_planning",
            "theory",
            "training",
        ),
    },
    "cli_progress": set(),
    "cli_theory": {"cli_progress", "experiments"},
    "cli_sweep": {"arguments", "budget", "cli_progress", "experiments", "plan_table"},
    "cli_reproduce": {"cli_progress", "experiments"},
    "cli_report": {"experiments"},
    "cli_data": {"cli_progress", "data", "experiments"},
    "cli_train": {"cli_progress", "experiments", "plan_table", "training"},
    "cli": {
        *("", "cli_data", "cli_progress", "cli_report", "cli_reproduce", "cli_sweep", "cli_theory"),
        *("cli_train", "data", "experiments", "feature_file", "files", "stopping"),
    },
    "__main__": {"cli"},
    "__init__": {
        "blocking",
        "embedding",
        "interaction",
        "optim",
        "plan",
        "planning",
        "scores",
        "sizing",
        "spectral_planning",
        "training",
    },
}


def room_of(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports_of(path):
    """The modules that a file imports at run time."""
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
            yield node.module


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_a_file_imports_only_the_rooms_it_may(path):
    room = room_of(path)
    assert room in MAY_IMPORT, f"say in MAY_IMPORT what the new room {room!r} may import"
    parts = [name.split(".") for name in imports_of(path)]
    rooms = {(name[1] if len(name) > 1 else "") for name in parts if name[0] == "mixdim"}
    assert rooms - {room} <= MAY_IMPORT[room]


BEYOND_THE_CORE = {  # these have extras
    *("__main__", "cli", "cli_data", "cli_progress", "cli_report", "cli_reproduce", "cli_sweep"),
    *("cli_theory", "cli_train", "data", "experiments", "theory"),
}


@pytest.mark.parametrize("room", sorted(set(MAY_IMPORT) - BEYOND_THE_CORE))
def test_the_core_needs_torch_numpy_and_safetensors_only(room):
    folder = SOURCE / room
    files = folder.glob("*.py") if folder.is_dir() else [folder.with_suffix(".py")]
    tops = {name.split(".")[0] for file in files for name in imports_of(file)}
    assert tops <= {"mixdim", "torch", "numpy", "safetensors"} | sys.stdlib_module_names
