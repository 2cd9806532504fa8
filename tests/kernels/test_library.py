import importlib.util
import os
import subprocess
import sys
import warnings
from pathlib import Path

import torch

from mixdim import kernels
from mixdim.kernels import library
from strategies import FEWER_EXAMPLES


def imported_anew():
    """Import library.py once more, as a process with this environment would; also its warnings."""
    spec = importlib.util.spec_from_file_location("library_anew", library.__file__)
    module = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        spec.loader.exec_module(module)
    return module.LOADED, [str(warning.message) for warning in seen]


def test_the_kernels_of_this_installation_are_in_use():
    """`make test` installs them; without a compiler this fails, and says what to install."""
    assert kernels.available(), kernels.reason()
    assert "build, " in kernels.reason()


def test_the_environment_switches_them_off(monkeypatch):
    monkeypatch.setenv("MIXDIM_KERNELS", "off")
    assert not kernels.available()
    assert kernels.reason() == "switched off by MIXDIM_KERNELS"


def test_an_older_processor_gets_the_generic_build(monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    found, said = imported_anew()
    assert found.library is not None
    assert found.reason.startswith("the generic build, ")
    assert said == []


def test_the_generic_build_gives_the_same_results():
    """The kernels' own tests, in a process that uses the generic build, with fewer random examples."""
    generic = importlib.util.find_spec("_mixdim_generic").origin
    tests = Path(__file__).parent.parent
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider"),
            *(
                str(tests / name)
                for name in (
                    "layer/test_scores.py",
                    "layer/test_interaction.py",
                    "kernels/test_lookup.py",
                    "kernels/test_lifted.py",
                    "kernels/test_split.py",
                )
            ),
            *("-k", "not operator and not graph and not finite_differences and not memory"),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MIXDIM_KERNELS": generic, FEWER_EXAMPLES: "4"},
        cwd=tests.parent,
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_a_library_that_does_not_load_says_so_and_plain_pytorch_takes_over(tmp_path):
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"no library")
    script = (
        "import warnings; warnings.simplefilter('ignore'); import mixdim, torch;"
        "print(mixdim.kernels.available(), mixdim.kernels.reason());"
        "plan = mixdim.plan([3], temperature=0, base_dim=2);"
        "print(tuple(mixdim.FeatureEmbeddings(plan)(torch.tensor([[1]])).shape))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "MIXDIM_KERNELS": str(broken)},
    )
    answer, shape = done.stdout.splitlines()
    assert answer.startswith("False the own build does not load")
    assert shape == "(1, 1, 2)"


def test_a_word_that_means_nothing_is_said_and_changes_nothing(monkeypatch):
    monkeypatch.setenv("MIXDIM_KERNELS", "fast")
    found, said = imported_anew()
    assert found.reason == kernels.LOADED.reason
    assert len(said) == 1
    assert "MIXDIM_KERNELS must be on, off or the path of a library, got 'fast'" in said[0]
    for word in ("", "on", "1"):
        monkeypatch.setenv("MIXDIM_KERNELS", word)
        found, said = imported_anew()
        assert found.reason == kernels.LOADED.reason
        assert said == []


def test_a_build_of_another_version_is_refused(tmp_path, monkeypatch):
    """Its structs have other members: to call it would be to read beyond them."""
    source = tmp_path / "old.c"
    source.write_text("long mixdim_interface(long unused) { return unused + 1; }")
    old = tmp_path / "old.so"
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(old)], check=True)
    monkeypatch.setenv("MIXDIM_KERNELS", str(old))
    found, said = imported_anew()
    assert found.library is None
    assert found.reason.startswith("the own build")
    assert "is of another version of mixdim: install it again" in found.reason
    assert len(said) == 1


def test_without_a_compiled_library_there_is_a_reason(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name.startswith("_mixdim") else real(name, *more),
    )
    found, said = imported_anew()
    assert found.library is None
    assert found.reason.startswith("mixdim was installed without a C++ compiler")
    assert [line.count("mixdim runs on plain PyTorch") for line in said] == [1]
