import os
import pty
import socket
import stat
import threading
from pathlib import Path

import pytest

from mixdim._util import files
from mixdim._util.files import follow_links, make_folder, write_atomically, written_atomically


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


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
    with pytest.raises(OSError, match=r"No space left on device: .*plan\.json"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_has_the_permissions_of_any_new_file_and_an_old_one_keeps_its_own(tmp_path):
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "new", "x")
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "new") == 0o640
    (tmp_path / "new").chmod(0o600)
    write_atomically(tmp_path / "new", "y")
    assert mode_of(tmp_path / "new") == 0o600


def test_the_umask_of_the_process_is_never_touched(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "umask", None)  # another thread that makes a file meanwhile would see it
    write_atomically(tmp_path / "plan.json", "x")


def test_a_name_as_long_as_names_may_be_can_be_written(tmp_path):
    write_atomically(tmp_path / ("n" * 255), "x")
    assert [path.name for path in tmp_path.iterdir()] == ["n" * 255]


def test_impossible_places_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no directory"):
        write_atomically(tmp_path / "no" / "file", "x")
    with pytest.raises(IsADirectoryError, match="it is a directory"):
        write_atomically(tmp_path, "x")


def test_a_folder_that_cannot_be_written_is_told_by_the_name_of_the_file(tmp_path, monkeypatch):
    def read_only(path, *_):
        raise OSError(30, "Read-only file system", path)

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(OSError, match=r"Read-only file system: '[^']*/plan\.json'$"):
        write_atomically(tmp_path / "plan.json", "x")


# What is not a file


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path):
    (tmp_path / "far" / "away").mkdir(parents=True)
    target = tmp_path / "far" / "plan.json"
    target.write_text("old")
    (tmp_path / "far" / "away" / "relative").symlink_to("../plan.json")
    (tmp_path / "chain").symlink_to(tmp_path / "far" / "away" / "relative")
    write_atomically(tmp_path / "chain", "new")
    assert target.read_text() == "new"
    assert not target.is_symlink()
    assert (tmp_path / "chain").is_symlink()
    assert (tmp_path / "far" / "away" / "relative").is_symlink()
    assert sorted(path.name for path in (tmp_path / "far").iterdir()) == ["away", "plan.json"]


def test_a_link_to_nothing_yet_is_filled(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to("far/plan.json")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "far" / "plan.json").read_text() == "new"
    assert (tmp_path / "link").is_symlink()
    (tmp_path / "lost").symlink_to("nowhere/plan.json")
    with pytest.raises(FileNotFoundError, match=r"there is no directory .*nowhere"):
        write_atomically(tmp_path / "lost", "new")
    assert (tmp_path / "lost").is_symlink()


def test_a_loop_of_links_is_an_error(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for write in (lambda path: write_atomically(path, "x"), make_folder, follow_links):
        with pytest.raises(OSError, match=r"Too many levels of symbolic links: .*a"):
            write(tmp_path / "a")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("name", ["pipe", "link to the pipe"])
def test_a_pipe_is_written_to_and_stays(tmp_path, name):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link to the pipe").symlink_to("pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()), daemon=True)
    reader.start()
    write_atomically(tmp_path / name, b"x" * 100_000)
    reader.join(timeout=10)
    assert read == [b"x" * 100_000]
    assert (tmp_path / "pipe").is_fifo()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_pipe_whose_reader_leaves_is_named(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: pipe.open("rb").close(), daemon=True)
    reader.start()
    with pytest.raises(BrokenPipeError, match=r"Broken pipe: .*pipe"):
        write_atomically(pipe, b"x" * 1_000_000)
    reader.join(timeout=10)


def test_a_device_is_written_to_and_stays(tmp_path):
    ours, theirs = pty.openpty()
    (tmp_path / "link").symlink_to(os.ttyname(theirs))
    write_atomically(tmp_path / "link", "to the terminal")
    assert os.read(ours, 100) == b"to the terminal"
    assert Path(os.ttyname(theirs)).is_char_device()
    assert (tmp_path / "link").is_symlink()
    os.close(ours)
    os.close(theirs)


def test_a_socket_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the names of sockets must be short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        with pytest.raises(OSError, match="cannot write socket: it is neither a file nor a pipe"):
            write_atomically("socket", "x")
        assert Path("socket").is_socket()


def test_a_disk_is_refused(tmp_path, monkeypatch):
    """With a file that only looks like one: the test may run as root, on a machine with disks."""
    disk = tmp_path / "disk"
    disk.write_text("all that I have")
    monkeypatch.setattr(files.stat, "S_ISREG", lambda mode: False)
    with pytest.raises(OSError, match="neither a file nor a pipe"):
        write_atomically(disk, "x")
    assert disk.read_text() == "all that I have"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc, of Linux")
@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "a link"])
def test_standard_output_gets_it_in_the_order_of_what_is_printed(tmp_path, capfd, name):
    """In a file, as here, where /dev/stdout opened anew would begin at its start again."""
    if name == "a link":
        name = tmp_path / "link"
        name.symlink_to("/dev/stdout")
    print("before", flush=True)
    write_atomically(name, "written\n")
    print("after", flush=True)
    assert capfd.readouterr().out == "before\nwritten\nafter\n"


def test_a_closed_descriptor_is_an_error():
    with pytest.raises(OSError, match="Bad file descriptor: '/dev/fd/9999'"):
        write_atomically("/dev/fd/9999", "x")


def test_a_folder_is_made_where_a_link_leads(tmp_path):
    (tmp_path / "link").symlink_to("far/away")
    make_folder(tmp_path / "link")
    make_folder(tmp_path / "link")
    assert (tmp_path / "far" / "away").is_dir()
    assert (tmp_path / "link").is_symlink()
    (tmp_path / "file").write_text("kept")
    with pytest.raises(NotADirectoryError, match="file must be a folder, but is a file"):
        make_folder(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "kept"


class TestWrittenByOthers:
    def test_a_link_and_the_mode_of_what_was_there_stay(self, tmp_path):
        target, link = tmp_path / "model.onnx", tmp_path / "link"
        target.write_text("old")
        target.chmod(0o600)
        link.symlink_to(target)
        with written_atomically(link) as temporary:
            assert temporary.parent == tmp_path
            temporary.write_text("new")
            assert target.read_text() == "old"
        assert link.is_symlink()
        assert (target.read_text(), target.stat().st_mode & 0o777) == ("new", 0o600)
        assert {path.name for path in tmp_path.iterdir()} == {"link", "model.onnx"}

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
    def test_whatever_goes_wrong_nothing_is_left(self, tmp_path, error):
        def fails():
            with written_atomically(tmp_path / "x") as temporary:
                temporary.write_text("half")
                raise error

        with pytest.raises(error):
            fails()
        assert list(tmp_path.iterdir()) == []

    def test_errors_name_what_was_asked_for(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="there is no directory"):
            written_atomically(tmp_path / "nowhere" / "x").__enter__()
        with pytest.raises(OSError, match=r"it is not a file$"):
            written_atomically(tmp_path).__enter__()
        with pytest.raises(FileNotFoundError) as refused, written_atomically(tmp_path / "x"):
            pass  # nobody wrote anything
        assert refused.value.filename == str(tmp_path / "x")
