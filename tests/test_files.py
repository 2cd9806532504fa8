import os
import stat

import pytest

from mixdim.files import write_atomically


def test_text_and_bytes_replace_the_old_file(tmp_path):
    path = tmp_path / "plan.json"
    write_atomically(path, "old")
    write_atomically(path, b"new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_keeps_the_old_file_and_leaves_nothing_behind(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    write_atomically(path, "old")

    def no_space(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_has_the_permissions_of_any_new_file(tmp_path):
    (tmp_path / "plain").touch()
    write_atomically(tmp_path / "atomic", "x")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "atomic")]
    assert modes[0] == modes[1]


def test_impossible_places_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no directory"):
        write_atomically(tmp_path / "no" / "file", "x")
    with pytest.raises(IsADirectoryError, match="it is a directory"):
        write_atomically(tmp_path, "x")
