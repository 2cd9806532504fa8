import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from small_folder import write_small_folder

from mixdim._util.signals import Terminated
from mixdim.cli.main import run
from mixdim.data.folder import read_meta
from mixdim.data.folder_writer import FolderWriter
from mixdim.lab.synthetic import generate

pytestmark = pytest.mark.usefixtures("usual_signals")


def test_an_unfinished_folder_never_appears(tmp_path):
    with FolderWriter(tmp_path / "data") as writer:
        writer.array("ids.npy", (10, 2), np.int32)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_names_the_folder_that_it_was_for(tmp_path):
    full = OSError(28, "No space left on device")
    message = f"cannot write {tmp_path / 'data'}: No space left on device"
    with pytest.raises(OSError, match=message), FolderWriter(tmp_path / "data"):
        raise full
    assert list(tmp_path.iterdir()) == []


def test_a_run_killed_just_before_the_end_leaves_nothing_that_opens(tmp_path, monkeypatch):
    """Killed between the last file and the rename: all is written, but not under its name."""
    kept = tmp_path / "kept"
    monkeypatch.setattr(Path, "rename", lambda path, _: shutil.copytree(path, kept / path.name))
    write_small_folder(tmp_path / "data")
    (left,) = kept.iterdir()
    assert (left / "meta.json").is_file()
    with pytest.raises(ValueError, match="what an interrupted run left"):
        read_meta(left)


def test_an_existing_folder_is_replaced_only_when_asked(tmp_path):
    folder = write_small_folder(tmp_path / "data", seed=0)
    before = (folder / "ids.npy").read_bytes()
    with pytest.raises(FileExistsError, match="exists already; --overwrite replaces it"):
        write_small_folder(folder, seed=1)
    assert (folder / "ids.npy").read_bytes() == before
    write_small_folder(folder, seed=1, overwrite=True)
    assert (folder / "ids.npy").read_bytes() != before
    assert list(tmp_path.iterdir()) == [folder]


def test_a_folder_of_something_else_is_never_replaced(tmp_path):
    (tmp_path / "photos").mkdir()
    with pytest.raises(FileExistsError, match="is no prepared folder"):
        write_small_folder(tmp_path / "photos", overwrite=True)
    with pytest.raises(FileNotFoundError, match="there is no directory"):
        write_small_folder(tmp_path / "nowhere" / "data")


def test_a_folder_made_meanwhile_is_not_replaced_unasked(tmp_path):
    writer = FolderWriter(tmp_path / "data")
    other = write_small_folder(tmp_path / "data", seed=1)
    before = (other / "ids.npy").read_bytes()
    with pytest.raises(FileExistsError, match="was made by somebody else meanwhile"), writer:
        writer.finish(read_meta(other))
    assert (other / "ids.npy").read_bytes() == before
    assert list(tmp_path.iterdir()) == [other]


def test_through_a_link_the_folder_that_it_names_is_replaced(tmp_path):
    (tmp_path / "disk").mkdir()
    target = write_small_folder(tmp_path / "disk" / "data", seed=0)
    before = (target / "ids.npy").read_bytes()
    (tmp_path / "link").symlink_to(target)
    write_small_folder(tmp_path / "link", seed=1, overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert (target / "ids.npy").read_bytes() != before
    assert list((tmp_path / "disk").iterdir()) == [target]


def test_the_folder_has_the_permissions_of_any_new_folder(tmp_path):
    before = os.umask(0o027)
    try:
        write_small_folder(tmp_path / "data")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o750


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize(
    ("number", "error"),
    [(signal.SIGTERM, Terminated), (signal.SIGHUP, Terminated), (signal.SIGINT, KeyboardInterrupt)],
)
def test_a_signal_leaves_nothing_behind(tmp_path, number, error, existing):
    out = tmp_path / "data"
    old = read_meta(write_small_folder(out)) if existing else None
    handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)]
    with pytest.raises(error), FolderWriter(out, overwrite=True):
        signal.raise_signal(number)
    assert list(tmp_path.iterdir()) == ([out] if existing else [])
    assert not existing or read_meta(out) == old
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)] == handlers


def test_a_signal_between_two_renames_brings_the_old_folder_back(tmp_path, monkeypatch):
    out = write_small_folder(tmp_path / "data", seed=0)
    before, rename = (out / "ids.npy").read_bytes(), Path.rename

    def interrupted(path, target):
        rename(path, target)
        if path == out:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(Terminated):
        write_small_folder(out, seed=1, overwrite=True)
    assert (out / "ids.npy").read_bytes() == before
    assert list(tmp_path.iterdir()) == [out]


def left_by_a_kill(tmp_path, *, while_replacing=False):
    """The folder `data`, and what a killed writer left beside it."""
    out = write_small_folder(tmp_path / "data")
    left = tmp_path / ".data.partial-0123"
    shutil.copytree(out, left)
    if while_replacing:
        out.rename(tmp_path / ".data.partial-0123-old")
    return out, left


def test_what_a_kill_left_is_cleared_away_by_the_next_writer(tmp_path):
    out, left = left_by_a_kill(tmp_path)
    (tmp_path / ".data2.partial-77").mkdir()
    write_small_folder(out, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".data2.partial-77", "data"]
    assert not left.exists()


def test_a_folder_whose_replacement_was_killed_comes_back(tmp_path):
    out, _ = left_by_a_kill(tmp_path, while_replacing=True)
    assert not out.exists()
    with pytest.raises(FileExistsError, match="exists already"):
        FolderWriter(out)
    assert read_meta(out).num_rows == 100
    assert list(tmp_path.iterdir()) == [out]
    shutil.copytree(out, tmp_path / ".data.partial-0123")
    out.rename(tmp_path / ".data.partial-0123-old")
    assert read_meta(out).num_rows == 100  # who only reads it removes nothing
    assert sorted(tmp_path.iterdir()) == [tmp_path / ".data.partial-0123", out]
    write_small_folder(out, overwrite=True)
    assert list(tmp_path.iterdir()) == [out]


def test_what_a_living_writer_is_at_work_on_stays(tmp_path):
    with FolderWriter(tmp_path / "data") as first, FolderWriter(tmp_path / "data") as second:
        assert first.path.is_dir()
        assert second.path.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_without_locks_nothing_is_taken_for_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("mixdim._util.locks.fcntl", None)
    out, left = left_by_a_kill(tmp_path)
    write_small_folder(out, overwrite=True)
    assert sorted(tmp_path.iterdir()) == [left, out]


def test_outside_of_the_main_thread_a_folder_is_written_and_signals_left_alone(tmp_path):
    thread = threading.Thread(target=write_small_folder, args=(tmp_path / "data",))
    thread.start()
    thread.join()
    assert read_meta(tmp_path / "data").num_rows == 100


def test_a_handler_of_the_users_own_stays(tmp_path):
    seen = []
    signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    with FolderWriter(tmp_path / "data"):
        signal.raise_signal(signal.SIGTERM)
    assert seen == [signal.SIGTERM]


def test_the_command_line_says_one_line_and_the_code_of_the_signal(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(generate, "_count", lambda *_: signal.raise_signal(signal.SIGTERM))
    out = tmp_path / "made"
    assert run(["generate", "criteo-like", "--rows", "100", "--out", str(out)]) == 143
    assert capsys.readouterr().err == "mixdim: stopped by SIGTERM\n"
    assert list(tmp_path.iterdir()) == []


GENERATE = """
import sys
from mixdim.lab.synthetic.generate import generate_criteo_like
generate_criteo_like(sys.argv[1], rows=10**7, progress=lambda *_: print("busy", flush=True))
"""


def test_a_process_that_is_terminated_clears_away_what_it_had_begun(tmp_path):
    command = [sys.executable, "-c", GENERATE, str(tmp_path / "made")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "busy\n"
        assert len(list(tmp_path.iterdir())) == 1
        child.terminate()
        child.stdout.read()
    assert child.returncode == 143
    assert list(tmp_path.iterdir()) == []
