"""How a run is asked to stop: Ctrl-C and SIGTERM become a flag. Knows nothing about training."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


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
