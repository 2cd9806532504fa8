"""Rows that wait on disk between two passes over them. Knows nothing about what is in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl


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

    def chunks(self, *, remove: bool = False) -> Iterator[tuple[int, pl.DataFrame]]:
        """The first row and the rows of each chunk; with `remove`, each file goes once it was read."""
        start = 0
        for index, size in enumerate(self.sizes):
            yield start, pl.read_ipc(self._path(index).read_bytes())
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
