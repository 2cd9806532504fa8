"""A table that nobody described yet: what its columns look like, and the command that prepares it.

Knows nothing about preparing; changes nothing. Looks at some thousand rows of the first file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path
from shlex import join, quote

import polars as pl

from mixdim._util.text import align, printable
from mixdim.data.guesses import Guess, guess
from mixdim.data.lines import UTF16
from mixdim.data.rejects import Rejects
from mixdim.data.sources import Source, check_sources
from mixdim.data.table_files import check_text, header_of, is_parquet, read_rows

SAMPLE = 20_000  # rows to look at
SAMPLE_FIELDS = 4_000_000  # and fields
LATIN_1 = "latin-1"
LONGEST_EXAMPLE = 30  # characters


@dataclass(frozen=True)
class Proposal:
    """What the columns of a table seem to be; prints as a table and the command to copy."""

    files: tuple[Path, ...]
    rows: int  # of the sample
    columns: tuple[Guess, ...]
    separator: str | None
    encoding: str

    @property
    def target(self) -> Guess | None:
        """Labels called as a target, else ratings, else labels in the last, the first or any column."""
        ends = (self.columns[-1], self.columns[0]) if self.columns else ()
        candidates = [
            *(c for c in self.columns if c.kind == "binary" and c.named),
            *(c for c in self.columns if c.kind == "rating"),
            *(c for c in ends if c.kind == "binary"),
            *(c for c in self.columns if c.kind == "binary"),
        ]
        return candidates[0] if candidates else None

    def role(self, column: Guess) -> str:
        """What the command makes of a column."""
        if column is self.target:
            return "target"
        if column.kind in ("binary", "rating"):
            # A column called like a target would give the target away.
            return "leave out" if column.named else "categorical"
        if column.kind == "time" and column is not self.time:
            return "leave out"
        return column.kind

    @property
    def time(self) -> Guess | None:
        """The first column of times, by which rows are split."""
        return next((column for column in self.columns if column.kind == "time"), None)

    @property
    def command(self) -> str:
        """The command that prepares the table, for a shell."""
        names: dict[str, list[str]] = {"categorical": [], "dense": []}
        bags: list[str] = []
        for column in self.columns:
            role = self.role(column)
            if role == "bag" and ":" not in column.name:
                bags += ["--bag", f"{column.name}:{column.mark}"]
            elif role in ("categorical", "dense"):
                names[role].append(_pattern(column.name))
        target = self.target
        words = ["mixdim", "prepare", "table", *map(str, self.files), "--out", self._out()]
        words += ["--target", "COLUMN" if target is None else target.name]
        words += ["--task", "rating"] if target is not None and target.kind == "rating" else []
        words += ["--categorical", ",".join(names["categorical"])]
        words += ["--dense", ",".join(names["dense"])] if names["dense"] else []
        words += bags
        words += ["--split", f"time:{self.time.name}"] if self.time is not None else []
        words += ["--separator", self.separator] if self.separator is not None else []
        words += ["--encoding", self.encoding] if self.encoding != "utf-8" else []
        return join(words)

    def __str__(self) -> str:
        head = ["column", "looks like", "distinct", "missing", "example", "because"]
        lines = [
            [
                column.name,
                self.role(column),
                f"{column.distinct:,}",
                f"{column.missing:.1%}",
                _cut(column.example),
                "called like the target" if self._leaks_target(column) else column.why,
            ]
            for column in self.columns
        ]
        file = printable(str(self.files[0]))
        return "\n".join([
            f"{file}: {len(self.columns):,} columns, {self.rows:,} rows looked at",
            "",
            *align([head, *lines]),
            "",
            *self._notes(),
            "Nothing was prepared. A guess to check, then to run:",
            "",
            f"  {self.command}",
        ])  # fmt: skip

    def _leaks_target(self, column: Guess) -> bool:
        return column.kind in ("binary", "rating") and self.role(column) == "leave out"

    def _notes(self) -> list[str]:
        notes, target = [], self.target
        if target is None:
            notes.append("No column looks like a target: put its name in the place of COLUMN.")
        elif target.kind == "rating":
            better = quote(f"{_column(target.name)} >= NUMBER")
            notes.append(f"For clicks instead of ratings: --target {better} without --task rating.")
            if target.example in ("0", "0.0"):
                rated = quote(f"{_column(target.name)} > 0")
                notes.append(f"0 is the most frequent rating; if it stands for none: --where {rated}.")
        if not any(self.role(column) in ("categorical", "bag") for column in self.columns):
            notes.append("No column looks categorical: name at least one.")
        if self.encoding == LATIN_1:
            notes.append("The text is not UTF-8; latin-1 reads it, if perhaps with other letters.")
        return [*notes, ""] if notes else []

    def _out(self) -> str:
        name = self.files[0].name.partition(".")[0] or "table"
        return f"{name}-prepared" if Path(name).exists() else name


def propose(raw: Sequence[Path], *, separator: str | None = None, encoding: str = "utf-8") -> Proposal:
    """Look at the first rows of the first file and propose how to prepare all."""
    check_text(separator, encoding)
    source = check_sources(raw)[0]
    if encoding == "utf-8" and not _is_utf8(source):
        encoding = LATIN_1
    header = header_of(source, separator, encoding)
    rows = max(1, min(SAMPLE, SAMPLE_FIELDS // max(1, len(header))))
    some = replace(source, sample=rows + 1)  # and the header
    parts = [part.frame for part in read_rows(some, header, separator, encoding, Rejects())]
    frame = pl.concat(parts).head(rows) if parts else pl.DataFrame({name: [] for name in header})
    columns = (guess(name, frame.to_series(place)) for place, name in enumerate(header))
    return Proposal(tuple(map(Path, raw)), frame.height, tuple(columns), separator, encoding)


def _is_utf8(source: Source) -> bool:
    if is_parquet(source):
        return True
    data = next(replace(source, sample=SAMPLE).blocks()).data
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.startswith(UTF16)  # which reading the header says
    return True


def _pattern(name: str) -> str:
    """A name as an option takes it: in a list with commas, a pattern if it has some itself."""
    if "," not in name and name == name.strip():
        return name
    return escape(name).replace(",", "?").replace(" ", "?")


def _column(name: str) -> str:
    return name if name.isidentifier() else '"' + name.replace('"', '""') + '"'


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_EXAMPLE else f"{text[:LONGEST_EXAMPLE]}..."
