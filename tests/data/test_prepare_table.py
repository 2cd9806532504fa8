"""Prepared tables against the slow encoder."""

import csv
import gzip
import io
import random

import numpy as np
import polars as pl
import pytest
from slow_encoder import arrays, check_feature

from mixdim.data import sources
from mixdim.data.folder import read_meta
from mixdim.data.table import prepare_table


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


COLUMNS = {
    **{"target": "y", "categorical": ["shop", "color"], "bags": {"tags": "|"}},
    **{"dense": ["price"], "dense_as_is": True},
}


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


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_labels_are_words_in_any_case_or_numbers(tmp_path, kind):
    words = {
        "True": 1,
        "no": 0,
        "YES": 1,
        "f": 0,
        "T": 1,
        " n ": 0,
        "y": 1,
        "FALSE": 0,
        "1.0": 1,
        "0": 0,
    }
    path = tmp_path / f"t.{kind}"
    frame = pl.DataFrame({"y": list(words), "c": ["a"] * len(words)})
    frame.write_csv(path) if kind == "csv" else frame.write_parquet(path)
    prepare_table([path], tmp_path / "out", target="y", categorical=["c"], split="position")
    assert np.load(tmp_path / "out" / "target.npy").tolist() == list(words.values())


def test_words_are_no_ratings(tmp_path):
    (tmp_path / "t.csv").write_text("y,c\n1,a\nyes,a\n3,b\n")
    given = {"target": "y", "categorical": ["c"], "task": "rating"}
    with pytest.raises(ValueError, match=r"line 3: target is not a number: 'yes'$"):
        prepare_table([tmp_path / "t.csv"], tmp_path / "out", **given)
