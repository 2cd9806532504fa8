"""Prepared MovieLens ratings against the slow encoder."""

import itertools
import random
import zipfile
from collections import Counter

import numpy as np
import polars as pl
import pytest
from slow_encoder import SHARED, arrays, check_feature, needs_real_data, slow_vocabulary

from mixdim.data import sources
from mixdim.data.folder import SPLITS, read_meta
from mixdim.data.public.movielens import prepare_movielens


@pytest.fixture
def ratings():
    rng = random.Random(1)
    return [
        (int(40 * rng.random() ** 2), rng.randrange(30), rng.choice([0.5, 3.0, 5.0]), rng.randrange(50))
        for _ in range(203)
    ]


def check_ratings(out, ratings, order, min_count=1):
    meta = read_meta(out)
    found = arrays(out)
    ordered = [ratings[i] for i in order]
    np.testing.assert_array_equal(found["target"], [row[2] for row in ordered])
    for index in range(2):
        check_feature(
            out, meta, index, [r[index] + 1 for r in ordered], found["ids"][:, index], min_count
        )


def ratings_text(ratings, mark, header=""):
    return header + "".join(f"{u + 1}{mark}{i + 1}{mark}{r}{mark}{t}\n" for u, i, r, t in ratings)


def by_time(ratings):
    order = sorted(range(len(ratings)), key=lambda i: (ratings[i][3], i))
    return sorted(order[:163]) + sorted(order[163:183]) + sorted(order[183:])


@pytest.mark.parametrize(
    ("name", "mark", "header"),
    [
        ("ml-100k/u.data", "\t", ""),
        ("ml-1m/ratings.dat", "::", ""),
        ("ml-20m/ratings.csv", ",", "userId,movieId,rating,timestamp\n"),
    ],
)
@pytest.mark.parametrize("packed", ["file", "folder", "parent", "zip"])
def test_every_release_of_movielens_is_read(tmp_path, ratings, name, mark, header, packed):
    raw = tmp_path / "raw" / name
    raw.parent.mkdir(parents=True)
    raw.write_text(ratings_text(ratings, mark, header))
    with zipfile.ZipFile(tmp_path / "ml.zip", "w") as archive:
        archive.writestr("ml/README.txt", "x")
        archive.write(raw, name)
    given = {"file": raw, "folder": raw.parent, "parent": raw.parent.parent, "zip": tmp_path / "ml.zip"}
    meta = prepare_movielens(given[packed], tmp_path / "out", split="time", min_count=2)
    assert meta.task == "rating"
    assert [feature.name for feature in meta.features] == ["user", "item"]
    assert meta.splits == {"train": (0, 163), "validation": (163, 183), "test": (183, 203)}
    check_ratings(tmp_path / "out", ratings, by_time(ratings), 2)


def test_a_random_split_is_seeded_and_keeps_the_order_of_the_source(tmp_path, ratings):
    numbered = [(user, item, float(row), 0) for row, (user, item, *_) in enumerate(ratings)]
    (tmp_path / "u.data").write_text(ratings_text(numbered, "\t"))
    orders = []
    for number, seed in enumerate([0, 0, 1]):
        out = tmp_path / str(number)
        meta = prepare_movielens(tmp_path / "u.data", out, seed=seed)
        order = np.load(out / "target.npy").astype(int).tolist()
        check_ratings(out, numbered, order)
        assert sorted(order) == list(range(203))
        for split in SPLITS:
            part = order[slice(*meta.splits[split])]
            assert part == sorted(part)
        orders.append(order)
    assert orders[0] == orders[1] != orders[2]


@needs_real_data
def test_the_real_movielens_1m_is_prepared(tmp_path):
    meta = prepare_movielens(SHARED / "ml-1m.zip", tmp_path / "out")
    assert meta.num_rows == 1_000_209
    assert [feature.source_values for feature in meta.features] == [6_040, 3_706]
    with zipfile.ZipFile(SHARED / "ml-1m.zip") as archive:
        text = archive.read("ml-1m/ratings.dat").decode()
    rows = np.array(text.replace("::", " ").split(), np.int64).reshape(-1, 4)
    found = arrays(tmp_path / "out")
    assert Counter(found["target"].tolist()) == Counter(rows[:, 2].astype(float).tolist())
    # The order inside each split is that of the source, so each split is found in it by decoding.
    tables = [pl.read_parquet(tmp_path / "out" / "vocabulary" / f"{i}.parquet") for i in range(2)]
    users, items = (table["value"].fill_null(0).to_numpy() for table in tables)
    train = found["ids"][slice(*meta.splits["train"])]
    decoded = users[train[:, 0]] * 10_000 + items[train[:, 1]]  # a pair as one number
    pairs = rows[:, 0] * 10_000 + rows[:, 1]
    order = np.argsort(pairs)
    places = order[np.searchsorted(pairs, decoded, sorter=order)]
    assert (pairs[places] == decoded).all()
    assert (np.diff(places) > 0).all()
    for index in range(2):
        assert tables[index].select("value", "kind", "count").rows() == slow_vocabulary(
            rows[places, index].tolist(), 1
        )


# As clicks.

FILMS = [
    (1, "Toy Story (1995)", "Animation|Children's|Comedy"),
    (2, "Caf\u00e9 (a film) (1998)", "Drama"),
    (3, "Untitled", "(no genres listed)"),
    (4, "Serial (2009\u2013 )", "Drama|Comedy"),
]
PEOPLE = [(1, "F", 1, 10, "48067"), (2, "M", 56, 16, "98107-2117")]
STARS = [  # user, movie, rating, time; nothing is known of user 3 and movie 5
    (user, movie, (user + movie) % 5 + 1, 10 * user + movie)
    for _ in range(3)
    for user in (1, 2, 3)
    for movie in (1, 2, 3, 4, 5)
]
CLICK_FIELDS = ["user", "movie", "genres", "gender", "age", "occupation", "zip", "year"]


def lines(rows, mark="::"):
    return "".join(mark.join(map(str, row)) + "\n" for row in rows)


@pytest.fixture
def release(tmp_path):
    """A folder as ml-1m's: in latin-1, where the dash of a series cannot be written."""
    folder = tmp_path / "ml-1m"
    folder.mkdir()
    (folder / "ratings.dat").write_text(lines(STARS))
    films = lines(FILMS).replace("\u2013", "-")
    (folder / "movies.dat").write_text(films, encoding="latin-1")
    (folder / "users.dat").write_text(lines(PEOPLE))
    return folder


def decoded(out, name):
    """The values of a feature, in the order of the folder; those unknown in training as they were."""
    meta = read_meta(out)
    index = [feature.name for feature in meta.features].index(name)
    values = pl.read_parquet(out / "vocabulary" / f"{index}.parquet")["value"].to_list()
    if meta.features[index].bag:
        flat = np.load(out / "bags" / f"{name}.values.npy")
        offsets = np.load(out / "bags" / f"{name}.offsets.npy")
        return [[values[i] for i in flat[a:b]] for a, b in itertools.pairwise(offsets)]
    single = [feature.name for feature in meta.features if not feature.bag].index(name)
    return [values[i] for i in np.load(out / "ids.npy")[:, single]]


@pytest.mark.parametrize("packed", ["folder", "parent", "file", "zip"])
def test_clicks_have_what_the_release_says_of_movies_and_users(tmp_path, release, packed):
    with zipfile.ZipFile(tmp_path / "ml.zip", "w") as archive:
        for path in release.iterdir():
            archive.write(path, f"ml-1m/{path.name}")
    given = {"folder": release, "parent": tmp_path, "file": release / "ratings.dat"}
    out = tmp_path / "out"
    meta = prepare_movielens(given.get(packed, tmp_path / "ml.zip"), out, form="clicks")
    assert (meta.task, [feature.name for feature in meta.features]) == ("binary", CLICK_FIELDS)
    assert [feature.name for feature in meta.features if feature.bag] == ["genres"]
    assert len(meta.source["files"]) == (1 if packed == "zip" else 3)
    users, movies = decoded(out, "user"), decoded(out, "movie")
    assert Counter(zip(users, movies, strict=True)) == Counter(row[:2] for row in STARS)
    expected = [float((user + movie) % 5 + 1 >= 4) for user, movie in zip(users, movies, strict=True)]
    assert np.load(out / "target.npy").tolist() == expected
    people = {user: tuple(map(str, facts)) for user, *facts in PEOPLE}
    for place, name in enumerate(("gender", "age", "occupation", "zip")):
        assert decoded(out, name) == [people.get(user, (None,) * 4)[place] for user in users]
    years = {1: "1995", 2: "1998", 4: "2009"}
    assert decoded(out, "year") == [years.get(movie) for movie in movies]
    genres = {1: ["Animation", "Children's", "Comedy"], 2: ["Drama"], 4: ["Drama", "Comedy"]}
    assert decoded(out, "genres") == [genres.get(movie, []) for movie in movies]


def test_later_releases_say_nothing_of_users(tmp_path):
    (tmp_path / "ratings.csv").write_text(
        "userId,movieId,rating,timestamp\n" + lines([(u, m, r - 0.5, t) for u, m, r, t in STARS], ",")
    )
    films = [(movie, f'"{title}"', genres) for movie, title, genres in FILMS]
    (tmp_path / "movies.csv").write_text("movieId,title,genres\n" + lines(films, ","), encoding="utf-8")
    meta = prepare_movielens(tmp_path, tmp_path / "out", form="clicks")
    assert [feature.name for feature in meta.features] == ["user", "movie", "genres", "year"]
    assert set(decoded(tmp_path / "out", "year")) == {"1995", "1998", "2009", None}
    ratings = [(movie + user) % 5 + 0.5 for user, movie, *_ in STARS]
    assert np.load(tmp_path / "out" / "target.npy").sum() == sum(r >= 4 for r in ratings)
    (tmp_path / "movies.csv").unlink()
    meta = prepare_movielens(tmp_path, tmp_path / "bare", form="clicks")
    assert [feature.name for feature in meta.features] == ["user", "movie"]


@pytest.mark.parametrize("form", ["ratings", "clicks"])
@pytest.mark.parametrize("block", [64, 1 << 20])
def test_every_nth_rating_is_taken_from_the_first_on(tmp_path, release, monkeypatch, form, block):
    monkeypatch.setattr(sources, "BLOCK", block)  # so small that rows come in many chunks
    numbered = [(1, movie, movie % 5 + 1, movie) for movie in range(1, 204)]
    (release / "ratings.dat").write_text(lines(numbered))
    meta = prepare_movielens(release, tmp_path / "out", form=form, every=4, split="time")
    taken = decoded(tmp_path / "out", "movie" if form == "clicks" else "item")
    train = meta.splits["train"][1]
    assert meta.num_rows == len(numbered[::4])
    assert taken[:train] == [row[1] for row in numbered[::4]][:train]
    assert meta.options["every"] == 4


def test_ratings_prepared_as_before_are_described_as_before(tmp_path, release):
    """Records name their data by this description: they must be found again."""
    meta = prepare_movielens(release, tmp_path / "out")
    options = {"format": "movielens", "split": "random", "seed": 0, "min_count": 1, "max_bad": 0}
    assert meta.options == options
    clicks = prepare_movielens(release, tmp_path / "clicks", form="clicks")
    assert clicks.options == {**options, "form": "clicks"}


@pytest.mark.parametrize(
    ("name", "line", "reason"),
    [
        ("movies.dat", "7::No genres (1999)", "wrong number of fields"),
        ("movies.dat", "x::Film (1999)::Drama", "not an integer"),
        ("movies.dat", "2::Again (1999)::Drama", "one of the movies has two lines"),
        ("users.dat", "1::M::25::3::1", "one of the users has two lines"),
        ("users.dat", "9::M::25::3", "wrong number of fields"),
    ],
)
def test_malformed_lines_about_movies_and_users_are_rejected(tmp_path, release, name, line, reason):
    with (release / name).open("a") as file:
        file.write(f"{line}\n")
    number = {"movies.dat": len(FILMS), "users.dat": len(PEOPLE)}[name] + 1
    with pytest.raises(ValueError, match=f"{name} line {number}: {reason}"):
        prepare_movielens(release, tmp_path / "out", form="clicks")
    meta = prepare_movielens(release, tmp_path / "out", form="clicks", max_bad=1)
    assert meta.rows == {"read": 46, "kept": 45, "rejected": {reason: 1}}


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"form": "likes"}, "form must be 'ratings' or 'clicks', got 'likes'"),
        ({"every": 0}, "every must be at least 1, got 0"),
    ],
)
def test_wrong_wishes_are_named(tmp_path, release, told, message):
    with pytest.raises(ValueError, match=message):
        prepare_movielens(release, tmp_path / "out", **told)


def test_a_file_of_movies_that_has_none_is_named(tmp_path, release):
    (release / "movies.csv").write_text("movieId,title,genres\n")
    with pytest.raises(ValueError, match=r"movies\.csv has no movies"):
        prepare_movielens(release, tmp_path / "out", form="clicks")
    (release / "movies.csv").write_text("movieId,title\n")
    with pytest.raises(ValueError, match=r"movies\.csv: its header has no column genres"):
        prepare_movielens(release, tmp_path / "out", form="clicks")


@needs_real_data
def test_the_real_movielens_1m_is_prepared_as_clicks(tmp_path):
    meta = prepare_movielens(SHARED / "ml-1m.zip", tmp_path / "out", form="clicks", every=4)
    assert [feature.name for feature in meta.features] == CLICK_FIELDS
    assert (meta.num_rows, meta.rows["rejected"]) == (250_053, {})
    of_all = {feature.name: feature.source_values for feature in meta.features}
    assert {**of_all, "gender": 2, "age": 7, "occupation": 21, "genres": 18, "user": 6_040} == of_all
    assert None not in decoded(tmp_path / "out", "year")[: meta.splits["train"][1]]
