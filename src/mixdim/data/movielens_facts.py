"""What a MovieLens release says of its movies and users, beside the ratings.

Knows nothing about ratings or the prepared format. Only ASCII parts of the files are used, the year of a
title among them, so they are read as latin-1, which the older releases are in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import polars as pl

from mixdim.data.movielens_files import find_beside, read_rows
from mixdim.data.rejects import Rejects
from mixdim.data.sources import Source

MOVIES, MOVIES_HEADER = ("movies.csv", "movies.dat"), ("movieId", "title", "genres")
USERS, USERS_HEADER = ("users.dat",), ("userId", "gender", "age", "occupation", "zip")
OF_MOVIES, OF_USERS = ("genres", "year"), ("gender", "age", "occupation", "zip")
BAGS = frozenset({"genres"})
ID = "id"


class Facts:
    """The facts that there are beside some ratings; a movie or user that is not told of has none."""

    def __init__(self, ratings: Source) -> None:
        self._movies, self._users = find_beside(ratings, MOVIES), find_beside(ratings, USERS)

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
            tables.append((user, _users(self._users, rejects)))
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


def _users(source: Source, rejects: Rejects) -> pl.DataFrame:
    return _facts(source, USERS_HEADER, "users", rejects)


def _facts(source: Source, header: Sequence[str], what: str, rejects: Rejects) -> pl.DataFrame:
    """All rows of a file with their ids as numbers; what is malformed, or told twice, is rejected."""
    parts = list(read_rows(source, header, what, rejects, encoding="latin-1"))
    if not parts:
        raise ValueError(f"{source.name} has no {what}")
    frame = pl.concat([part.frame for part in parts])
    frame.columns = [ID, *header[1:]]
    ids = frame[ID].str.to_integer(base=10, dtype=pl.Int64, strict=False)
    checks = {
        "not an integer": ids.is_not_null().to_numpy(),
        f"one of the {what} is told of twice": ids.is_first_distinct().to_numpy(),
    }
    lines = np.concatenate([part.lines for part in parts])
    good = rejects.passing(source.name, lines, checks.items())
    return frame.with_columns(ids).filter(good)
