"""What CI does before it checks and tests, with programs that only note that they were called."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RUN = ROOT / ".ci" / "run"


@pytest.fixture
def ci(tmp_path):
    """Run CI where there are only these programs, given as scripts; returns what it and they said."""

    def call(**programs):
        for name in ("bash", "dirname", "timeout", "cp", "chmod"):
            (tmp_path / name).symlink_to(shutil.which(name))
        for name, script in {"make": "echo make $1", "id": "echo 0", **programs}.items():
            (tmp_path / name.replace("_", "-")).write_text(f"#!{shutil.which('bash')}\n{script}\n")
            (tmp_path / name.replace("_", "-")).chmod(0o755)
        environment = {**os.environ, "PATH": str(tmp_path)}
        done = subprocess.run([RUN], env=environment, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    return call


CHECKED = ["make check", "make test"]
SKIPPED = "no chromium, and none can be installed: the browser tests of the report are skipped"


def test_a_chromium_that_is_there_is_taken(ci):
    assert ci(chromium="", apt_get="exit 99") == CHECKED


def test_a_missing_chromium_is_installed(ci, tmp_path):
    install = f"case $2 in install) cp {tmp_path}/make {tmp_path}/chromium;; esac"
    assert ci(apt_get=install) == CHECKED
    assert (tmp_path / "chromium").exists()


@pytest.mark.parametrize(
    "programs", [{"apt_get": "exit 100"}, {}, {"id": "echo 1000", "apt_get": "exit 1"}]
)
def test_no_chromium_is_said_and_stops_nothing(ci, programs):
    assert ci(**programs) == [SKIPPED, *CHECKED]


@pytest.mark.parametrize("failing", CHECKED)
def test_ci_fails_where_make_does(ci, failing):
    """`make test` also fails if pytest finds no tests: its code is 5 then."""
    with pytest.raises(subprocess.CalledProcessError) as failed:
        ci(chromium="", make=f'echo "make $1"; test "make $1" != "{failing}"')
    assert failed.value.stdout.splitlines()[-1] == failing


def test_every_path_that_the_makefile_names_is_there():
    named = re.findall(r"\b(?:tests|tools|benchmarks)/[\w/]+(?:\.py)?", (ROOT / "Makefile").read_text())
    assert len(named) > 5
    assert [path for path in named if not (ROOT / path).exists()] == []
