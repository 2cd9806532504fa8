"""MovieLens ratings of any release as typed rows: user, item, rating, time; or as clicks, with facts.

Knows nothing about vocabularies or the prepared format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from mixdim.arguments import whole_number
from mixdim.data.encoding import TARGET, TIME, Progress, Schema, Spool, encode_rows, feature_column
from mixdim.data.fields import Rows
from mixdim.data.folder import Meta
from mixdim.data.movielens_facts import BAGS, Facts
from mixdim.data.movielens_files import find_ratings, read_rows
from mixdim.data.rejects import Rejects
from mixdim.data.sources import Source
from mixdim.data.splitting import Split, at_random, by_time

HEADER = ("userId", "movieId", "rating", "timestamp")
SCHEMA = Schema("rating", ("user", "item"))
FORMS = ("ratings", "clicks")
LIKED = 4.0  # stars of a rating that counts as a click


def prepare_movielens(
    raw: Path,
    out: str | Path,
    *,
    form: str = "ratings",
    every: int = 1,
    split: str = "random",
    seed: int = 0,
    min_count: int = 1,
    max_bad: int = 0,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Meta:
    """Prepare MovieLens: the zip, the folder or the ratings file of any release.

    `form="ratings"` has the features user and item, and predicts the rating. `"clicks"` predicts whether
    it is at least 4, from user, movie and what the release has beside the ratings: genres and year of
    the movie, gender, age, occupation and zip of the user. `every=4` takes the ratings 1, 5, 9, ...

    The split is 80/10/10: of a seeded shuffle (`"random"`), or by timestamp (`"time"`; equal ones in the
    order of the file).
    """
    if split not in ("random", "time"):
        raise ValueError(f"split must be 'random' or 'time', got {split!r}")
    if form not in FORMS:
        raise ValueError(f"form must be {' or '.join(map(repr, FORMS))}, got {form!r}")
    every = whole_number(every, "every")
    source = find_ratings(Path(raw))
    rejects = Rejects(max_bad)
    rows = _every(_ratings(source, rejects), every)
    schema, sources = SCHEMA, [source]
    if form == "clicks":
        facts = Facts(source)
        schema = Schema("binary", ("user", "movie", *facts.names), bags=BAGS & {*facts.names})
        sources += facts.sources
        rows = _clicks(rows, facts, rejects)
    # Only what is not as it always was: what is prepared as before stays the same, byte for byte.
    more: dict[str, Any] = {"form": form} if form != FORMS[0] else {}
    more |= {"every": every} if every > 1 else {}

    def split_of(spool: Spool) -> Split:
        return by_time(spool.column(TIME)) if split == "time" else at_random(spool.rows, seed)

    return encode_rows(
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
    )


def _ratings(source: Source, rejects: Rejects) -> Iterator[pl.DataFrame]:
    for rows in read_rows(source, HEADER, "ratings", rejects):
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


def _every(chunks: Iterable[pl.DataFrame], every: int) -> Iterator[pl.DataFrame]:
    """The first of every so many rows."""
    before = 0
    for chunk in chunks:
        yield chunk.gather_every(every, offset=-before % every) if chunk.height else chunk
        before += chunk.height


def _clicks(ratings: Iterable[pl.DataFrame], facts: Facts, rejects: Rejects) -> Iterator[pl.DataFrame]:
    """Ratings as clicks, with the facts as further features."""
    user, movie = feature_column(0), feature_column(1)
    columns = {name: feature_column(place) for place, name in enumerate(facts.names, start=2)}
    for chunk in facts.beside(ratings, user, movie, rejects):
        liked = (pl.col(TARGET) >= LIKED).cast(pl.Float32)
        yield chunk.with_columns(liked).rename(columns)


def _described(sources: Iterable[Source]) -> list[dict[str, Any]]:
    """Each file once, also where it is a zip that holds several of them."""
    return [source.describe() for source in {source.path: source for source in sources}.values()]
