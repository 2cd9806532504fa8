"""Signals that would end the process: as exceptions, or as a flag for a loop that looks at it.

Knows nothing about what is interrupted.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

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


class StopRequests:
    """While it is entered, the first SIGINT or SIGTERM only sets `name`; a second one works as usual.

    With `every`, all of them only set it: for who looks at it often, and must not be torn from its work.
    Outside of the main thread Python cannot handle signals, and nothing is changed.
    """

    def __init__(self, *, every: bool = False) -> None:
        self.every = every
        self.name: str | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not None:  # of C, which Python could not put back
                    self._before[number] = signal.signal(number, self._request)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def __call__(self) -> bool:
        """Whether somebody asked to stop."""
        return self.name is not None

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.name = self.name or signal.Signals(number).name
        if not self.every:
            self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
