"""Things made ahead of their use by a thread. Knows nothing about what they are."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any, TypeVar

Thing = TypeVar("Thing")

THREAD = "mixdim batches"
PATIENCE = 0.1  # seconds between two looks at whether the other side is still there
FAREWELL = 5.0  # seconds that a thread has to end once nobody wants more of it


def read_ahead(things: Iterator[Thing], count: int) -> Iterator[Thing]:
    """Hand things out while a thread makes up to `count` more; whatever it raises comes out here.

    Nobody waits for ever: not for a thread that died without a word, nor for one that is busy when no
    more is wanted.
    """
    made: queue.Queue[tuple[bool, Any]] = queue.Queue(maxsize=count)  # whether it is the last, and it
    unwanted = threading.Event()

    def put(is_last: bool, thing: Any) -> bool:
        while not unwanted.is_set():
            try:
                made.put((is_last, thing), timeout=PATIENCE)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for thing in things:
                if not put(False, thing):
                    return
            put(True, None)
        except BaseException as error:
            put(True, error)

    thread = threading.Thread(target=work, daemon=True, name=THREAD)
    thread.start()
    try:
        while True:
            is_last, thing = _take(made, thread)
            if not is_last:
                yield thing
            elif thing is None:
                return
            else:
                raise thing
    finally:
        thing = None  # the traceback of an error holds this frame, which would hold the error
        unwanted.set()
        if thread is not threading.current_thread():  # where the garbage collector may have run
            thread.join(FAREWELL)


def _take(made: queue.Queue[tuple[bool, Any]], thread: threading.Thread) -> tuple[bool, Any]:
    while True:
        try:
            return made.get(timeout=PATIENCE)
        except queue.Empty:
            if not thread.is_alive() and made.empty():
                raise RuntimeError("the thread that reads data ended without a word") from None
