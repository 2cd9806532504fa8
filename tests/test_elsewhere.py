"""mixdim on machines that lack something, each in a process of its own."""

import subprocess
import sys

import mixdim

LACKING = ("resource", "fcntl", "pwd", "grp", "termios")  # what only Unix has, or not all of it


def test_it_imports_and_plans_without_the_modules_of_unix():
    program = f"""
import sys
sys.modules.update(dict.fromkeys({LACKING}))
import mixdim
from mixdim.cli.main import run
assert run(["plan", "--cardinalities", "5,6", "--temperature", "0", "--base-dim", "2"]) == 0
assert run(["--help"]) == 0
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(mixdim.plan([5, 6], temperature=0, base_dim=2)))
    assert "Usage: mixdim" in done.stdout
    assert done.stderr == ""
