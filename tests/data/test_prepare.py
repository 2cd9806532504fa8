"""Prepared folders against an independent encoder that is slow and made of plain dictionaries."""

import csv
import gzip
import io
import math
import random
import signal
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from mixdim.data import sources
from mixdim.data.folder import SPLITS, read_meta
from mixdim.data.prepare import prepare_criteo, prepare_movielens, prepare_table

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
needs_real_data = pytest.mark.skipif(not SHARED.is_dir(), reason=f"there is no {SHARED}")


# The slow encoder


def slow_vocabulary(training, min_count):
    """Rows (value, kind, count) in the order of their ids; None is the missing value."""
    counts = Counter(training)
    known = {value: count for value, count in counts.items() if count >= min_count}
    rare = sum(count for value, count in counts.items() if value not in known)
    rows = [(value, "missing" if value is None else "value", n) for value, n in known.items()]
    rows.append((None, "out_of_vocabulary", rare))
    kinds = ["value", "missing", "out_of_vocabulary"]
    return sorted(rows, key=lambda row: (-row[2], kinds.index(row[1]), *([row[0]] if row[0] else [])))


def slow_encode(values, vocabulary):
    ids = {row[0]: i for i, row in enumerate(vocabulary) if row[1] != "out_of_vocabulary"}
    other = [row[1] for row in vocabulary].index("out_of_vocabulary")
    return [ids.get(value, other) for value in values]


def check_feature(out, meta, index, values, ids, min_count=1):
    """Compare a feature's vocabulary and ids; `values` are in the order of the folder."""
    train = values[: len_train(meta, values)]
    flat = [v for row in train for v in row] if meta.features[index].bag else train
    expected = slow_vocabulary(flat, min_count)
    table = pl.read_parquet(out / "vocabulary" / f"{index}.parquet")
    assert table.columns == ["id", "value", "kind", "count"]
    assert table.schema["id"] == pl.Int32
    assert table.schema["count"] == pl.Int64
    assert table["id"].to_list() == list(range(len(expected)))
    assert table.select("value", "kind", "count").rows() == expected
    everything = [v for row in values for v in row] if meta.features[index].bag else values
    assert slow_encode(everything, expected) == list(ids)
    feature = meta.features[index]
    assert feature.rows == len(expected)
    assert feature.source_values == len(set(everything))
    assert expected[feature.out_of_vocabulary][1] == "out_of_vocabulary"


def len_train(meta, values):
    assert len(values) == meta.num_rows
    return meta.splits["train"][1]


def arrays(out):
    return {p.stem: np.load(p) for p in out.glob("*.npy")}


# Criteo


def criteo_row(rng, *, values=50):
    integers = [rng.choice(["", "0", "-1", "7", str(rng.randrange(100_000))]) for _ in range(13)]
    # A skewed choice: the cube prefers small numbers.
    hexes = [f"{int(values * rng.random() ** 3) * 2654435761 % 2**32:08x}" for _ in range(26)]
    hexes = [value if rng.random() < 0.9 else "" for value in hexes]
    return [str(rng.randrange(2)), *integers, *hexes]


def criteo_text(rows, end="\n"):
    return "".join("\t".join(row) + end for row in rows).encode()


@pytest.fixture
def criteo_rows():
    rng = random.Random(0)
    return [criteo_row(rng) for _ in range(1000)]


def check_criteo(out, rows, min_count=1):
    meta = read_meta(out)
    found = arrays(out)
    assert meta.task == "binary"
    assert meta.num_rows == len(rows)
    assert found["ids"].dtype == np.int32
    np.testing.assert_array_equal(found["target"], [float(row[0]) for row in rows])
    dense = [[math.log1p(max(int(x), 0)) if x else 0.0 for x in row[1:14]] for row in rows]
    np.testing.assert_allclose(found["dense"], np.array(dense, np.float32), rtol=1e-6)
    for index in range(26):
        values = [int(row[14 + index], 16) if row[14 + index] else None for row in rows]
        check_feature(out, meta, index, values, found["ids"][:, index], min_count)


@pytest.mark.parametrize("min_count", [1, 3, 10**6])
def test_criteo_rows_equal_the_slow_encoder(tmp_path, criteo_rows, min_count):
    (tmp_path / "train.txt").write_bytes(criteo_text(criteo_rows))
    meta = prepare_criteo([tmp_path / "train.txt"], tmp_path / "out", min_count=min_count)
    assert meta == read_meta(tmp_path / "out")
    check_criteo(tmp_path / "out", criteo_rows, min_count)
    assert meta.splits == {"train": (0, 858), "validation": (858, 929), "test": (929, 1000)}
    assert meta.rows == {"read": 1000, "kept": 1000, "rejected": {}}


def test_small_blocks_gzip_carriage_returns_a_mark_and_several_files_change_nothing(
    tmp_path, criteo_rows, monkeypatch
):
    monkeypatch.setattr(sources, "BLOCK", 5000)
    files = [tmp_path / name for name in ("a", "b.gz", "c")]
    files[0].write_bytes(b"\xef\xbb\xbf" + criteo_text(criteo_rows[:300], "\r\n") + b"\r\n")
    files[1].write_bytes(gzip.compress(criteo_text(criteo_rows[300:301]).rstrip(b"\n")))
    files[2].write_bytes(criteo_text(criteo_rows[301:]) + b"\n\n")
    told = []
    meta = prepare_criteo(files, tmp_path / "out", progress=lambda *step: told.append(step))
    check_criteo(tmp_path / "out", criteo_rows)
    assert [file["name"] for file in meta.source["files"]] == ["a", "b.gz", "c"]
    assert told[-1] == ("encode", 1000, 1000)
    assert {step[0] for step in told} == {"read", "count", "encode"}


@pytest.mark.parametrize("block", [2000, 1 << 20])
def test_only_the_first_rows_are_taken_if_asked(tmp_path, criteo_rows, monkeypatch, block):
    monkeypatch.setattr(sources, "BLOCK", block)
    (tmp_path / "a").write_bytes(b"\n" + criteo_text(criteo_rows[:20]) + b"\n")
    (tmp_path / "b").write_bytes(criteo_text(criteo_rows[20:50]) + b"\n" + criteo_text(criteo_rows[50:]))
    meta = prepare_criteo([tmp_path / "a", tmp_path / "b"], tmp_path / "out", rows=70)
    check_criteo(tmp_path / "out", criteo_rows[:70])
    assert meta.splits == {"train": (0, 60), "validation": (60, 65), "test": (65, 70)}


def test_terabyte_days_are_split_by_their_names(tmp_path, criteo_rows):
    (tmp_path / "day_2").write_bytes(criteo_text(criteo_rows[100:300]))
    (tmp_path / "day_10.gz").write_bytes(gzip.compress(criteo_text(criteo_rows[300:400])))
    (tmp_path / "day_23").write_bytes(criteo_text(criteo_rows[400:501]))
    files = [tmp_path / name for name in ("day_23", "day_10.gz", "day_2")]
    meta = prepare_criteo(files, tmp_path / "out", layout="terabyte")
    assert meta.splits == {"train": (0, 300), "validation": (300, 351), "test": (351, 401)}
    check_criteo(tmp_path / "out", criteo_rows[100:501])


def test_the_vocabulary_depends_on_the_training_split_only(tmp_path, criteo_rows):
    other = [row if i < 858 else criteo_row(random.Random(i)) for i, row in enumerate(criteo_rows)]
    for name, rows in (("a", criteo_rows), ("b", other)):
        (tmp_path / f"{name}.txt").write_bytes(criteo_text(rows))
        prepare_criteo([tmp_path / f"{name}.txt"], tmp_path / name)
    for index in range(26):
        tables = [pl.read_parquet(tmp_path / name / "vocabulary" / f"{index}.parquet") for name in "ab"]
        assert tables[0].equals(tables[1])


@needs_real_data
def test_the_real_criteo_rows_decode_to_the_raw_file(tmp_path):
    raw = SHARED / "criteo_kaggle_17583.tsv"
    rows = [line.split("\t") for line in raw.read_text().splitlines()]
    meta = prepare_criteo([raw], tmp_path / "out")
    assert meta.num_rows == 17_583
    assert [feature.name for feature in meta.features] == [f"C{i}" for i in range(1, 27)]
    check_criteo(tmp_path / "out", rows)
    ids = np.load(tmp_path / "out" / "ids.npy")
    for index in range(26):
        table = pl.read_parquet(tmp_path / "out" / "vocabulary" / f"{index}.parquet")
        text = [f"{v:08x}" if k == "value" else "" for v, k in table.select("value", "kind").rows()]
        other = meta.features[index].out_of_vocabulary
        raw_values = [row[14 + index] for row in rows]
        assert [
            (text[i], raw) for i, raw in zip(ids[:, index], raw_values, strict=True) if i != other
        ] == [(raw, raw) for i, raw in zip(ids[:, index], raw_values, strict=True) if i != other]
        assert not (ids[: meta.splits["train"][1], index] == other).any()


# MovieLens


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
        lines = archive.read("ml-1m/ratings.dat").decode().splitlines()
    rows = [tuple(int(x) for x in line.split("::")) for line in lines]
    found = arrays(tmp_path / "out")
    assert Counter(found["target"].tolist()) == Counter(float(row[2]) for row in rows)
    # The order inside each split is that of the source, so each split is found in it by decoding.
    tables = [pl.read_parquet(tmp_path / "out" / "vocabulary" / f"{i}.parquet") for i in range(2)]
    values = [table["value"].to_list() for table in tables]
    train = slice(*meta.splits["train"])
    decoded = [(values[0][u], values[1][i]) for u, i in found["ids"][train].tolist()]
    pairs = {(row[0], row[1]): place for place, row in enumerate(rows)}
    places = [pairs[pair] for pair in decoded]
    assert places == sorted(places)
    chosen = set(places)
    for index in range(2):
        assert tables[index].select("value", "kind", "count").rows() == slow_vocabulary(
            [rows[place][index] for place in sorted(chosen)], 1
        )


# Tables


@pytest.fixture
def table_rows():
    rng = random.Random(2)
    return [
        {
            "y": str(rng.randrange(2)),
            "color": rng.choice(["red", "blue", "", "grün", "a,b", 'q"q', "two\nlines"]),
            "shop": f"s{int(20 * rng.random() ** 2)}",
            "price": rng.choice(["", "1.5", "-2", "3e2"]),
            "tags": "|".join(rng.choices("abcd", k=rng.randrange(4))),
            "day": f"2024-01-{rng.randrange(1, 29):02d}",
            "unused": "x",
        }
        for _ in range(300)
    ]


def table_text(rows, **dialect):
    file = io.StringIO()
    writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n", **dialect)
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def check_table(out, rows):
    meta = read_meta(out)
    found = arrays(out)
    np.testing.assert_array_equal(found["target"], [float(row["y"]) for row in rows])
    np.testing.assert_array_equal(found["dense"][:, 0], [float(row["price"] or 0) for row in rows])
    for index, name in enumerate(["shop", "color"]):
        check_feature(out, meta, index, [row[name] or None for row in rows], found["ids"][:, index])
    values = np.load(out / "bags" / "tags.values.npy")
    offsets = np.load(out / "bags" / "tags.offsets.npy")
    assert values.dtype == np.int32
    assert offsets.dtype == np.int64
    bags = [[tag for tag in row["tags"].split("|") if tag] for row in rows]
    assert offsets.tolist() == [0, *np.cumsum([len(bag) for bag in bags])]
    assert [feature.bag for feature in meta.features] == [False, False, True]
    check_feature(out, meta, 2, bags, values)


COLUMNS = {"target": "y", "categorical": ["shop", "color"], "dense": ["price"], "bags": {"tags": "|"}}


@pytest.mark.parametrize(
    ("delimiter", "encoding", "plain"),
    [(",", "utf-8", False), (";", "latin-1", False), ("\t", "utf-8", True), ("|", "cp1252", False)],
)
def test_tables_equal_the_slow_encoder(tmp_path, table_rows, monkeypatch, delimiter, encoding, plain):
    monkeypatch.setattr(sources, "BLOCK", 1500)
    if plain:
        table_rows = [row for row in table_rows if not set('"\n') & set(row["color"])]
    text = table_text(table_rows, delimiter=delimiter)
    (tmp_path / "t.csv").write_bytes(text.encode(encoding))
    prepare_table([tmp_path / "t.csv"], tmp_path / "out", split="position", encoding=encoding, **COLUMNS)
    check_table(tmp_path / "out", table_rows)


def test_a_parquet_file_and_a_gzip_file_with_all_fields_quoted_are_tables_too(tmp_path, table_rows):
    pl.DataFrame(table_rows[:100]).write_parquet(tmp_path / "a.parquet")
    text = table_text(table_rows[100:], quoting=csv.QUOTE_ALL)
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(text.replace("\n", "\r\n").encode()))
    for row in table_rows[100:]:
        row["color"] = row["color"].replace("\r\n", "\n")
    files = [tmp_path / "a.parquet", tmp_path / "b.csv.gz"]
    prepare_table(files, tmp_path / "out", split="position", **COLUMNS)
    check_table(tmp_path / "out", table_rows)


def test_a_table_is_split_by_time(tmp_path, table_rows):
    (tmp_path / "t.csv").write_text(table_text(table_rows), encoding="utf-8")
    prepare_table([tmp_path / "t.csv"], tmp_path / "out", split="time:day", **COLUMNS)
    order = sorted(range(300), key=lambda i: (table_rows[i]["day"], i))
    order = sorted(order[:240]) + sorted(order[240:270]) + sorted(order[270:])
    check_table(tmp_path / "out", [table_rows[i] for i in order])


def test_a_table_may_have_only_bags_and_all_may_be_empty(tmp_path):
    (tmp_path / "t.csv").write_text("y,a,b\n1,x y,\n0,y,\n")
    bags = {"a": " ", "b": " "}
    meta = prepare_table(
        [tmp_path / "t.csv"], tmp_path / "out", target="y", categorical=[], bags=bags, split="position"
    )
    assert meta == read_meta(tmp_path / "out")
    assert [feature.rows for feature in meta.features] == [3, 1]
    assert np.load(tmp_path / "out" / "ids.npy").shape == (2, 0)
    assert np.load(tmp_path / "out" / "bags" / "a.values.npy").tolist() == [1, 0, 0]
    assert np.load(tmp_path / "out" / "bags" / "b.values.npy").tolist() == []
    assert np.load(tmp_path / "out" / "bags" / "b.offsets.npy").tolist() == [0, 0, 0]


def test_numbers_of_a_parquet_file_stay_numbers(tmp_path):
    frame = pl.DataFrame(
        {
            "r": [1.5, 2.0, 3.0, 4.0],
            "n": [7, None, 7, 300],
            "b": [True, False, True, None],
            "l": [["x"], [], None, ["x", "y"]],
        }
    )
    frame.with_columns(pl.col("n").cast(pl.UInt16)).write_parquet(tmp_path / "t.parquet")
    meta = prepare_table(
        [tmp_path / "t.parquet"],
        tmp_path / "out",
        target="r",
        categorical=["n", "b"],
        bags={"l": "|"},
        task="rating",
        split="position",
    )
    table = pl.read_parquet(tmp_path / "out" / "vocabulary" / "0.parquet")
    assert table.schema["value"] == pl.Int64
    assert table["value"].to_list() == [7, 300, None, None]
    assert np.load(tmp_path / "out" / "ids.npy").tolist() == [[0, 0], [2, 1], [0, 0], [1, 2]]
    assert np.load(tmp_path / "out" / "bags" / "l.offsets.npy").tolist() == [0, 1, 1, 1, 3]
    assert meta.features[2].rows == 3


@pytest.mark.parametrize("block", [52, 1 << 20])
def test_backslashes_escape_quotes_in_files_that_do_so(tmp_path, monkeypatch, block):
    lines = [
        '"User-ID";"ISBN";"Book-Rating"',
        '"0";"z";"1"',
        r'"1";"\"034\"";"0"',
        r'"2";"x\";y";"5"',
        '"3";"é";"7"',
    ]
    monkeypatch.setattr(sources, "BLOCK", block)
    (tmp_path / "bx.csv").write_bytes("\n".join(lines).encode("latin-1"))
    prepare_table(
        [tmp_path / "bx.csv"],
        tmp_path / "out",
        target="Book-Rating",
        categorical=["User-ID", "ISBN"],
        encoding="latin-1",
        task="rating",
        split="position",
    )
    table = pl.read_parquet(tmp_path / "out" / "vocabulary" / "1.parquet")
    assert table["value"].to_list() == ['"034"', 'x";y', "z", "é", None]


def test_a_backslash_is_a_letter_in_other_files(tmp_path):
    (tmp_path / "t.csv").write_text('y,c\n1,"C:\\dir\\"\n0,"a\\b"\n1,C:\\x\n')
    prepare_table(
        [tmp_path / "t.csv"], tmp_path / "out", target="y", categorical=["c"], split="position"
    )
    table = pl.read_parquet(tmp_path / "out" / "vocabulary" / "0.parquet")
    assert table["value"].to_list() == ["C:\\dir\\", "C:\\x", "a\\b", None]


# Interruption

CHILD = """
import sys
from pathlib import Path
from mixdim.data.prepare import prepare_criteo
def tell(stage, done, total):
    print(stage, flush=True)
    if stage == sys.argv[3]:
        sys.stdin.read()
prepare_criteo([Path(sys.argv[1])], sys.argv[2], progress=tell, overwrite=True)
"""


@pytest.mark.parametrize("stage", ["read", "count", "encode"])
@pytest.mark.parametrize("existing", [False, True])
def test_a_kill_leaves_no_new_folder(tmp_path, criteo_rows, stage, existing):
    (tmp_path / "raw").write_bytes(criteo_text(criteo_rows))
    out = tmp_path / "out"
    if existing:
        (tmp_path / "few").write_bytes(criteo_text(criteo_rows[:10]))
        old = prepare_criteo([tmp_path / "few"], out)
    command = [sys.executable, "-c", CHILD, str(tmp_path / "raw"), str(out), stage]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        for line in child.stdout:
            if line.strip() == stage:
                break
        child.send_signal(signal.SIGKILL)
        child.wait()
    if existing:
        assert read_meta(out) == old
    else:
        with pytest.raises(FileNotFoundError):
            read_meta(out)
    partial = list(tmp_path.glob(".out.partial-*"))
    assert len(partial) == 1
    with pytest.raises(ValueError, match="what an interrupted run left"):
        read_meta(partial[0])
