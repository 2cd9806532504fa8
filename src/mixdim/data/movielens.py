"""MovieLens ratings of any release as typed rows: user, item, rating, time; or as clicks, with facts.

Knows nothing about vocabularies or the prepared format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from mixdim._util.arguments import whole_number
from mixdim.data.earlier import open_earlier
from mixdim.data.encoding import TARGET, TIME, Progress, Schema, encode_rows, feature_column
from mixdim.data.fields import Rows
from mixdim.data.folder import Meta
from mixdim.data.movielens_facts import BAGS, Facts
from mixdim.data.movielens_files import columns_of, find_ratings, read_rows
from mixdim.data.new_rows import NewRows
from mixdim.data.rejects import Rejects
from mixdim.data.sources import Source
from mixdim.data.splitting import Split, all_test, at_random, by_time
from mixdim.data.spool import Spool

RATING, TIMESTAMP = "rating", "timestamp"
HEADER = ("userId", "movieId", RATING, TIMESTAMP)
SCHEMA = Schema("rating", ("user", "item"))
FORMS = ("ratings", "clicks")
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
    new_rows: NewRows | None = None,
) -> Meta:
    """Prepare MovieLens: the zip, the folder or the ratings file of any release.

    `form="ratings"`, the default, has the features user and item, and predicts the rating. `"clicks"`
    predicts whether it is at least 4, from user, movie and what the release has beside the ratings:
    genres and year of the movie, gender, age, occupation and zip of the user. `every=4` takes the
    ratings 1, 5, 9, ...

    The split is 80/10/10: of a seeded shuffle (`"random"`), or by timestamp (`"time"`; equal ones in the
    order of the file).

    With `vocabulary_of`, an earlier folder, ids and form are its own, and all rows are in the test split
    unless `split` is given. `new_rows` asks for rows that shall only be predicted: their file may lack
    ratings and timestamps, if it has a header.
    """
    earlier = None if vocabulary_of is None else open_earlier(vocabulary_of, "movielens")
    if earlier is not None:
        form = earlier.agree("form", form, earlier.meta.options.get("form", FORMS[0]))
    form = form or FORMS[0]
    split = split or ("random" if earlier is None else "test")
    if split not in ("random", "time") and (split != "test" or earlier is None):
        raise ValueError(f"split must be 'random' or 'time', got {split!r}")
    if form not in FORMS:
        raise ValueError(f"form must be {' or '.join(map(repr, FORMS))}, got {form!r}")
    every = whole_number(every, "every")
    source = find_ratings(Path(raw))
    rejects = Rejects(max_bad)
    rows = _every(_ratings(source, rejects, new_rows), every)
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
        earlier=earlier,
    )
    if new_rows is not None:
        new_rows.finish(rejects)
    return meta


def _ratings(source: Source, rejects: Rejects, new_rows: NewRows | None) -> Iterator[pl.DataFrame]:
    if new_rows is None:
        for rows in read_rows(source, HEADER, "ratings", rejects):
            yield _typed(rows, rejects).frame
        return
    known = columns_of(source)
    new_rows.has_target = known is None or RATING in known
    header = HEADER if new_rows.has_target else tuple(name for name in HEADER if name != RATING)
    wanted = header if known is None or TIMESTAMP in known else header[:-1]
    for rows in read_rows(source, wanted, "ratings", rejects):
        found = _typed(replace(rows, frame=_with_gaps(rows.frame, wanted)), rejects, is_new=True)
        new_rows.keep(found.name, found.lines)
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


def _clicks(ratings: Iterable[pl.DataFrame], facts: Facts, rejects: Rejects) -> Iterator[pl.DataFrame]:
    """Ratings as clicks, with the facts as further features."""
    user, movie = feature_column(0), feature_column(1)
    columns = {name: feature_column(place) for place, name in enumerate(facts.names, start=2)}
    for chunk in facts.beside(ratings, user, movie, rejects):
        # A rating that is not known, NaN, stays so.
        stars = pl.col(TARGET)
        liked = pl.when(stars.is_nan()).then(stars).otherwise((stars >= LIKED).cast(pl.Float32))
        yield chunk.with_columns(liked).rename(columns)


def _described(sources: Iterable[Source]) -> list[dict[str, Any]]:
    """Each file once, also where it is a zip that holds several of them."""
    return [source.describe() for source in {source.path: source for source in sources}.values()]
