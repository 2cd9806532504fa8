"""Which runs are being made right now, by whichever process. Knows nothing about how runs are made."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from mixdim._util.locks import lock_now


class RunLocks:
    """The runs of a records file that belong to us until they are recorded.

    A lock is a locked file, named by the key of the run, in a hidden folder beside the records. The
    system unlocks the files of a process that dies, so others can take its runs at once. Leaving the
    `with` releases all locks, and removes the files of the dead.

    Whoever takes a lock must look into the records before it makes the run: the last holder may have
    recorded it. The order is take, look, train, append, release.
    """

    def __init__(self, records: Path) -> None:
        records = records.resolve()  # by whatever path they name the file, sweeps meet at the same locks
        self.folder = records.with_name(f".{records.name}.locks")
        self._held: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for key in list(self._held):
            self.release(key)
        with suppress(OSError):  # another sweep may tidy up too, or need the folder
            for path in self.folder.iterdir():
                if self.take(path.name):
                    self.release(path.name)
            self.folder.rmdir()

    def take(self, key: str) -> bool:
        """Whether the run is ours now: False if it is somebody's already, be it our own."""
        while True:
            try:
                handle = lock_now(self.folder / key, os.O_RDWR | os.O_CREAT)
            except FileNotFoundError:
                # A sweep that ended may have removed it, and may again: exist_ok would look twice.
                with suppress(FileExistsError):
                    self.folder.mkdir()
                continue
            if handle is None:
                return False
            self._held[key] = handle
            return True

    def release(self, key: str) -> None:
        """Give up a run that is ours."""
        (self.folder / key).unlink(missing_ok=True)  # while we hold it: afterwards it is another's
        os.close(self._held.pop(key))
