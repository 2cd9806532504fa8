"""Raw files, plain, gzip or in a zip, alone or in a folder, as blocks of whole lines.

Knows nothing about fields, features or what a line means.
"""

from __future__ import annotations

import gzip
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import unquote

import numpy as np

from mixdim.data.folder import fingerprint

BLOCK = 16 << 20  # bytes
LONGEST_LINE = 64 << 20  # bytes; a longer one means that the file is no text
GZIP = b"\x1f\x8b"
PARQUET = b"PAR1"
ZIP = b"PK\x03\x04"
TABLES = (".parquet", ".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")  # taken from a folder
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Block:
    """Whole lines of a file, as bytes that end with a line feed; carriage returns before it are gone."""

    name: str
    first_line: int  # counted from 1
    data: bytes

    def first_rows(self, count: int) -> Block:
        """The lines up to the `count`-th that is not blank."""
        ends = np.flatnonzero(np.frombuffer(self.data, np.uint8) == ord("\n"))
        rows = np.flatnonzero(np.diff(ends, prepend=-1) > 1)
        return self if len(rows) <= count else replace(self, data=self.data[: ends[rows[count - 1]] + 1])


@dataclass(frozen=True)
class Source:
    """A raw file, or one member of a zip file; with `sample` only so many of its first lines."""

    path: Path
    member: str | None = None
    sample: int | None = None
    folder: Path | None = None  # that the file was found in
    partition: tuple[tuple[str, str | None], ...] = ()  # columns that its path in the folder names

    @property
    def name(self) -> str:
        """How messages call it."""
        return str(self.path) if self.member is None else f"{self.path}/{self.member}"

    @property
    def is_parquet(self) -> bool:
        """Whether it is Parquet, by its first bytes."""
        return _starts_with(self.path, PARQUET)

    def describe(self) -> dict[str, Any]:
        """Its entry in `meta.json`."""
        size = self.path.stat().st_size
        name = self.path.name if self.folder is None else str(self.path.relative_to(self.folder))
        return {"name": name, "bytes": size, "fingerprint": fingerprint(self.path)}

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Its bytes, decompressed; what is wrong with the file is one line that names it."""
        check_file(self.path)
        try:
            if self.member is not None:
                with zipfile.ZipFile(self.path) as archive, archive.open(self.member) as file:
                    yield file
            elif _starts_with(self.path, GZIP):
                with gzip.open(self.path) as file:
                    yield cast("IO[bytes]", file)
            else:
                with self.path.open("rb") as file:
                    yield file
        except EOFError:
            raise ValueError(f"{self.name} is truncated: its compressed data end too early") from None
        except (zlib.error, gzip.BadGzipFile, zipfile.BadZipFile, NotImplementedError) as error:
            raise ValueError(f"{self.name} cannot be decompressed: {error}") from None
        except OSError as error:
            raise OSError(f"cannot read {self.name}: {error.strerror or error}") from None

    def blocks(self) -> Iterator[Block]:
        """The lines of the file, some megabytes at a time; of a sample at most one block."""
        blocks = self._all_blocks()
        return blocks if self.sample is None else iter([next(blocks).first_rows(self.sample)])

    def _all_blocks(self) -> Iterator[Block]:
        line, rest = 1, b""
        feeds: bool | None = None  # whether lines end in line feeds, once it is known
        with self.open() as file:
            while data := file.read(BLOCK):
                if line == 1 and not rest:
                    data = data.removeprefix(BOM)
                if feeds is None and (b"\n" in data or b"\r" in (rest + data)[:-1]):
                    feeds = b"\n" in data
                if feeds is False:  # lines end in carriage returns, as on old Macs
                    data, rest = data.replace(b"\r", b"\n"), rest.replace(b"\r", b"\n")
                whole, feed, tail = data.rpartition(b"\n")
                if not feed:
                    rest += tail
                    if len(rest) > LONGEST_LINE:
                        raise ValueError(
                            f"{self.name}: line {line} is longer than {LONGEST_LINE:,} bytes"
                        )
                    continue
                block = _block(self.name, line, rest + whole + feed)
                line, rest = line + block.data.count(b"\n"), tail
                yield block
        if rest:
            yield _block(self.name, line, rest + b"\n")
        elif line == 1:
            raise ValueError(f"{self.name} is empty")


def check_file(path: Path) -> None:
    """Raise if a path is no file."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory; give the file in it")
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist")


def check_sources(raw: Sequence[Path | str], *, folders: bool = False) -> list[Source]:
    """The files as sources, if there is at least one and each exists and has a byte.

    With `folders`, a folder stands for the tables in it, in the order of their paths.
    """
    if isinstance(raw, str | Path):
        raw = [raw]
    if not raw:
        raise ValueError("raw must name at least one file")
    sources: list[Source] = []
    for path in map(Path, raw):
        sources += _tables_in(path) if folders and path.is_dir() else [Source(path)]
    for source in sources:
        check_file(source.path)
        if folders and _starts_with(source.path, ZIP):
            raise ValueError(f"{source.name} is a zip archive: unpack it, or save a sheet as CSV")
        if source.path.stat().st_size == 0:
            raise ValueError(f"{source.name} is empty")
    return sources


def _tables_in(folder: Path) -> list[Source]:
    """The tables in a folder and those within, with the columns of paths such as `day=3/x.parquet`."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size]
    hidden = (".", "_")  # such as _SUCCESS
    inside = {path: path.relative_to(folder).parts for path in paths}
    paths = [path for path in paths if not any(part.startswith(hidden) for part in inside[path])]
    tables = [path for path in paths if path.name.lower().endswith(TABLES)]
    if not tables:
        raise FileNotFoundError(f"{folder} has no tables: no file that ends in {', '.join(TABLES)}")
    if len({path.suffix.lower() == ".parquet" for path in tables}) > 1:
        raise ValueError(f"{folder} has Parquet files and text files: name those to take")
    sources = [Source(path, folder=folder, partition=_partition(inside[path][:-1])) for path in tables]
    columns = {tuple(name for name, _ in source.partition) for source in sources}
    if len(columns) > 1:
        raise ValueError(f"{folder} has files at different depths of partitions: name those to take")
    return sources


def _partition(parts: Sequence[str]) -> tuple[tuple[str, str | None], ...]:
    pairs = (part.split("=", 1) for part in parts if "=" in part)
    return tuple(
        (unquote(name), None if value == NULL_PARTITION else unquote(value)) for name, value in pairs
    )


def _starts_with(path: Path, magic: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(magic)) == magic


def _block(name: str, line: int, data: bytes) -> Block:
    return Block(name, line, data.replace(b"\r\n", b"\n") if b"\r\n" in data else data)
