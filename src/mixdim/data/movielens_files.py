"""The files of a MovieLens release, in a zip, a folder or beside each other, as rows of text.

Knows nothing about what the rows mean.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path, PurePosixPath

from mixdim.data.fields import Layout, Rows, read_fields, take_first_line
from mixdim.data.rejects import Rejects
from mixdim.data.sources import Source, check_sources

RATINGS = ("ratings.csv", "ratings.dat", "u.data")


def find_ratings(raw: Path) -> Source:
    """The ratings in a zip file or a folder, or the file itself."""
    if not raw.is_dir():
        (source,) = check_sources([raw])
        if not _is_zip(raw):
            return source
    found = _find(raw, RATINGS)
    if found is None:
        error = FileNotFoundError if raw.is_dir() else ValueError
        raise error(f"{raw} has no ratings: none of {', '.join(RATINGS)}")
    return found


def find_beside(ratings: Source, names: Sequence[str]) -> Source | None:
    """The first of some files that there is where the ratings are, if there is any."""
    if ratings.member is None:
        return _find(ratings.path.parent, names, deep=False)
    return _find(ratings.path, names)


def columns_of(source: Source) -> list[str] | None:
    """The names in the header of a file of ratings, or None if it has none."""
    line, _ = take_first_line(next(replace(source, sample=1).blocks()), "utf-8")
    if "::" in line or "\t" in line:
        return None
    return [name.strip().strip('"') for name in line.split(",")]


def read_rows(
    source: Source, header: Sequence[str], what: str, rejects: Rejects, *, encoding: str = "utf-8"
) -> Iterator[Rows]:
    """The columns of a file by the names in its header, or by their places if it has none."""
    blocks = source.blocks()
    first = next(blocks)
    line, rest = take_first_line(first, encoding)
    separator = next((mark for mark in ("::", "\t", ",") if mark in line), None)
    if separator is None:
        raise ValueError(f"{source.name} has no MovieLens {what}: its first line is {line[:80]!r}")
    names = [name.strip().strip('"') for name in line.split(separator)]
    if separator == ",":
        missing = [name for name in header if name not in names]
        if missing:
            raise ValueError(
                f"{source.name}: its header has no column {', '.join(missing)}, got {line[:80]!r}"
            )
        if len(set(names)) < len(names):
            raise ValueError(f"{source.name}: its header names a column twice: {line[:80]!r}")
        wanted = tuple(names.index(name) for name in header)
        layout, first = Layout(separator, len(names), wanted, encoding, quotes=True), rest
    else:
        layout = Layout(separator, len(header), tuple(range(len(header))), encoding)
    head = [first] if first.data else []
    return read_fields(source, chain(head, blocks), layout, rejects)


def _is_zip(raw: Path) -> bool:
    return raw.suffix.lower() == ".zip" or zipfile.is_zipfile(raw)


def _find(place: Path, names: Sequence[str], *, deep: bool = True) -> Source | None:
    """The first of some files in a zip, in a folder or, if `deep`, in a folder of that."""
    if place.is_dir():
        found = [
            path
            for name in names
            for path in (place / name, *(sorted(place.glob(f"*/{name}")) if deep else ()))
        ]
        files = [path for path in found if path.is_file()]
        return check_sources(files[:1])[0] if files else None
    try:
        with zipfile.ZipFile(place) as archive:
            members = sorted(archive.namelist(), key=lambda name: (name.count("/"), name))
    except zipfile.BadZipFile as error:
        raise ValueError(f"{place} cannot be unpacked: {error}") from None
    paths = [path for path in map(PurePosixPath, members) if "__MACOSX" not in path.parts]
    found_members = (str(path) for name in names for path in paths if path.name == name)
    member = next(found_members, None)
    return None if member is None else Source(place, member)
