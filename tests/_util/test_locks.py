import subprocess
import sys

import pytest

from mixdim._util import locks
from mixdim._util.locks import alone_at_work, at_work

HOLD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from locks import alone_at_work
with alone_at_work(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lock_is_held_once_and_free_again_afterwards(tmp_path):
    with at_work(tmp_path) as first, at_work(tmp_path) as second:
        assert (first, second) == (True, False)
    with at_work(tmp_path) as again:
        assert again
    assert list(tmp_path.iterdir()) == []


def test_a_killed_process_holds_no_lock(tmp_path):
    room = locks.__file__.rpartition("/")[0]
    command = [sys.executable, "-c", HOLD, str(tmp_path), room]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "held\n"
        with pytest.raises(OSError, match=f"another process is at work in {tmp_path}"):
            alone_at_work(tmp_path).__enter__()
        child.kill()
    with at_work(tmp_path) as free:
        assert free


def test_where_there_are_no_locks_work_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "fcntl", None)
    with at_work(tmp_path) as known, alone_at_work(tmp_path):
        assert known is None
