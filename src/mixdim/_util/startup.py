"""What a process that was started as a command settles first. Knows no command.

The package imports this before anything else, since a command may import torch, which takes seconds and
reads the environment. It imports little itself: until it is through, Ctrl-C is a traceback. In a process
that only uses the library it changes nothing.
"""

import os
import signal
import sys
import warnings

SPINS = "1000"  # of GOMP_SPINCOUNT: about ten microseconds
INTERRUPTED = 130  # the exit code of a command that Ctrl-C ended


def started_as_command() -> bool:
    """Whether this process is `mixdim` or `python -m mixdim`, and not a worker of one."""
    program = (getattr(sys, "argv", None) or [""])[0]
    if program == "-m":  # what Python puts there until it has found the module
        return "mixdim" in sys.orig_argv
    name = program.replace("\\", "/").rpartition("/")[2]
    return name in ("mixdim", "mixdim.exe") and program in sys.orig_argv


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning as one plain line; takes what `warnings.showwarning` takes."""
    print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)


def stop_at_once(*_: object) -> None:
    """Handle Ctrl-C in an import: end the process, with one line.

    Not by an exception: what is being imported might catch it, make another one of it, or abort.
    """
    os.write(2, b"mixdim: stopped\n")
    os._exit(INTERRUPTED)


def let_threads_sleep() -> None:
    """Have idle threads of OpenMP sleep after microseconds, unless the user has said how they wait.

    GNU's runtime, which torch brings, lets them spin for milliseconds. Beside other processes a thread
    then spins while the one that it waits for has no core: two threads cost several times the CPU of one
    (docs/speed.md). The runtime reads this when torch is imported; results do not depend on it.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


if started_as_command():
    let_threads_sleep()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell may have it ignored
        signal.signal(signal.SIGINT, stop_at_once)
    warnings.showwarning = show_warning
