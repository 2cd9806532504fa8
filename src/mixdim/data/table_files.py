"""The columns of a table's files, text or Parquet, in chunks of rows.

Knows nothing about what a column is for.
"""

from __future__ import annotations

import codecs
import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import polars as pl

from mixdim.data.columns import listed
from mixdim.data.lines import Layout, Rows, read_fields, take_first_line
from mixdim.data.rejects import Rejects
from mixdim.data.sources import Block, Source

SEPARATORS = ",;\t|"
PARQUET_ROWS = 1 << 17  # rows of a chunk


@dataclass(frozen=True)
class TextFormat:
    """How a text file is read; a separator of None is found in its first line."""

    separator: str | None = None
    encoding: str = "utf-8"
    columns: tuple[str, ...] | None = None  # of files without a header
    without: tuple[str, ...] = ()  # the same where a target is not there

    def __post_init__(self) -> None:
        if self.separator is not None and len(self.separator.encode()) != 1:
            raise ValueError(f"separator must be one ASCII character, got {self.separator!r}")
        try:
            codecs.lookup(self.encoding)
            line_feed = "\n".encode(self.encoding)
        except (LookupError, UnicodeError):  # rot13 is a codec, and no encoding of text
            raise ValueError(f"encoding {self.encoding!r} is unknown") from None
        if line_feed != b"\n":
            raise ValueError(
                f"encoding must extend ASCII, such as utf-8 or latin-1, got {self.encoding!r}"
            )
        twice = named_twice(self.columns or ())
        if twice:
            raise ValueError(f"columns must name each column once, got {twice[0]!r} again")


def read_rows(source: Source, columns: list[str], form: TextFormat, rejects: Rejects) -> Iterator[Rows]:
    """The wanted columns of a file: texts, or for Parquet the types of the file."""
    partition = dict(source.partition)
    inside = [name for name in columns if name not in partition]
    if len(inside) < len(columns):
        inside = inside or header_of(source, form)[:1]  # the file says how many rows there are
    read = (
        _read_parquet(source, inside) if source.is_parquet else _read_text(source, inside, form, rejects)
    )
    if not partition or inside == columns:
        return read
    return (replace(rows, frame=_with_partition(rows, inside, columns, partition)) for rows in read)


def _with_partition(
    rows: Rows, inside: list[str], columns: list[str], partition: dict[str, str | None]
) -> pl.DataFrame:
    """The rows with columns that the path of their file names."""
    found = dict(zip(inside, rows.frame.get_columns(), strict=True))
    height = len(rows.lines)
    return pl.DataFrame([
        found[name].alias(str(place))
        if name in found
        else pl.Series(str(place), [partition[name]], pl.String).new_from_index(0, height)
        for place, name in enumerate(columns)
    ])  # fmt: skip


def header_of(source: Source, form: TextFormat) -> list[str]:
    """The names of a file's columns, each once; those of its path come last."""
    if source.is_parquet:
        with _parquet_errors(source):
            header = pl.scan_parquet(source.path, glob=False).collect_schema().names()
    else:
        _, header, _ = _take_header(source, next(source.blocks()), form)
    _check_columns(source, header, [])
    partition = dict(source.partition)
    return [*(name for name in header if name not in partition), *partition]


def first_fields(source: Source, form: TextFormat) -> list[str]:
    """The fields of a text's first line, be it a header or not."""
    return _take_header(source, next(source.blocks()), replace(form, columns=None))[1]


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


def _take_header(source: Source, block: Block, form: TextFormat) -> tuple[str, list[str], Block]:
    """The mark between columns, their names, and the block without its header."""
    line, rest = take_first_line(block, form.encoding)
    mark = form.separator or max(SEPARATORS, key=line.count)
    fields = next(csv.reader([line], delimiter=mark), [])
    if form.columns is None:
        return mark, fields, rest
    if len(fields) != len(form.columns):
        if form.without and len(fields) == len(form.without):
            return mark, list(form.without), block
        raise ValueError(
            f"{source.name}: its first line has {len(fields):,} fields, "
            f"and columns names {len(form.columns):,}"
        )
    return mark, list(form.columns), block


def _read_text(source: Source, columns: list[str], form: TextFormat, rejects: Rejects) -> Iterator[Rows]:
    blocks = source.blocks()
    mark, header, first = _take_header(source, next(blocks), form)
    _check_columns(source, header, columns)
    place = {name: index for index, name in enumerate(header)}
    wanted = tuple(place[name] for name in columns)
    layout = Layout(mark, len(header), wanted, form.encoding, quotes=True)
    head = [first] if first.data else []
    yield from read_fields(source, chain(head, blocks), layout, rejects)


def _check_columns(source: Source, header: list[str], columns: list[str]) -> None:
    twice, named = named_twice(header), set(header)
    hint = "; if its first line is no header, --columns A,B,... names the columns"
    if twice:
        raise ValueError(
            f"{source.name}: its header names {', '.join(map(repr, twice))} more than once{hint}"
        )
    lacking = [name for name in columns if name not in named]
    if lacking:
        some = hint if all(_is_number(name) for name in header[:1]) else ""
        raise ValueError(
            f"{source.name} has no column {listed([*map(repr, lacking)])}; it has {listed(header)}{some}"
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def named_twice(names: Sequence[str]) -> list[str]:
    """The names that occur more than once."""
    return sorted(name for name, times in Counter(names).items() if times > 1)
