"""How a command ends: an exit code and, when something is wrong, one line. Knows no command."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import typer

from mixdim._util.signals import Terminated
from mixdim._util.startup import INTERRUPTED, show_warning, stop_at_once

TERMINATED = 143  # by SIGTERM, as INTERRUPTED by SIGINT
FAILED, WRONG_INPUT, BUG = 1, 2, 70  # 70 is what sysexits.h calls an internal software error
EXTRAS = {
    **dict.fromkeys(("matplotlib", "polars", "rich", "scipy", "tensorboard", "tomli_w", "typer"), "all"),
    **dict.fromkeys(("onnx", "onnxruntime", "onnxscript"), "serve"),
}


def end_with(error: BaseException, arguments: Sequence[str], *, debug: bool) -> int:
    """Say on standard error what went wrong, with `debug` also where, and return the exit code."""
    line, code = _told(error)
    if code == BUG:
        again = shlex.join(["mixdim", "--debug", *arguments])
        line += "" if debug else f"; please report it with all that this prints: {again}"
    if debug:
        traceback.print_exception(error)
    sys.stderr.write(f"mixdim: {' '.join(line.split())}\n")  # in one piece: other ranks write too
    return code


def stopped_by(signal_name: str, line: str) -> typer.Exit:
    """Say on standard error what stopped a command; returns what ends it with the code of the signal."""
    typer.echo(line, err=True)
    return typer.Exit(TERMINATED if signal_name == "SIGTERM" else INTERRUPTED)


def _told(error: BaseException) -> tuple[str, int]:
    """A sentence about an error, and its exit code. What is not expected here is a bug.

    What a user gives is checked where it is used: this raises ValueError, and `WrongTypeError` is one
    too. A TypeError, KeyError, IndexError, ... came from a line that was not meant to fail.
    """
    match error:
        case KeyboardInterrupt() | typer.Abort():
            return str(error) or "stopped", INTERRUPTED
        case Terminated():
            return f"stopped by {error.signal_name}", int(error.code or 0)
        case typer.TyperException():
            return error.format_message(), WRONG_INPUT
        case ModuleNotFoundError() if str(error.name).partition(".")[0] in EXTRAS:
            extra = EXTRAS[str(error.name).partition(".")[0]]
            return f"this command needs {error.name}: pip install 'mixdim[{extra}]'", WRONG_INPUT
        case ModuleNotFoundError() if "mixdim.distributed needs" in str(error):
            return str(error), WRONG_INPUT
        case OSError():
            place = f"{error.filename}: " if error.filename else ""
            return f"{place}{error.strerror}" if error.strerror else str(error), WRONG_INPUT
        case ValueError():
            return str(error), WRONG_INPUT
        case FloatingPointError():
            return str(error), FAILED
        case RuntimeError() if "can't allocate memory" in str(error):  # of torch
            wanted = str(error).partition("tried to allocate ")[2].partition(".")[0]
            return f"not enough memory for {wanted or 'a tensor'}", FAILED
        case MemoryError():
            return f"not enough memory: {error}".removesuffix(": "), FAILED
    return f"this is a bug in mixdim: {type(error).__name__}: {error}", BUG


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """While it is entered, a warning is a plain line on standard error, at once and only once."""
    shown = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        if str(message) not in shown:
            shown.add(str(message))
            show_warning(message)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        yield


def _is_import_of_command(frame: FrameType | None) -> bool:
    """Whether this frame is part of an import by a command itself, with nothing to clean up yet."""
    importer = None
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            importer = frame.f_back
        frame = frame.f_back
    return importer is not None and importer.f_globals["__name__"].startswith(("mixdim.cli.", "typer."))


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """While it is entered, Ctrl-C raises KeyboardInterrupt; yields what tells whether it did.

    The exception alone does not tell: an extension module may make another of it. While a command
    imports what it needs, Ctrl-C ends the process at once, as it does before: torch might abort.
    """
    times = 0

    def interrupt(_: int, frame: FrameType | None) -> None:
        nonlocal times
        if _is_import_of_command(frame):
            stop_at_once()
        times += 1
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    is_ours = callable(before) and threading.current_thread() is threading.main_thread()
    if is_ours:  # not if a shell has it ignored
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield lambda: times > 0
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, before)
