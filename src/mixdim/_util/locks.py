"""Locks on files and folders, which the system releases when their holder dies, however it dies.

Knows nothing about what they guard.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ModuleNotFoundError:  # such as on Windows: said when a lock is needed, not when we are imported
    fcntl = None  # type: ignore[assignment]


def wait_for_lock(file: BinaryIO, *, shared: bool = False) -> None:
    """Lock an open file until it is closed: alone, or `shared` with others who only read."""
    if fcntl is None:
        raise _no_locks(file.name, "this system has no fcntl")
    try:
        fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    except OSError as error:
        raise _no_locks(file.name, error.strerror) from None


def lock_now(path: Path, flags: int) -> int | None:
    """Open what is at a path with these flags, and lock it; None if somebody else holds it.

    The lock ends when the descriptor that is returned is closed, or its process dies. A descriptor is
    not passed on to programs that this process starts; a process that it forks shares it.
    """
    if fcntl is None:
        raise _no_locks(path, "this system has no fcntl")
    while True:
        handle = os.open(path, flags, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its last holder may have removed it since we opened it: what has no name excludes nobody.
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        except BlockingIOError:
            os.close(handle)
            return None
        except FileNotFoundError:
            pass
        except OSError as error:
            os.close(handle)
            raise _no_locks(path, error.strerror) from None
        os.close(handle)


@contextmanager
def at_work(folder: Path) -> Iterator[bool | None]:
    """Hold the lock of a folder, if it is free; yields False if somebody else holds it.

    Yields None where that cannot be known, since the system or the file system has no locks.
    """
    try:
        handle = lock_now(folder, os.O_RDONLY)
    except OSError as error:
        if error.errno != errno.ENOLCK:
            raise
        yield None
        return
    try:
        yield handle is not None
    finally:
        if handle is not None:
            os.close(handle)  # which ends the lock


@contextmanager
def alone_at_work(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, or say that somebody else does."""
    with at_work(folder) as nobody_else:
        if nobody_else is False:
            raise OSError(f"another process is at work in {folder}: wait for it, or use another folder")
        yield


def _no_locks(path: str | Path, reason: str | None) -> OSError:
    return OSError(errno.ENOLCK, f"it must be locked, which is not possible there: {reason}", str(path))
