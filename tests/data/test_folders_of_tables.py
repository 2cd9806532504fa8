"""Folders of tables, hive partitions, odd line ends and encodings, files without a header."""

import gzip

import numpy as np
import polars as pl
import pytest

from commands import complaint, output
from mixdim.data import Dataset, sources
from mixdim.data.folder import read_meta
from mixdim.data.prediction_rows import opened_raw
from mixdim.data.table import prepare_table

GIVEN = {"target": "y", "categorical": ["c", "day"], "split": "position"}
ROWS = [(n % 2, f"u{n % 5}", f"2024-01-0{1 + n // 10}") for n in range(30)]


def values(out, number):
    meta = read_meta(out)
    table = pl.read_parquet(out / "vocabulary" / f"{number}.parquet")
    return table["value"][np.load(out / "ids.npy")[: meta.splits["train"][1], number]].to_list()


def write(folder, kind):
    """The rows in a folder for each day, whose name alone has the day."""
    for day in sorted({day for _, _, day in ROWS}):
        frame = pl.DataFrame([row[:2] for row in ROWS if row[2] == day], schema=["y", "c"], orient="row")
        part = folder / f"country=Cote%20d'Or/day={day}"
        part.mkdir(parents=True)
        if kind == "parquet":
            frame.write_parquet(part / "0.parquet")
        elif kind == "csv":
            frame.write_csv(part / "0.csv")
        else:
            (part / "0.csv.gz").write_bytes(gzip.compress(frame.write_csv().encode()))
    (folder / "_SUCCESS").touch()
    (folder / ".hidden.csv").write_text("x")
    return folder


@pytest.mark.parametrize("kind", ["parquet", "csv", "csv.gz"])
def test_a_folder_of_partitions_is_one_table_with_their_columns(tmp_path, kind):
    raw = write(tmp_path / "raw", kind)
    prepare_table([raw], tmp_path / "out", **GIVEN | {"categorical": ["day", "c", "country"]})
    assert values(tmp_path / "out", 0) == [day for _, _, day in ROWS[:24]]
    assert values(tmp_path / "out", 1) == [c for _, c, _ in ROWS[:24]]
    assert set(values(tmp_path / "out", 2)) == {"Cote d'Or"}
    files = [file["name"] for file in read_meta(tmp_path / "out").source["files"]]
    assert files[0] == f"country=Cote%20d'Or/day=2024-01-01/0.{kind}"
    prepare_table([raw], tmp_path / "only", target="day != '2024-01-01'", categorical=["country"])
    assert np.load(tmp_path / "only" / "target.npy").sum() == 20


def test_a_partition_splits_rows_by_time_or_by_its_name(tmp_path, capsys):
    raw = write(tmp_path / "raw", "parquet")
    prepare_table([raw], tmp_path / "out", target="y", categorical=["c"], split="time:day")
    for old, new in (("2024-01-01", "train"), ("2024-01-02", "train2"), ("2024-01-03", "test")):
        (raw / "country=Cote%20d'Or" / f"day={old}").rename(raw / f"day={new}")
    (raw / "country=Cote%20d'Or").rmdir()
    for file in (raw / "day=train2").iterdir():
        file.rename(raw / "day=train" / "1.parquet")
    (raw / "day=train2").rmdir()
    printed = output(capsys, "prepare", "table", raw).out
    assert "--split column:day" in printed
    prepare_table([raw], tmp_path / "named", target="y", categorical=["c"], split="column:day")
    assert read_meta(tmp_path / "named").splits["test"] == (20, 30)


def test_new_rows_may_be_a_folder_and_are_counted_through_its_files(tmp_path):
    raw = write(tmp_path / "raw", "csv")
    prepare_table([raw], tmp_path / "out", **GIVEN)
    bad = raw / "country=Cote%20d'Or" / "day=2024-01-02" / "0.csv"
    bad.write_text(bad.read_text().replace("u1", "u1,x", 1))
    with opened_raw(raw, tmp_path / "out", max_bad=1) as found:
        assert found.places.tolist() == [n for n in range(30) if n != 11]


def test_a_missing_partition_is_missing(tmp_path):
    for name in ("__HIVE_DEFAULT_PARTITION__", "a"):
        (tmp_path / "raw" / f"c={name}").mkdir(parents=True)
        (tmp_path / "raw" / f"c={name}" / "x.csv").write_text("y\n1\n0\n")
    prepare_table([tmp_path / "raw"], tmp_path / "out", target="y", categorical=["c"], split="position")
    assert Dataset(tmp_path / "out").counts["c"].tolist() == [2, 2, 0]
    assert values(tmp_path / "out", 0) == [None, None, "a", "a"]


@pytest.mark.parametrize("odd", [[1, 2], [["x"], ["y"]]])
def test_files_of_other_types_are_one_line(capsys, tmp_path, odd):
    pl.DataFrame({"y": [1, 0], "c": odd}).write_parquet(tmp_path / "a.parquet")
    pl.DataFrame({"y": [1, 0], "c": ["x", "y"]}).write_parquet(tmp_path / "b.parquet")
    told = complaint(capsys, "prepare", "table", tmp_path / "a.parquet", tmp_path / "b.parquet")
    assert "column 'c' has other types in other files" in told


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"readme.md": "x"}, "has no tables: no file that ends in .parquet, .csv"),
        ({"a.csv": "y\n1\n", "b.parquet": "x"}, "has Parquet files and text files: name those to take"),
        ({"d=1/a.csv": "y\n1\n", "b.csv": "y\n1\n"}, "files at different depths of partitions"),
    ],
)
def test_a_folder_that_is_no_table_is_one_line(capsys, tmp_path, files, message):
    for name, text in files.items():
        (tmp_path / "raw" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "raw" / name).write_text(text)
    assert message in complaint(capsys, "prepare", "table", tmp_path / "raw")


@pytest.mark.parametrize("block", [7, 1 << 20])
def test_lines_may_end_in_carriage_returns_alone(tmp_path, monkeypatch, block):
    monkeypatch.setattr(sources, "BLOCK", block)
    (tmp_path / "mac.csv").write_bytes(
        b"y,c,day\r" + b"".join(f"{y},{c},{d}\r".encode() for y, c, d in ROWS)
    )
    prepare_table([tmp_path / "mac.csv"], tmp_path / "out", **GIVEN)
    assert values(tmp_path / "out", 0) == [c for _, c, _ in ROWS[:24]]


@pytest.mark.parametrize("encoding", ["rot13", "base64", "none", "undefined"])
def test_what_is_no_encoding_of_text_is_one_line(capsys, tmp_path, encoding):
    (tmp_path / "t.csv").write_text("y,c\n1,a\n")
    told = complaint(capsys, "prepare", "table", tmp_path / "t.csv", "--encoding", encoding)
    assert told == f"mixdim: encoding {encoding!r} is unknown\n"


def test_columns_name_what_a_file_without_a_header_has_and_new_rows_too(tmp_path):
    text = "".join(f"{y}\t{c}\t{day}\n" for y, c, day in ROWS)
    (tmp_path / "t.tsv").write_text(text)
    prepare_table([tmp_path / "t.tsv"], tmp_path / "out", columns=["y", "c", "day"], **GIVEN)
    assert values(tmp_path / "out", 0) == [c for _, c, _ in ROWS[:24]]
    prepare_table([tmp_path / "t.tsv"], tmp_path / "new", vocabulary_of=tmp_path / "out")
    assert read_meta(tmp_path / "new").splits["test"] == (0, 30)


def test_new_rows_without_a_header_may_lack_the_columns_of_the_target(tmp_path):
    (tmp_path / "t.tsv").write_text("".join(f"{y}\t{c}\t{day}\n" for y, c, day in ROWS))
    bare = tmp_path / "bare.tsv"
    bare.write_text("".join(f"{c}\t{day}\n" for _, c, day in ROWS))
    for name, target in (("a", "y"), ("b", "y >= 1")):
        told = GIVEN | {"target": target}
        prepare_table([tmp_path / "t.tsv"], tmp_path / name, columns=["y", "c", "day"], **told)
        found = []
        for raw in (tmp_path / "t.tsv", bare):
            with opened_raw(raw, tmp_path / name) as rows:
                batch = rows.dataset.rows(slice(0, len(rows.places)))
                found.append((rows.has_target, batch.ids.tolist()))
        assert found == [(True, found[0][1]), (False, found[0][1])]
    bare.write_text("u1\n")
    with (
        pytest.raises(ValueError, match="its first line has 1 fields, and columns names 3"),
        opened_raw(bare, tmp_path / "a"),
    ):
        pass


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["y", "c"], r"t\.tsv: its first line has 3 fields, and columns names 2"),
        (["y", "c", "c"], "columns must name each column once, got 'c' again"),
        (None, r"has no column 'y', 'c', 'day'; it has 0, u0, .*--columns A,B,\.\.\. names the columns"),
    ],
)
def test_columns_that_do_not_fit_are_named(tmp_path, columns, message):
    (tmp_path / "t.tsv").write_text("".join(f"{y}\t{c}\t{day}\n" for y, c, day in ROWS))
    with pytest.raises(ValueError, match=message):
        prepare_table([tmp_path / "t.tsv"], tmp_path / "out", columns=columns, **GIVEN)
