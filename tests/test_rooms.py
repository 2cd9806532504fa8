"""Who may import whom: the package reads in one direction."""

import ast
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "mixdim"

# Each room may import the rooms before it in its line, and nothing else of the package.
MAY_IMPORT = {
    "starting": set(),
    "arguments": set(),
    "files": set(),
    "locks": set(),
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
    "indices": {"packing"},
    "lookup": {"bags", "indices", "packing"},
    "kernels": {"bags", "ids"},
    "interaction": {"", "kernels"},
    "optim": {"", "arguments", "kernels"},
    "clipping": set(),
    "data_parallel": set(),
    "mixed_tables": {
        *("", "arguments", "bags", "data_parallel", "ids", "indices", "kernels", "lookup", "packing"),
        "plan",
    },
    "embedding": {"ids", "interaction", "kernels", "mixed_tables", "plan"},
    "scores": {"embedding", "ids", "kernels"},
    "models": {"arguments", "embedding", "interaction", "mixed_tables", "plan", "scores"},
    "feature_file": {"arguments", "plan"},
    "data": {"arguments", "files", "locks", "plan_table", "stopping"},
    "training": {"arguments", "budget", "locks", "optim", "plan"},
    "experiments": {
        *("", "arguments", "blocking", "budget", "data", "embedding", "files", "locks"),
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
    "cli_outcome": {"starting", "stopping"},
    "cli_progress": set(),
    "cli_streams": set(),
    "cli_theory": {"cli_progress", "experiments", "files"},
    "cli_sweep": {"arguments", "budget", "cli_progress", "experiments", "plan_table"},
    "cli_reproduce": {"cli_progress", "experiments"},
    "cli_report": {"experiments"},
    "cli_data": {"cli_progress", "data", "experiments"},
    "cli_train": {"cli_progress", "experiments", "plan_table", "training"},
    "cli": {
        *("", "cli_data", "cli_outcome", "cli_progress", "cli_report", "cli_reproduce", "cli_sweep"),
        *("cli_theory", "cli_train", "data", "experiments", "feature_file", "files", "kernels"),
        "stopping",
    },
    "__main__": {"cli", "cli_streams"},
    "__init__": {
        "blocking",
        "clipping",
        "data_parallel",
        "embedding",
        "interaction",
        "optim",
        "plan",
        "planning",
        "scores",
        "sizing",
        "spectral_planning",
        "starting",
        "training",
    },
}


def room_of(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def is_module(name):
    path = SOURCE.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


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
            submodules = [alias.name for alias in node.names if is_module(f"{node.module}.{alias.name}")]
            yield from (f"{node.module}.{name}" for name in submodules)
            if len(submodules) < len(node.names):
                yield node.module


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_a_file_imports_only_the_rooms_it_may(path):
    room = room_of(path)
    assert room in MAY_IMPORT, f"say in MAY_IMPORT what the new room {room!r} may import"
    parts = [name.split(".") for name in imports_of(path)]
    rooms = {(name[1] if len(name) > 1 else "") for name in parts if name[0] == "mixdim"}
    assert rooms - {room} <= MAY_IMPORT[room]


# Records in, figure out; and where pictures, words and numbers are put together.
DRAWINGS = {
    *("figures", "frontier_figure", "popularity_figure", "theory_figures"),
    *("paper_figures", "paper_figures_cf", "paper_figures_layer"),
}
USE_DRAWINGS = {"demo", "paper_targets", "untrained_targets", "reproduce"}


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_numbers_never_import_drawings(path):
    if path.stem in DRAWINGS | USE_DRAWINGS or path.stem.startswith("cli"):
        return
    with_drawings = {f"mixdim.experiments.{name}" for name in DRAWINGS | USE_DRAWINGS}
    found = {name for name in imports_of(path) if name.split(".")[0] == "matplotlib"}
    assert found | (set(imports_of(path)) & with_drawings) == set()


BEYOND_THE_CORE = {  # these have extras
    *("__main__", "cli", "cli_data", "cli_outcome", "cli_progress", "cli_report", "cli_reproduce"),
    *("cli_streams", "cli_sweep", "cli_theory", "cli_train", "data", "experiments", "theory"),
}


@pytest.mark.parametrize("room", sorted(set(MAY_IMPORT) - BEYOND_THE_CORE))
def test_the_core_needs_torch_numpy_and_safetensors_only(room):
    folder = SOURCE / room
    files = folder.glob("*.py") if folder.is_dir() else [folder.with_suffix(".py")]
    tops = {name.split(".")[0] for file in files for name in imports_of(file)}
    assert tops <= {"mixdim", "torch", "numpy", "safetensors"} | sys.stdlib_module_names
