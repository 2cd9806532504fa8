"""A signal that would end the process at once becomes an exception, so that nothing is left half done.

Knows nothing about what there is to clear away.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = [number for number in signal.Signals if number.name in ("SIGTERM", "SIGHUP")]


class Terminated(SystemExit):
    """A signal asked the process to end; uncaught, it ends with the code that shells give to it."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.signal_name = signal.Signals(number).name


@contextmanager
def signals_as_exceptions() -> Iterator[None]:
    """While it is entered, the first SIGTERM or SIGHUP raises `Terminated`; a second works as usual.

    Signals that somebody handles or ignores already are left alone, and outside of the main thread,
    where Python cannot handle signals, so are all.
    """
    taken: list[signal.Signals] = []

    def restore() -> None:
        while taken:
            signal.signal(taken.pop(), signal.SIG_DFL)

    def end(number: int, frame: FrameType | None) -> None:
        restore()
        raise Terminated(number)

    if threading.current_thread() is threading.main_thread():
        for number in ENDING:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, end)
                taken.append(number)
    try:
        yield
    finally:
        restore()
