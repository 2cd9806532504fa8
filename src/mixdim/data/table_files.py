"""The columns of a table's files, text or Parquet, in chunks of rows.

Knows nothing about what a column is for.
"""

from __future__ import annotations

import codecs
import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

import numpy as np
import polars as pl

from mixdim.data.columns import listed
from mixdim.data.lines import Layout, Rows, read_fields, take_first_line
from mixdim.data.rejects import Rejects
from mixdim.data.sources import Block, Source

SEPARATORS = ",;\t|"
PARQUET = b"PAR1"
PARQUET_ROWS = 1 << 17  # rows of a chunk


def check_text(separator: str | None, encoding: str) -> None:
    """Raise if no file can be read with a separator or an encoding."""
    if separator is not None and len(separator.encode()) != 1:
        raise ValueError(f"separator must be one ASCII character, got {separator!r}")
    try:
        codecs.lookup(encoding)
    except LookupError:
        raise ValueError(f"encoding {encoding!r} is unknown") from None
    if "\n".encode(encoding) != b"\n":
        raise ValueError(f"encoding must extend ASCII, such as utf-8 or latin-1, got {encoding!r}")


def read_rows(
    source: Source, columns: list[str], separator: str | None, encoding: str, rejects: Rejects
) -> Iterator[Rows]:
    """The wanted columns of a file: texts, or for Parquet the types of the file."""
    if is_parquet(source):
        return _read_parquet(source, columns)
    return _read_text(source, columns, separator, encoding, rejects)


def header_of(source: Source, separator: str | None, encoding: str) -> list[str]:
    """The names of a file's columns, each once."""
    if is_parquet(source):
        with _parquet_errors(source):
            header = pl.scan_parquet(source.path, glob=False).collect_schema().names()
    else:
        _, header, _ = _take_header(next(source.blocks()), separator, encoding)
    _check_columns(source, header, [])
    return header


def is_parquet(source: Source) -> bool:
    """Whether a file is Parquet, by its first bytes."""
    with source.path.open("rb") as file:
        return file.read(len(PARQUET)) == PARQUET


@contextmanager
def _parquet_errors(source: Source) -> Iterator[None]:
    try:
        yield
    except pl.exceptions.PolarsError as error:
        raise ValueError(
            f"{source.name} is no readable Parquet file: {str(error).splitlines()[0]}"
        ) from None


def _read_parquet(source: Source, columns: list[str]) -> Iterator[Rows]:
    first = 1
    with _parquet_errors(source):
        table = pl.scan_parquet(source.path, glob=False)
        header = table.collect_schema().names()
        _check_columns(source, header, columns)
        place = {name: index for index, name in enumerate(header)}
        # By place: a name may look like a pattern.
        wanted = table.select(pl.nth([place[name] for name in columns]))
        wanted = wanted if source.sample is None else wanted.head(source.sample)
        for frame in wanted.collect_batches(chunk_size=PARQUET_ROWS):
            yield Rows(source.name, frame, np.arange(first, first + frame.height))
            first += frame.height


def _take_header(block: Block, separator: str | None, encoding: str) -> tuple[str, list[str], Block]:
    """The mark between columns, their names, and the rest of the block."""
    line, rest = take_first_line(block, encoding)
    mark = separator or max(SEPARATORS, key=line.count)
    return mark, next(csv.reader([line], delimiter=mark), []), rest


def _read_text(
    source: Source, columns: list[str], separator: str | None, encoding: str, rejects: Rejects
) -> Iterator[Rows]:
    blocks = source.blocks()
    mark, header, first = _take_header(next(blocks), separator, encoding)
    _check_columns(source, header, columns)
    place = {name: index for index, name in enumerate(header)}
    layout = Layout(mark, len(header), tuple(place[c] for c in columns), encoding, quotes=True)
    head = [first] if first.data else []
    yield from read_fields(source, chain(head, blocks), layout, rejects)


def _check_columns(source: Source, header: list[str], columns: list[str]) -> None:
    twice, named = named_twice(header), set(header)
    if twice:
        raise ValueError(f"{source.name}: its header names {', '.join(map(repr, twice))} more than once")
    lacking = [name for name in columns if name not in named]
    if lacking:
        raise ValueError(
            f"{source.name} has no column {', '.join(map(repr, lacking))}; it has {listed(header)}"
        )


def named_twice(names: Sequence[str]) -> list[str]:
    """The names that occur more than once."""
    return sorted(name for name, times in Counter(names).items() if times > 1)
