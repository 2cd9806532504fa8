import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from mixdim import kernels


def python(script, **environment):
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    return done.stdout.strip()


REPORT = "import mixdim.kernels as k; print(k.available(), k.reason())"


def test_the_kernels_of_this_installation_are_in_use():
    """`make test` installs them; without a compiler this fails, and says what to install."""
    assert kernels.available(), kernels.reason()
    assert "build, " in kernels.reason()


def test_the_environment_switches_them_off(monkeypatch):
    monkeypatch.setenv("MIXDIM_KERNELS", "off")
    assert not kernels.available()
    assert kernels.reason() == "switched off by MIXDIM_KERNELS"


def test_an_older_processor_gets_the_generic_build():
    script = "import torch; torch.backends.cpu.get_cpu_capability = lambda: 'DEFAULT'; " + REPORT
    assert python(script).startswith("True the generic build")


def test_the_generic_build_gives_the_same_results():
    """The kernels' own tests, in a process that uses the generic build."""
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
            *("-k", "not operator and not graph"),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MIXDIM_KERNELS": generic},
        cwd=tests.parent,
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_a_library_that_does_not_load_says_so_and_plain_pytorch_takes_over(tmp_path):
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"no library")
    answer = python(
        "import warnings; warnings.simplefilter('ignore'); " + REPORT, MIXDIM_KERNELS=str(broken)
    )
    assert answer.startswith("False the own build does not load")
    script = (
        "import mixdim, torch; plan = mixdim.plan([3], temperature=0, base_dim=2);"
        "print(tuple(mixdim.FeatureEmbeddings(plan)(torch.tensor([[1]])).shape))"
    )
    assert python(script, MIXDIM_KERNELS=str(broken)) == "(1, 1, 2)"


def test_a_word_that_means_nothing_is_said_and_changes_nothing():
    script = (
        "import warnings; caught = warnings.catch_warnings(record=True); seen = caught.__enter__();"
        "warnings.simplefilter('always');" + REPORT + "; print([str(w.message) for w in seen])"
    )
    first, second = python(script, MIXDIM_KERNELS="fast").splitlines()
    assert first.startswith("True the ")
    assert "MIXDIM_KERNELS must be on, off or the path of a library, got 'fast'" in second
    for word in ("", "on", "1"):
        assert python(REPORT, MIXDIM_KERNELS=word).startswith("True the ")


def test_a_build_of_another_version_is_refused(tmp_path):
    """Its structs have other members: to call it would be to read beyond them."""
    source = tmp_path / "old.c"
    source.write_text("long mixdim_interface(long unused) { return unused + 1; }")
    library = tmp_path / "old.so"
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    script = "import warnings; warnings.simplefilter('ignore'); " + REPORT
    answer = python(script, MIXDIM_KERNELS=str(library))
    assert answer.startswith("False the own build")
    assert "is of another version of mixdim: install it again" in answer


def test_without_a_compiled_library_there_is_a_reason():
    script = (
        "import importlib.util as u, warnings; real = u.find_spec;"
        "u.find_spec = lambda n, *a: None if n.startswith('_mixdim') else real(n, *a);"
        "caught = warnings.catch_warnings(record=True); seen = caught.__enter__();"
        "warnings.simplefilter('always');" + REPORT + "; print([str(w.message) for w in seen])"
    )
    first, second = python(script).splitlines()
    assert first.startswith("False mixdim was installed without a C++ compiler")
    assert second.count("mixdim runs on plain PyTorch") == 1
