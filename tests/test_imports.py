"""What is imported, and when: planning and preparing data need no torch, which takes seconds."""

import ast
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import mixdim
import mixdim.distributed
import mixdim.training

SOURCE = Path(mixdim.__file__).parent

IMPORTS = """
import json, sys
import mixdim

assert "numpy" not in sys.modules
from mixdim.planning.plan import Plan
assert mixdim.Plan is Plan
mixdim.Hashed(2, buckets=10), mixdim.Rows(4, bits=8)
plan = mixdim.plan({"user": 60, "item": 37}, temperature=0.3, base_dim=8)
plan.nbytes(optimizer="adam"), plan.quantized().nbytes(), plan.trainable(), str(plan)
Plan.from_json(plan.to_json())
mixdim.power_law_dims, mixdim.equal_mass_bands, mixdim.spectral_plan, mixdim.data, mixdim.distributed
import mixdim.planning.methods, mixdim.data.table, mixdim.distributed.placement
"""

HELP = """
import sys
import typer
from mixdim.cli.main import app, run

def help_of(command, *path):
    assert run([*path, "--help"]) == 0, path
    for name, inner in getattr(command, "commands", {}).items():
        help_of(inner, *path, name)

assert run(["--version"]) == run(["version"]) == run([]) == 0
help_of(typer.main.get_command(app))
assert {"polars", "matplotlib", "scipy"}.isdisjoint(sys.modules)
"""

RUN = """
import json, sys
from mixdim.cli.main import run

for command, code in json.loads(sys.argv[1]).items():
    assert run(command.split()) == code, command
    assert "torch" not in sys.modules, command
"""

COMMANDS = """
plan --cardinalities user=60,item=37 --temperature 0.3 --budget 1kB --save plan.json --plot plan.svg
plan --cardinalities user=60,item=37 --temperature 0.3 --budget 900 --rounding fill --shards 2
plan --plan-from features.csv --temperature 0.2 --base-dim 8 --json
plan --plan-from counts.json --bands octaves --min-dim 0 --base-dim 8 --budget 200
show plan.json --plot widths.png
prepare table raw.csv
prepare table raw.csv --out rows --target y --categorical c --bag tags:| --dense x --where x>0
prepare table raw.csv --out again --vocabulary-of rows
prepare criteo day.txt --out clicks
prepare movielens u.data --out ratings
inspect rows --json
inspect ratings --plot popularity.svg
plan --plan-from rows --bands 2 --temperature 0.4 --base-dim 4
plan --plan-from rows --method cut --base-dim 4 --budget 100B
"""
REFUSED = """
show rows
download nothing
"""


def python(code, *arguments, folder):
    """Run code in a process of its own, and return what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


NO_TORCH = "\nassert 'torch' not in sys.modules\n"


def test_plans_and_data_need_no_torch(tmp_path):
    python(IMPORTS + NO_TORCH, folder=tmp_path)


def test_no_help_needs_torch_or_what_draws_or_reads_data(tmp_path):
    printed = python(HELP + NO_TORCH, folder=tmp_path)
    for command in ("train", "prepare movielens", "theory two-block", "bench-serving"):
        assert f"Usage: mixdim {command} " in printed


def test_commands_that_plan_and_prepare_need_no_torch(tmp_path):
    (tmp_path / "features.csv").write_text("feature,rows\nuser,60\nitem,37\n")
    (tmp_path / "counts.json").write_text(json.dumps({"item": [9, 9, 3, 3, 3, 1, 1, 1, 0]}))
    rows = [f"{i % 2},c{i % 7},a|t{i % 3},{i}" for i in range(60)]
    (tmp_path / "raw.csv").write_text("\n".join(["y,c,tags,x", *rows]) + "\n")
    days = ["\t".join([str(i % 2), *map(str, range(13)), *[f"{i % 5:08x}"] * 26]) for i in range(70)]
    (tmp_path / "day.txt").write_text("\n".join(days) + "\n")
    ratings = [f"{i % 6 + 1}\t{i // 6 + 1}\t{i % 5 + 1}\t{i}" for i in range(60)]
    (tmp_path / "u.data").write_text("\n".join(ratings) + "\n")
    codes = dict.fromkeys(COMMANDS.strip().splitlines(), 0)
    codes |= dict.fromkeys(REFUSED.strip().splitlines(), 2)
    python(RUN, json.dumps(codes), folder=tmp_path)
    assert {"plan.svg", "widths.png", "popularity.svg"} <= {path.name for path in tmp_path.iterdir()}


# Of a package: the modules that are names of it, beside the names that it has from its modules.
PACKAGES = {
    mixdim: {
        *("compression", "data", "distributed", "kernels", "lab", "layer", "models", "optim"),
        *("planning", "serving", "storages", "theory", "training"),
    },
    mixdim.distributed: set(),
    mixdim.training: set(),
}


@pytest.mark.parametrize("package", PACKAGES)
def test_dir_has_the_public_names_and_modules_and_each_is_there(package):
    dunders = {name for name in vars(package) if name.startswith("__")}
    public = {*package.__all__, *PACKAGES[package]}
    assert set(dir(package)) == public | dunders
    if package is not mixdim.distributed:  # which may lack TorchRec
        assert all(getattr(package, name) is vars(package)[name] for name in sorted(public))
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'nonsense'"):
        _ = package.nonsense


def test_rooms_are_the_modules_of_their_name():
    for name in PACKAGES[mixdim] - {"theory"}:
        assert getattr(mixdim, name) is importlib.import_module(f"mixdim.{name}")
    assert mixdim.theory is importlib.import_module("mixdim.lab.theory")
    assert mixdim.theory is importlib.import_module("mixdim.theory")


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_know_the_names_that_there_are_from_where_they_are(package):
    """Not with mypy itself, which needs a quarter of a minute to read torch."""
    tree = ast.parse(Path(package.__file__).read_text())
    (choice,) = (node for node in tree.body if isinstance(node, ast.If))
    assert choice.test.id == "TYPE_CHECKING"
    imported = {alias.name: (node.module, alias.asname) for node in choice.body for alias in node.names}
    (later,) = choice.orelse
    (names,) = (ast.literal_eval(told.value) for told in later.value.keywords if told.arg == "names")
    assert sorted(names) == package.__all__ == sorted(package.__all__)
    for name, module in names.items():
        assert imported.pop(name) == (f"{package.__name__}.{module}", None)
    # Modules are not in __all__: type checkers take them as public under `import x as x`.
    assert {name for name, (_, alias) in imported.items() if name == alias} == PACKAGES[package]
