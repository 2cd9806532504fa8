import io
import os
import sys
from pathlib import Path

import pytest

from mixdim.cli.main import run
from mixdim.cli.streams import outliving

FULL = Path("/dev/full")


@pytest.fixture(params=["buffered", "python -u"])
def print_to(monkeypatch, request):
    """A call that makes a descriptor the standard output, as it is in a command."""
    buffering = -1 if request.param == "buffered" else 0
    streams = []

    def use(descriptor):
        streams.append(io.TextIOWrapper(os.fdopen(descriptor, "wb", buffering), "utf-8"))
        monkeypatch.setattr(sys, "stdout", outliving(streams[-1], "standard output"))

    yield use
    for stream in streams:
        stream.close()


@pytest.mark.parametrize("command", ["--help", "doctor", "version"])
def test_commands_end_well_when_nobody_reads_their_output(print_to, capsys, command):
    ours, theirs = os.pipe()
    print_to(theirs)
    os.close(ours)
    assert run([command]) == 0
    sys.stdout.flush()  # as Python does when it ends
    assert capsys.readouterr().err == ""


def test_what_was_printed_before_the_reader_left_arrived(print_to):
    ours, theirs = os.pipe()
    print_to(theirs)
    assert run(["version"]) == 0
    assert os.read(ours, 100) == b"0.1.0\n"
    os.close(ours)


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full, of Linux")
@pytest.mark.parametrize("command", ["--help", "version"])
def test_a_full_disk_under_standard_output_is_said_once(print_to, capsys, command):
    print_to(os.open(FULL, os.O_WRONLY))
    assert run([command]) == 2
    sys.stdout.flush()
    assert capsys.readouterr().err == "mixdim: standard output: No space left on device\n"


def test_characters_that_cannot_be_shown_are_escaped(print_to):
    ours, theirs = os.pipe()
    print_to(theirs)
    print("\udcff.json", flush=True)  # a file name that is not UTF-8
    assert os.read(ours, 100) == b"\\udcff.json\n"
    os.close(ours)
