import errno
import os
import runpy
import signal
import sys
import time
from multiprocessing import get_context
from pathlib import Path

import pytest

from mixdim._util import locks
from mixdim.runs.sweeps.run_locks import RunLocks


@pytest.fixture
def file(tmp_path):
    return tmp_path / "records.jsonl"


def in_a_fork(work, *arguments):
    process = get_context("fork").Process(target=work, args=arguments)
    process.start()
    return process


def test_a_run_has_one_holder_until_it_is_released(file):
    with RunLocks(file) as mine, RunLocks(file) as theirs:
        assert mine.take("a")
        assert not theirs.take("a")
        assert not mine.take("a")
        assert theirs.take("b")
        mine.release("a")
        assert theirs.take("a")
    assert list(file.parent.iterdir()) == []


def test_all_names_of_a_file_mean_the_same_locks(file, monkeypatch):
    file.touch()
    link = file.parent / "link"
    link.mkdir()
    (link / "other.jsonl").symlink_to(file)
    monkeypatch.chdir(link)
    with RunLocks(file) as mine:
        assert mine.take("a")
        for other in (link / "other.jsonl", Path("other.jsonl"), link / ".." / file.name):
            assert not RunLocks(other).take("a")


def hold(file, taken):
    locks = RunLocks(file)
    taken.put(locks.take("a"))
    time.sleep(60)


def test_the_death_of_the_holder_releases_its_run_and_its_file_is_removed(file):
    taken = get_context("fork").SimpleQueue()
    holder = in_a_fork(hold, file, taken)
    assert taken.get()
    with RunLocks(file) as locks:
        assert not locks.take("a")
    assert locks.folder.is_dir()  # leaving removes nothing that somebody holds
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    assert list(locks.folder.iterdir()) != []
    with RunLocks(file) as locks:
        assert locks.take("a")
    with RunLocks(file):
        pass
    assert not locks.folder.exists()


def count_up(file, times):
    """Add to a number in a file; whoever is interrupted by another loses what the other added."""
    for _ in range(times):
        with RunLocks(file) as locks:  # each time, so that the folder comes and goes as well
            while not locks.take("a"):
                pass
            number = int(file.read_text())
            time.sleep(0)
            file.write_text(str(number + 1))


def test_no_two_processes_ever_hold_a_run_however_often_it_changes_hands(file):
    file.write_text("0")
    processes = [in_a_fork(count_up, file, 50) for _ in range(4)]
    for process in processes:
        process.join()
    assert file.read_text() == "200"
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named_with_the_reason(file, monkeypatch, error):
    def fail(*_):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(locks.fcntl, "flock", fail)
    with pytest.raises(OSError, match=f"must be locked.*{os.strerror(error)}.*records.jsonl.locks/a"):
        RunLocks(file).take("a")


def test_without_fcntl_the_module_is_imported_and_says_so_when_it_is_used(file, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    there = runpy.run_path(locks.__file__)
    with pytest.raises(OSError, match="this system has no fcntl"):
        there["lock_now"](file, os.O_RDWR | os.O_CREAT)
    with file.open("wb") as opened, pytest.raises(OSError, match="this system has no fcntl"):
        there["wait_for_lock"](opened)
