"""Whether somebody is at work in a folder: a lock that ends with whoever holds it, killed or not.

Knows nothing about what the work is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # as on Windows
    fcntl = None  # type: ignore[assignment]


@contextmanager
def at_work(folder: Path) -> Iterator[bool | None]:
    """Hold the lock of a folder, if it is free; yields False if somebody else holds it.

    Yields None where that cannot be known, since the system or the file system has no locks.
    """
    if fcntl is None:
        yield None
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        yield _lock(handle)
    finally:
        os.close(handle)  # which ends the lock


@contextmanager
def alone_at_work(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, or say that somebody else does."""
    with at_work(folder) as nobody_else:
        if nobody_else is False:
            raise OSError(f"another process is at work in {folder}: wait for it, or use another folder")
        yield


def _lock(handle: int) -> bool | None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
