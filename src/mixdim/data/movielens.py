"""MovieLens ratings of any release as typed rows: user, item, rating, time.

Knows nothing about vocabularies or the prepared format.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path, PurePosixPath

import numpy as np
import polars as pl

from mixdim.data.encoding import TARGET, TIME, Progress, Schema, Spool, encode_rows, feature_column
from mixdim.data.fields import Layout, Rows, read_fields, take_first_line
from mixdim.data.folder import Meta
from mixdim.data.rejects import Rejects
from mixdim.data.sources import Source, check_sources
from mixdim.data.splitting import Split, at_random, by_time

RATINGS = ("ratings.csv", "ratings.dat", "u.data")
HEADER = ["userId", "movieId", "rating", "timestamp"]
SCHEMA = Schema("rating", ("user", "item"))


def prepare_movielens(
    raw: Path,
    out: str | Path,
    *,
    split: str = "random",
    seed: int = 0,
    min_count: int = 1,
    max_bad: int = 0,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Meta:
    """Prepare MovieLens ratings: the zip, the folder or the ratings file of any release.

    The split is 80/10/10: of a seeded shuffle (`"random"`), or by timestamp (`"time"`; equal ones in the
    order of the file).
    """
    if split not in ("random", "time"):
        raise ValueError(f"split must be 'random' or 'time', got {split!r}")
    source = find_ratings(Path(raw))
    rejects = Rejects(max_bad)

    def split_of(spool: Spool) -> Split:
        return by_time(spool.column(TIME)) if split == "time" else at_random(spool.rows, seed)

    return encode_rows(
        out,
        SCHEMA,
        _read(source, rejects),
        split_of,
        rejects,
        min_count=min_count,
        overwrite=overwrite,
        progress=progress,
        source=lambda: [source.describe()],
        options={"format": "movielens", "split": split, "seed": seed},
    )


def find_ratings(raw: Path) -> Source:
    """The ratings in a zip file or a folder, or the file itself."""
    if raw.is_dir():
        found = [path for name in RATINGS for path in (raw / name, *sorted(raw.glob(f"*/{name}")))]
        files = [path for path in found if path.is_file()]
        if not files:
            raise FileNotFoundError(f"{raw} has no ratings: none of {', '.join(RATINGS)}")
        return check_sources(files[:1])[0]
    (source,) = check_sources([raw])
    if raw.suffix.lower() != ".zip" and not zipfile.is_zipfile(raw):
        return source
    try:
        with zipfile.ZipFile(raw) as archive:
            members = sorted(archive.namelist(), key=lambda name: (name.count("/"), name))
    except zipfile.BadZipFile as error:
        raise ValueError(f"{raw} cannot be unpacked: {error}") from None
    for name in RATINGS:
        for member in members:
            path = PurePosixPath(member)
            if path.name == name and "__MACOSX" not in path.parts:
                return Source(raw, member)
    raise ValueError(f"{raw} has no ratings: none of {', '.join(RATINGS)}")


def _read(source: Source, rejects: Rejects) -> Iterator[pl.DataFrame]:
    blocks = source.blocks()
    first = next(blocks)
    line, rest = take_first_line(first, "utf-8")
    separator = next((mark for mark in ("::", "\t", ",") if mark in line), None)
    if separator is None:
        raise ValueError(f"{source.name} has no MovieLens ratings: its first line is {line[:80]!r}")
    names = [name.strip().strip('"') for name in line.split(separator)]
    if separator == ",":
        missing = [name for name in HEADER if name not in names]
        if missing:
            raise ValueError(
                f"{source.name}: its header has no column {', '.join(missing)}, got {line[:80]!r}"
            )
        if len(set(names)) < len(names):
            raise ValueError(f"{source.name}: its header names a column twice: {line[:80]!r}")
        wanted = tuple(names.index(name) for name in HEADER)
        layout, first = Layout(separator, len(names), wanted, quotes=True), rest
    else:
        layout = Layout(separator, len(HEADER), tuple(range(len(HEADER))))
    head = [first] if first.data else []
    for rows in read_fields(source, chain(head, blocks), layout, rejects):
        yield _typed(rows, rejects)


def _typed(rows: Rows, rejects: Rejects) -> pl.DataFrame:
    user, item, rating, time = (rows.frame.to_series(i) for i in range(len(HEADER)))
    integers = [s.str.to_integer(base=10, dtype=pl.Int64, strict=False) for s in (user, item, time)]
    stars = rating.cast(pl.Float32, strict=False)
    checks = {
        "not an integer": ~np.any([s.is_null().to_numpy() for s in integers], axis=0),
        "rating is not a number": stars.is_finite().fill_null(False).to_numpy(),
    }
    good = rejects.passing(rows.name, rows.lines, checks.items())
    names = (feature_column(0), feature_column(1), TIME)
    columns = dict(zip(names, integers, strict=True))
    return pl.DataFrame({TARGET: stars, **columns}).filter(good)
