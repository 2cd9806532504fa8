"""How a prepared folder comes into being: complete, or not at all.

Knows nothing about what is in it.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from mixdim.data.folder import FORMAT, UNFINISHED, VERSION, Meta, fingerprint
from mixdim.files import write_atomically


class FolderWriter:
    """Writes a prepared folder under a temporary name and renames it when it is complete.

    Use it as a context manager and call `finish(meta)` last: without that, or after an error or a kill,
    the folder at `out` does not exist (or is the old one, with `overwrite`).
    """

    def __init__(self, out: str | Path, *, overwrite: bool = False) -> None:
        self.out = Path(out)
        if self.out.exists() and not overwrite:
            raise FileExistsError(f"{self.out} exists already; --overwrite replaces it")
        if self.out.exists() and not (self.out / "meta.json").is_file():
            raise FileExistsError(f"{self.out} exists and is no prepared folder, so it is not replaced")
        if not self.out.parent.is_dir():
            raise FileNotFoundError(f"cannot write {self.out}: there is no directory {self.out.parent}")

    def __enter__(self) -> Self:
        prefix = f".{self.out.name}{UNFINISHED}"
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=self.out.parent))
        (self.path / "vocabulary").mkdir()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
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
        document = {
            "format": FORMAT,
            "version": VERSION,
            **asdict(meta),
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
            _sync(path)
        write_atomically(self.path / "meta.json", json.dumps(document, indent=2) + "\n")
        self.path.chmod(0o755)
        if self.out.exists():
            old = self.path.with_name(self.path.name + "-old")
            self.out.rename(old)
            self.path.rename(self.out)
            shutil.rmtree(old)
        else:
            self.path.rename(self.out)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
