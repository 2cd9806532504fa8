import os
import subprocess
import sys

import torch

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


def test_a_library_that_does_not_load_says_so_and_plain_pytorch_takes_over(tmp_path):
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"no library")
    answer = python(REPORT, MIXDIM_KERNELS=str(broken))
    assert answer.startswith("False the own build does not load")
    script = (
        "import mixdim, torch; plan = mixdim.plan([3], temperature=0, base_dim=2);"
        "print(tuple(mixdim.FeatureEmbeddings(plan)(torch.tensor([[1]])).shape))"
    )
    assert python(script, MIXDIM_KERNELS=str(broken)) == "(1, 1, 2)"


def test_without_a_compiled_library_there_is_a_reason():
    script = (
        "import importlib.util as u; real = u.find_spec;"
        "u.find_spec = lambda n, *a: None if n.startswith('_mixdim') else real(n, *a);" + REPORT
    )
    assert python(script).startswith("False mixdim was installed without a C++ compiler")


def test_threads_follow_pytorch():
    assert torch.get_num_threads() >= 1
