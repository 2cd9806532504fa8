"""How commands end, tried with a `doctor` who finds something wrong, and what warnings look like."""

import json
import os
import pty
import signal
import sys
import time
import warnings

import pytest

import mixdim
from mixdim._util.arguments import WrongTypeError
from mixdim.cli.main import run
from mixdim.runs.progress import progress_bars

pytestmark = pytest.mark.usefixtures("usual_signals")


@pytest.fixture
def doctor(capsys, monkeypatch):
    """Call `mixdim doctor` with a function that it runs first; returns its exit code and outputs."""

    def call(before, *options):
        monkeypatch.setattr("mixdim.kernels.available", before)
        code = run([*options, "doctor"])
        return code, *capsys.readouterr()

    return call


def raising(error):
    def fail():
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ValueError("bands must be\n at least 1"), 2, "bands must be at least 1"),
        (
            WrongTypeError("bands must be a whole number, got 1.5"),
            2,
            "bands must be a whole number, got 1.5",
        ),
        (mixdim.UnknownFeatureError("unknown feature 'shop'"), 2, "unknown feature 'shop'"),
        (FileNotFoundError(2, "No such file", "runs.jsonl"), 2, "runs.jsonl: No such file"),
        (OSError("cannot read it"), 2, "cannot read it"),
        (BrokenPipeError(32, "Broken pipe", "a.fifo"), 2, "a.fifo: Broken pipe"),
        (
            ModuleNotFoundError("", name="polars"),
            2,
            "this command needs polars: pip install 'mixdim[all]'",
        ),
        (FloatingPointError("the loss is nan"), 1, "the loss is nan"),
        (MemoryError("Unable to allocate 9 TiB"), 1, "not enough memory: Unable to allocate 9 TiB"),
        (MemoryError(), 1, "not enough memory"),
        (
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you "
                "tried to allocate 52000000000000 bytes. Error code 12 (Cannot allocate memory)"
            ),
            1,
            "not enough memory for 52000000000000 bytes",
        ),
        (KeyboardInterrupt(), 130, "stopped"),
        (KeyboardInterrupt("stopped by SIGINT after step 3"), 130, "stopped by SIGINT after step 3"),
    ],
)
def test_an_expected_error_is_one_line(doctor, error, code, line):
    assert doctor(raising(error)) == (code, "", f"mixdim: {line}\n")
    again, printed, told = doctor(raising(error), "--debug")
    assert (again, printed) == (code, "")
    assert told.startswith("Traceback (most recent call last):")
    assert told.endswith(f"{line}\n")


@pytest.mark.parametrize(
    "error",
    [
        TypeError("'NoneType' object is not iterable"),
        KeyError("bands"),
        IndexError("list index out of range"),
        AttributeError("no attribute"),
        AssertionError(),
        RuntimeError("shape '[3]' is invalid"),
        NotImplementedError(),
        ZeroDivisionError("division by zero"),
        ModuleNotFoundError("No module named 'mixdim.nothing'", name="mixdim.nothing"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_bug_does_not_look_like_a_mistake_of_the_user(doctor, error):
    code, printed, told = doctor(raising(error))
    assert (code, printed) == (70, "")
    assert told.startswith(f"mixdim: this is a bug in mixdim: {type(error).__name__}: {error}")
    assert told.endswith("please report it with all that this prints: mixdim --debug doctor\n")
    assert told.count("\n") == 1
    code, _, told = doctor(raising(error), "--debug")
    assert code == 70
    assert told.startswith("Traceback (most recent call last):")
    assert "in doctor" in told


def test_an_error_that_an_import_made_of_ctrl_c_is_ctrl_c(doctor):
    def import_extension_module():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("numpy.core.multiarray failed to import") from None

    before = signal.getsignal(signal.SIGINT)
    assert doctor(import_extension_module) == (130, "", "mixdim: stopped\n")
    assert signal.getsignal(signal.SIGINT) is before


def test_warnings_are_plain_lines(capsys, tmp_path):
    features = tmp_path / "features.json"
    features.write_text(json.dumps({"mixdim[all]": 3, "[/x]": 5000}))
    options = ("--plan-from", str(features), "--temperature", "0.9", "--base-dim", "8")
    assert run(["plan", *options]) == 0
    printed = capsys.readouterr()
    assert "mixdim[all]" in printed.out
    assert printed.err.startswith("warning: 100% of the rows sit at width 1")
    assert printed.err.count("\n") == 1


def test_a_warning_is_printed_at_once_and_once(doctor, capsys):
    seen = []

    def warn():
        for message in ("pip install mixdim[all]", "feature [/x]\nis odd", "pip install mixdim[all]"):
            warnings.warn(message, stacklevel=1)
            seen.append(capsys.readouterr().err)
        return True

    assert doctor(warn)[0] == 0
    assert seen == ["warning: pip install mixdim[all]\n", "warning: feature [/x] is odd\n", ""]


def read_until(terminal, *words):
    """All that is on a terminal once these words are; what is written comes there a little later."""
    shown, end = "", time.monotonic() + 20
    while not all(word in shown for word in words) and time.monotonic() < end:
        try:
            shown += os.read(terminal, 1 << 16).decode()
        except BlockingIOError:
            time.sleep(0.005)
    return shown


def test_a_warning_beside_a_progress_bar_can_be_read(doctor, monkeypatch):
    def warn_while_a_bar_is_shown():
        with progress_bars() as progress:
            progress("column [/x]", 1, 2, "note [/y]")
            warnings.warn("pip install mixdim[all]", stacklevel=1)
        return True

    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with os.fdopen(theirs, "w") as screen:
        monkeypatch.setattr(sys, "stderr", screen)
        assert doctor(warn_while_a_bar_is_shown)[0] == 0
        shown = read_until(ours, "note [/y]", "warning", "\x1b[?25h")  # the last shows the cursor again
    os.close(ours)
    assert "\r\x1b[2Kwarning: pip install mixdim[all]\r\n" in shown  # the bar goes, and comes below
    assert "column [/x]" in shown.rpartition("warning:")[2]
    assert "note [/y]" in shown
