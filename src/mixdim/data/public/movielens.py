"""MovieLens of any release as typed rows: ratings of user and item, or clicks with facts about both.

Knows nothing about vocabularies or the prepared format.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from math import nan
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import polars as pl

from mixdim._util.arguments import whole_number
from mixdim.data.encode import encode_rows
from mixdim.data.folder import Meta
from mixdim.data.folder_writer import Spool
from mixdim.data.lines import Layout, Rows, read_fields, take_first_line
from mixdim.data.rejects import Rejects
from mixdim.data.sources import Source, check_sources
from mixdim.data.splits import Split, all_test, at_random, by_time
from mixdim.data.typed_rows import (
    TARGET,
    TIME,
    PredictionRows,
    Progress,
    Schema,
    feature_column,
)
from mixdim.data.vocabulary import BaseVocabulary

ID, RATING, TIMESTAMP = "id", "rating", "timestamp"
HEADER = ("userId", "movieId", RATING, TIMESTAMP)
MOVIES, MOVIES_HEADER = ("movies.csv", "movies.dat"), ("movieId", "title", "genres")
USERS, USERS_HEADER = ("users.dat",), ("userId", "gender", "age", "occupation", "zip")
OF_MOVIES, OF_USERS = ("genres", "year"), USERS_HEADER[1:]
RATINGS = ("ratings.csv", "ratings.dat", "u.data")
BAGS = frozenset({"genres"})
SCHEMA = Schema("rating", ("user", "item"))
FORMS = ("ratings", "clicks")
RATING_LINE = r"\d+(::|\t)\d+\1[0-5](\.5)?\1\d+"
LIKED = 4.0  # stars of a rating that counts as a click


def prepare_movielens(
    raw: Path,
    out: str | Path,
    *,
    form: str | None = None,
    every: int = 1,
    split: str | None = None,
    seed: int = 0,
    min_count: int | None = None,
    vocabulary_of: str | Path | None = None,
    max_bad: int = 0,
    overwrite: bool = False,
    progress: Progress | None = None,
    prediction: PredictionRows | None = None,
) -> Meta:
    """Prepare MovieLens: the zip, the folder or the ratings file of any release.

    `form="ratings"`, the default, has the features user and item, and predicts the rating. `"clicks"`
    predicts whether it is at least 4, from user, movie and what the release has beside the ratings:
    genres and year of the movie, gender, age, occupation and zip of the user. `every=4` takes the
    ratings 1, 5, 9, ...

    The split is 80/10/10: of a seeded shuffle (`"random"`), or by timestamp (`"time"`; equal ones in the
    order of the file).

    With `vocabulary_of`, an earlier folder, ids and form are its own, and all rows are in the test split
    unless `split` is given. `prediction` is for rows that are only predicted: their file may lack
    ratings and timestamps, if it has a header.
    """
    base = None if vocabulary_of is None else BaseVocabulary.open(vocabulary_of, "movielens")
    if base is not None:
        form = base.agreed("form", form, base.meta.options.get("form", FORMS[0]))
    form = form or FORMS[0]
    split = split or ("random" if base is None else "test")
    if split not in ("random", "time") and (split != "test" or base is None):
        raise ValueError(f"split must be 'random' or 'time', got {split!r}")
    if form not in FORMS:
        raise ValueError(f"form must be {' or '.join(map(repr, FORMS))}, got {form!r}")
    every = whole_number(every, "every")
    source = find_ratings(Path(raw))
    rejects = Rejects(max_bad)
    rows = _every(_ratings(source, rejects, prediction), every)
    schema, sources = SCHEMA, [source]
    if form == "clicks":
        facts = _Facts(source)
        schema = Schema("binary", ("user", "movie", *facts.names), bags=BAGS & {*facts.names})
        sources += facts.sources
        rows = _clicks(rows, facts, rejects)
    # Only options that differ from the usual are written.
    more: dict[str, Any] = {"form": form} if form != FORMS[0] else {}
    more |= {"every": every} if every > 1 else {}

    def split_of(spool: Spool) -> Split:
        if split == "test":
            return all_test(spool.rows)
        return by_time(spool.column(TIME)) if split == "time" else at_random(spool.rows, seed)

    meta = encode_rows(
        out,
        schema,
        rows,
        split_of,
        rejects,
        min_count=min_count,
        overwrite=overwrite,
        progress=progress,
        source=lambda: _described(sources),
        options={"format": "movielens", "split": split, "seed": seed, **more},
        base=base,
    )
    if prediction is not None:
        prediction.finish(rejects)
    return meta


def _ratings(
    source: Source, rejects: Rejects, prediction: PredictionRows | None
) -> Iterator[pl.DataFrame]:
    if prediction is None:
        for rows in _read_rows(source, HEADER, "ratings", rejects):
            yield _typed(rows, rejects).frame
        return
    known = _columns_of(source)
    prediction.has_target = known is None or RATING in known
    header = HEADER if prediction.has_target else tuple(name for name in HEADER if name != RATING)
    wanted = header if known is None or TIMESTAMP in known else header[:-1]
    for rows in _read_rows(source, wanted, "ratings", rejects):
        found = _typed(replace(rows, frame=_with_gaps(rows.frame, wanted)), rejects, is_new=True)
        prediction.keep(found.name, found.lines)
        yield found.frame


def _with_gaps(frame: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """All columns of ratings; no rating, and time 0, where there is no such column."""
    gaps = {RATING: pl.lit(None, pl.String), TIMESTAMP: pl.lit("0")}
    there = gaps | dict(zip(names, map(pl.col, frame.columns), strict=True))
    return frame.select([there[name].alias(name) for name in HEADER])


def _typed(rows: Rows, rejects: Rejects, *, is_new: bool = False) -> Rows:
    user, item, rating, time = (rows.frame.to_series(i) for i in range(len(HEADER)))
    integers = [s.str.to_integer(base=10, dtype=pl.Int64, strict=False) for s in (user, item, time)]
    stars = rating.cast(pl.Float32, strict=False)
    is_rating = stars.is_finite().fill_null(False)
    if is_new:
        stars = pl.select(pl.when(is_rating).then(stars).otherwise(nan).cast(pl.Float32)).to_series()
    checks = {
        "not an integer": ~np.any([s.is_null().to_numpy() for s in integers], axis=0),
        "rating is not a number": is_rating.to_numpy() | is_new,
    }
    good = rejects.passing(rows.name, rows.lines, checks.items())
    names = (feature_column(0), feature_column(1), TIME)
    columns = dict(zip(names, integers, strict=True))
    return Rows(rows.name, pl.DataFrame({TARGET: stars, **columns}), rows.lines).keep(good)


def _every(chunks: Iterable[pl.DataFrame], every: int) -> Iterator[pl.DataFrame]:
    """The first of every so many rows."""
    before = 0
    for chunk in chunks:
        yield chunk.gather_every(every, offset=-before % every) if chunk.height else chunk
        before += chunk.height


def _clicks(ratings: Iterable[pl.DataFrame], facts: _Facts, rejects: Rejects) -> Iterator[pl.DataFrame]:
    """Ratings as clicks, with the facts as further features."""
    user, movie = feature_column(0), feature_column(1)
    columns = {name: feature_column(place) for place, name in enumerate(facts.names, start=2)}
    for chunk in facts.beside(ratings, user, movie, rejects):
        # An unknown rating, NaN, stays unknown.
        stars = pl.col(TARGET)
        liked = pl.when(stars.is_nan()).then(stars).otherwise((stars >= LIKED).cast(pl.Float32))
        yield chunk.with_columns(liked).rename(columns)


def _described(sources: Iterable[Source]) -> list[dict[str, Any]]:
    """Each file once, also where it is a zip that holds several of them."""
    return [source.describe() for source in {source.path: source for source in sources}.values()]


class _Facts:
    """Facts about movies and users in files beside the ratings; a movie without a line has none.

    Only ASCII parts of these files are used, the year of a title among them, so they are read as
    latin-1, the encoding of the older releases.
    """

    def __init__(self, ratings: Source) -> None:
        self._movies, self._users = _find_beside(ratings, MOVIES), _find_beside(ratings, USERS)

    @property
    def names(self) -> list[str]:
        """What is known, in the order of the features: genres, then of the user, then the year."""
        of_movies = OF_MOVIES if self._movies else ()
        of_users = OF_USERS if self._users else ()
        return [*of_movies[:1], *of_users, *of_movies[1:]]

    @property
    def sources(self) -> list[Source]:
        """The files they come from."""
        return [source for source in (self._movies, self._users) if source is not None]

    def beside(
        self, chunks: Iterable[pl.DataFrame], user: str, movie: str, rejects: Rejects
    ) -> Iterable[pl.DataFrame]:
        """Add the facts to typed ratings, in columns called as `names`, given the columns of ids."""
        tables = []
        if self._movies is not None:
            tables.append((movie, _movies(self._movies, rejects)))
        if self._users is not None:
            tables.append((user, _facts(self._users, USERS_HEADER, "users", rejects)))
        for chunk in chunks:
            for column, table in tables:
                chunk = chunk.join(table, left_on=column, right_on=ID, how="left", maintain_order="left")
            bags = [pl.col(name).fill_null([]) for name in BAGS if name in chunk.columns]
            yield chunk.with_columns(bags)


def _movies(source: Source, rejects: Rejects) -> pl.DataFrame:
    """Genres as a list, and the year in which the title ends, such as 1995 of `Toy Story (1995)`."""
    title, genres = pl.col("title"), pl.col("genres")
    listed = pl.when(genres != "(no genres listed)").then(genres.str.split("|"))
    return _facts(source, MOVIES_HEADER, "movies", rejects).select(
        ID, listed.alias("genres"), title.str.extract(r"\((\d{4})[^()]*\)\s*$").alias("year")
    )


def _facts(source: Source, header: Sequence[str], what: str, rejects: Rejects) -> pl.DataFrame:
    """All rows of a file with their ids as numbers; malformed ones and doubles are rejected."""
    parts = list(_read_rows(source, header, what, rejects, encoding="latin-1"))
    if not parts:
        raise ValueError(f"{source.name} has no {what}")
    frame = pl.concat([part.frame for part in parts])
    frame.columns = [ID, *header[1:]]
    ids = frame[ID].str.to_integer(base=10, dtype=pl.Int64, strict=False)
    checks = {
        "not an integer": ids.is_not_null().to_numpy(),
        f"one of the {what} has two lines": ids.is_first_distinct().to_numpy(),
    }
    lines = np.concatenate([part.lines for part in parts])
    good = rejects.passing(source.name, lines, checks.items())
    return frame.with_columns(ids).filter(good)


def is_movielens(raw: Path) -> bool:
    """Whether a zip, folder or file has MovieLens' ratings, by its name and first line."""
    try:
        source = find_ratings(raw)
        line = take_first_line(next(source.blocks()), "latin-1")[0]
    except (OSError, ValueError):
        return False
    if source.path.name not in RATINGS and source.member is None:
        return False
    return {*HEADER} <= {*_names_in(line, ",")} or re.fullmatch(RATING_LINE, line) is not None


def find_ratings(raw: Path) -> Source:
    """The ratings in a zip file or a folder, or the file itself."""
    if not raw.is_dir():
        (source,) = check_sources([raw])
        if raw.suffix.lower() != ".zip" and not zipfile.is_zipfile(raw):
            return source
    found = _find(raw, RATINGS)
    if found is None:
        error = FileNotFoundError if raw.is_dir() else ValueError
        raise error(f"{raw} has no ratings: none of {', '.join(RATINGS)}")
    return found


def _find_beside(ratings: Source, names: Sequence[str]) -> Source | None:
    """The first of some files that is where the ratings are, if there is any."""
    if ratings.member is None:
        return _find(ratings.path.parent, names, deep=False)
    return _find(ratings.path, names)


def _columns_of(source: Source) -> list[str] | None:
    """The names in the header of a file of ratings, or None if it has none."""
    line, _ = take_first_line(next(replace(source, sample=1).blocks()), "utf-8")
    return None if "::" in line or "\t" in line else _names_in(line, ",")


def _names_in(line: str, separator: str) -> list[str]:
    return [name.strip().strip('"') for name in line.split(separator)]


def _read_rows(
    source: Source, header: Sequence[str], what: str, rejects: Rejects, *, encoding: str = "utf-8"
) -> Iterator[Rows]:
    """The columns of a file by the names in its header, or by their places if it has none."""
    blocks = source.blocks()
    first = next(blocks)
    line, rest = take_first_line(first, encoding)
    separator = next((mark for mark in ("::", "\t", ",") if mark in line), None)
    if separator is None:
        raise ValueError(f"{source.name} has no MovieLens {what}: its first line is {line[:80]!r}")
    names = _names_in(line, separator)
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
