"""How a prepared folder comes into being: complete, or not at all.

Knows nothing about what is in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import polars as pl

from mixdim._util.files import follow_links, sync, write_atomically
from mixdim._util.folders import partial_folder, put_in_place, tidy_up
from mixdim.data.folder import FORMAT, VERSION, Meta, fingerprint


class FolderWriter:
    """Writes a prepared folder under a temporary name and renames it when it is complete.

    Use it as a context manager and call `finish(meta)` last: without that, or after an error or a kill,
    the folder at `out` does not exist (or is the old one, with `overwrite`). Errors, Ctrl-C and SIGTERM
    leave nothing else behind; what only a kill can leave is cleared away by the next writer to `out`.
    """

    def __init__(self, out: str | Path, *, overwrite: bool = False) -> None:
        self.out, self.overwrite = follow_links(out), overwrite
        tidy_up(self.out)
        if self.out.exists() and not overwrite:
            raise FileExistsError(f"{self.out} exists already; --overwrite replaces it")
        if self.out.exists() and not (self.out / "meta.json").is_file():
            raise FileExistsError(f"{self.out} exists and is no prepared folder, so it is not replaced")
        if not self.out.parent.is_dir():
            raise FileNotFoundError(f"cannot write {self.out}: there is no directory {self.out.parent}")

    def __enter__(self) -> Self:
        with ExitStack() as begun:
            self.path = begun.enter_context(partial_folder(self.out))
            (self.path / "vocabulary").mkdir()
            self._begun = begun.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._begun.close()
        if isinstance(error, OSError) and error.filename is None and error.errno is not None:
            # A full disk does not say what it was for.
            raise OSError(f"cannot write {self.out}: {os.strerror(error.errno)}") from None

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> np.memmap:
        """Make a memory-mapped array of known shape, such as `ids.npy`."""
        path = self.path / name
        path.parent.mkdir(exist_ok=True)
        return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)

    def finish(self, meta: Meta) -> None:
        """Describe the folder and put it in its place."""
        files = sorted(p for p in self.path.rglob("*") if p.is_file())
        described = asdict(meta)
        if meta.dense_rules is None:
            del described["dense_rules"]  # written only where there are some
        for rule in described.get("dense_rules", ()):
            if not rule["robust"]:
                del rule["robust"]
        document = {
            "format": FORMAT,
            "version": VERSION,
            **described,
            "num_rows": meta.num_rows,
            "files": {
                str(path.relative_to(self.path)): {
                    "bytes": path.stat().st_size,
                    "fingerprint": fingerprint(path),
                }
                for path in files
            },
        }
        for path in files:
            sync(path)
        write_atomically(self.path / "meta.json", json.dumps(document, indent=2) + "\n")
        put_in_place(self.path, self.out, replace=self.overwrite)


class ArrayFile:
    """An array of the folder, written by `write`, not through memory.

    A full disk is then an OSError instead of a kill, and written pages do not count as our memory.
    """

    def __init__(self, writer: FolderWriter, name: str, shape: tuple[int, ...], dtype: Any) -> None:
        array = writer.array(name, shape, dtype)
        self._dtype, self._row = array.dtype, array.dtype.itemsize * int(np.prod(shape[1:]))
        self._offset, self._path = array.offset, writer.path / name

    def put(self, start: int, rows: np.ndarray) -> None:
        """Write rows from row `start` on."""
        with self._path.open("r+b") as file:
            file.seek(self._offset + start * self._row)
            file.write(np.ascontiguousarray(rows, self._dtype).data.cast("B") if rows.size else b"")


@dataclass
class Spool:
    """Typed rows on disk, a file for each chunk, between reading and encoding."""

    folder: Path
    sizes: list[int] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Rows so far."""
        return sum(self.sizes)

    def add(self, frame: pl.DataFrame) -> None:
        """Write a chunk."""
        self.folder.mkdir(exist_ok=True)
        # Python writes the file: its error says what the disk lacks, which that of polars does not.
        content = frame.write_ipc(None)
        self._path(len(self.sizes)).write_bytes(content.getbuffer())
        self.sizes.append(frame.height)

    def chunks(
        self, columns: list[str] | None = None, *, remove: bool = False
    ) -> Iterator[tuple[int, pl.DataFrame]]:
        """The first row and the rows of each chunk; with `remove`, each file goes once it was read."""
        start = 0
        for index, size in enumerate(self.sizes):
            yield start, pl.read_ipc(self._path(index).read_bytes(), columns=columns)
            start += size
            if remove:
                self._path(index).unlink()
        if remove:
            self.folder.rmdir()

    def column(self, name: str) -> np.ndarray:
        """One column of all rows."""
        parts = [pl.read_ipc(self._path(i), columns=[name]) for i in range(len(self.sizes))]
        return pl.concat(parts)[name].to_numpy()

    def _path(self, index: int) -> Path:
        return self.folder / f"{index}.arrow"
