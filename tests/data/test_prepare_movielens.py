"""Prepared MovieLens ratings against the slow encoder."""

import random
import zipfile
from collections import Counter

import numpy as np
import polars as pl
import pytest
from slow_encoder import SHARED, arrays, check_feature, needs_real_data, slow_vocabulary

from mixdim.data.folder import SPLITS, read_meta
from mixdim.data.prepare import prepare_movielens


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
