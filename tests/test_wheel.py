"""The wheel that users install: with the compiled kernels, or without a compiler but with a warning."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from mixdim.runs.report.page import SCRIPTS

ROOT = Path(__file__).parent.parent


def build(directory, **environment):
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = directory.glob("*.whl")
    return wheel, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Compiled without optimisation, in a third of the time; the installed kernels have it."""
    folder = tmp_path_factory.mktemp("wheel")
    compiler = folder / "compiler"
    compiler.write_text('#!/bin/sh\nexec "${REAL_CXX:-g++}" "$@" -O0\n')
    compiler.chmod(0o755)
    real = {"REAL_CXX": os.environ["CXX"]} if os.environ.get("CXX") else {}
    return build(folder, CXX=str(compiler), **real)[0]


def test_the_wheel_is_for_this_platform_and_has_the_kernels_once(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in names if name.endswith(".so")] == ["_mixdim_avx2.so", "_mixdim_generic.so"]
    assert "none-any" not in wheel.name
    assert "mixdim/kernels/native.cpp" in names
    parts = ("page.css", "page.html", *SCRIPTS)
    assert {f"mixdim/runs/report/{part}" for part in parts} <= {*names}
    assert not list(ROOT.glob("src/**/*.so"))


def test_an_installed_wheel_uses_its_kernels(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import mixdim;"
        "print(mixdim.__file__, mixdim.kernels.available(), mixdim.kernels.reason())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    place, available, reason = done.stdout.split(maxsplit=2)
    assert place.startswith(str(tmp_path))
    assert available == "True"
    assert str(tmp_path) in reason


def test_without_a_compiler_there_is_a_wheel_and_one_clear_warning(tmp_path):
    wheel, printed = build(tmp_path, PATH="/nowhere", CXX="")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    assert wheel.name.endswith("py3-none-any.whl")
    assert " ".join(printed.split()).count("no C++ compiler was found") == 1


def test_a_compiler_that_fails_is_as_good_as_none(tmp_path):
    wheel, printed = build(tmp_path, CXX="/bin/false")
    assert wheel.name.endswith("py3-none-any.whl")
    assert "no C++ compiler" in " ".join(printed.split())
