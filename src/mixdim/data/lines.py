"""Lines of text as columns of strings; malformed lines are rejected.

Knows nothing about what the columns mean: an empty field is null, everything else is its text.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import polars as pl

from mixdim.data.rejects import BAD_ENCODING, WRONG_FIELDS, Rejects
from mixdim.data.sources import Block, Source

BAD_QUOTES = "bad quotes"
TRY_LATIN_1 = "try --encoding latin-1"
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
QUOTED_ROWS = 1 << 16  # rows of a frame that the slower reader makes, at most
QUOTED_FIELDS = 1 << 22  # and fields


@dataclass(frozen=True)
class Rows:
    """Some rows of one file: columns of text, and the line (or row) of the file each comes from."""

    name: str
    frame: pl.DataFrame
    lines: np.ndarray

    def keep(self, good: np.ndarray) -> Rows:
        """The rows that are good."""
        return self if good.all() else Rows(self.name, self.frame.filter(good), self.lines[good])


@dataclass(frozen=True)
class Layout:
    """How the fields of a line are separated, and which of them are wanted."""

    separator: str
    width: int  # fields of a line
    wanted: tuple[int, ...]
    encoding: str = "utf-8"
    quotes: bool = False


def read_plain(block: Block, layout: Layout, rejects: Rejects) -> Rows:
    """The wanted columns of lines without quotes; blank lines are skipped."""
    text, bad = _utf8(block.data, layout.encoding)
    if len(layout.separator) > 1:
        text, layout = (
            text.replace(layout.separator.encode(), b"\x1f"),
            replace(layout, separator="\x1f"),
        )
    data = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(data == 10)
    starts = np.concatenate([[0], ends[:-1] + 1])
    lines = block.first_line + np.arange(len(ends))
    separators = np.add.reduceat(data == ord(layout.separator), starts, dtype=np.int32)
    blank = ends == starts
    good = separators == layout.width - 1
    rejects.add(WRONG_FIELDS, block.name, lines[~good & ~blank & ~bad])
    rejects.add(BAD_ENCODING, block.name, lines[bad])
    good &= ~blank & ~bad
    if not good.all():
        text = data[np.repeat(good, ends - starts + 1)].tobytes()
    names = [str(i) for i in range(layout.width)]
    if not text:
        frame = pl.DataFrame(schema={names[i]: pl.String for i in layout.wanted})
    else:
        frame = pl.read_csv(
            text,
            separator=layout.separator,
            has_header=False,
            schema=dict.fromkeys(names, pl.String),
            columns=sorted(layout.wanted),
            quote_char=None,
        ).select([names[i] for i in layout.wanted])
    assert frame.height == good.sum(), "every good line is a row"
    return Rows(block.name, frame, lines[good])


def read_quoted(
    blocks: Iterator[Block], layout: Layout, rejects: Rejects, *, escapes: bool
) -> Iterator[Rows]:
    """The wanted columns of lines whose fields may be in quotes and hold separators and line feeds."""
    first = next(blocks)
    name, last = first.name, first.first_line - 1
    undecodable: set[int] = set()
    reader = csv.reader(
        _texts(chain([first], blocks), layout.encoding, undecodable),
        delimiter=layout.separator,
        escapechar="\\" if escapes else None,
        strict=True,
    )
    rows: list[list[str]] = []
    lines: list[int] = []
    enough = min(QUOTED_ROWS, max(1, QUOTED_FIELDS // max(1, len(layout.wanted))))
    while True:
        line = last + 1
        try:
            row = next(reader, None)
        except csv.Error:
            row = []
            rejects.add(BAD_QUOTES, name, [line])
        else:
            if row is None:
                break
            span = range(line, first.first_line + reader.line_num)
            if not undecodable.isdisjoint(span):
                rejects.add(BAD_ENCODING, name, [line])
            elif len(row) == layout.width:
                rows.append([row[i] for i in layout.wanted])
                lines.append(line)
            elif row:
                rejects.add(WRONG_FIELDS, name, [line])
        last = first.first_line + reader.line_num - 1
        if len(rows) == enough:
            yield _rows(name, rows, lines, layout)
            rows, lines = [], []
    yield _rows(name, rows, lines, layout)


def read_fields(
    source: Source, blocks: Iterator[Block], layout: Layout, rejects: Rejects
) -> Iterator[Rows]:
    """All rows of a file; the fast reader as far as there are no quotes."""
    for block in blocks:
        if layout.quotes and b'"' in block.data:
            escapes = any(_escapes(b.data, layout.separator) for b in source.blocks())
            yield from read_quoted(chain([block], blocks), layout, rejects, escapes=escapes)
            return
        yield read_plain(block, layout, rejects)


def take_first_line(block: Block, encoding: str) -> tuple[str, Block]:
    """The first line, such as a header, and the rest of the block."""
    line, _, rest = block.data.partition(b"\n")
    try:
        text = line.decode(encoding)
    except UnicodeDecodeError as error:
        advice = "it looks like UTF-16: convert it to UTF-8" if line.startswith(UTF16) else TRY_LATIN_1
        raise ValueError(f"{block.name} line {block.first_line}: {error}; {advice}") from None
    return text, Block(block.name, block.first_line + 1, rest)


def _rows(name: str, rows: list[list[str]], lines: list[int], layout: Layout) -> Rows:
    schema = {str(i): pl.String for i in layout.wanted}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    empty = [pl.when(pl.col(c) != "").then(pl.col(c)).alias(c) for c in schema]
    return Rows(name, frame.select(empty), np.array(lines, np.int64))


def _utf8(data: bytes, encoding: str) -> tuple[bytes, np.ndarray]:
    """The lines in UTF-8, and which of them are not in the encoding (these come back as they were)."""
    if data.isascii():
        return data, np.zeros(data.count(b"\n"), bool)
    try:
        return data.decode(encoding).encode(), np.zeros(data.count(b"\n"), bool)
    except UnicodeDecodeError:
        texts = [_decode(line, encoding) for line in data.split(b"\n")[:-1]]
        bad = np.array([text is None for text in texts])
        return b"".join((text or "").encode() + b"\n" for text in texts), bad


def _decode(line: bytes, encoding: str) -> str | None:
    try:
        return line.decode(encoding)
    except UnicodeDecodeError:
        return None


def _texts(blocks: Iterator[Block], encoding: str, undecodable: set[int]) -> Iterator[str]:
    for block in blocks:
        for number, line in enumerate(io.BytesIO(block.data), block.first_line):
            text = _decode(line, encoding)
            if text is None:
                undecodable.add(number)
                text = line.decode(encoding, errors="replace")
            yield text


def _escapes(data: bytes, separator: str) -> bool:
    r"""Whether a backslash escapes a quote: \" stands somewhere where no field could end."""
    return re.search(rb'\\"[^"\n' + re.escape(separator.encode()) + rb"]", data) is not None
