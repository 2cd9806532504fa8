"""What `prepare` says of input that is wrong; a refused preparation leaves nothing behind."""

import gzip
import subprocess
import sys
import zipfile
from functools import partial

import numpy as np
import polars as pl
import pytest

from mixdim.data import sources
from mixdim.data.folder import read_meta
from mixdim.data.prepare import prepare_criteo, prepare_movielens, prepare_table

GOOD = "1\t" + "\t".join(["3"] * 13) + "\t" + "\t".join(["0a1b2c3d"] * 26)


def changed(field, text):
    fields = GOOD.split("\t")
    fields[field] = text
    return "\t".join(fields).encode()


BAD_CRITEO = {
    "wrong number of fields": [
        GOOD.encode() + b"\tx",
        b"1\t2",
        b"hello",
        GOOD.replace("\t", ",").encode(),
    ],
    "label is not 0 or 1": [changed(0, "2"), changed(0, ""), changed(0, "01"), changed(0, "1.0")],
    "not an integer": [changed(1, "x"), changed(13, "1.5"), changed(3, " 1"), changed(2, "9" * 30)],
    "not 8 hex digits": [
        changed(14, "xyzwxyzw"),
        changed(39, "0a1b2c3"),
        changed(20, "0a1b2c3d0"),
        changed(20, "+a1b2c3d"),
        changed(20, "-a1b2c3d"),
        changed(20, '"a1b2c3d'),
    ],
    "bad encoding": [changed(20, "0a1b2c3") + b"\xff", b"\xff\xfe" + GOOD.encode()],
}
CASES = [
    *((reason, line, 1 << 20) for reason, lines in BAD_CRITEO.items() for line in lines),
    *((reason, lines[0], 100) for reason, lines in BAD_CRITEO.items()),  # every row a block of its own
]


@pytest.fixture(autouse=True)
def nothing_else_is_left(tmp_path):
    """Whatever fails, no partial folder stays."""
    yield
    assert not list(tmp_path.glob(".*"))


def refused(tmp_path, call, *, match, error=ValueError):
    with pytest.raises(error, match=match) as caught:
        call(out=tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()
    return str(caught.value)


@pytest.mark.parametrize(("reason", "line", "block"), CASES)
def test_a_malformed_criteo_row_is_refused_with_its_place(tmp_path, monkeypatch, reason, line, block):
    monkeypatch.setattr(sources, "BLOCK", block)
    good = GOOD.encode() + b"\n"
    raw = tmp_path / "raw"
    raw.write_bytes(good * 6 + line + b"\n" + good * 3)
    message = refused(tmp_path, partial(prepare_criteo, [raw]), match=r"1 of 10 rows read are malformed")
    assert f"(1 {reason})" in message
    assert message.endswith(f"{raw} line 7: {reason}")
    meta = prepare_criteo([raw], tmp_path / "out", max_bad=1)
    assert meta.rows == {"read": 10, "kept": 9, "rejected": {reason: 1}}
    assert meta == read_meta(tmp_path / "out")
    assert meta.num_rows == 9


def test_all_reasons_are_counted_and_the_first_five_places_shown_in_order(tmp_path):
    bad = [lines[0] for lines in BAD_CRITEO.values()]
    rows = [GOOD.encode()] * 20 + [line for line in bad for _ in range(2)] + [GOOD.encode()] * 7
    (tmp_path / "raw").write_bytes(b"\n".join(rows[::-1]))
    message = refused(
        tmp_path, partial(prepare_criteo, [tmp_path / "raw"], max_bad=9), match="10 of 37 rows"
    )
    for reason in BAD_CRITEO:
        assert f"2 {reason}" in message
    places = [int(part.split("line ")[1].split(":")[0]) for part in message.split("; ")[:-1]]
    assert places == [8, 9, 10, 11, 12]
    assert message.endswith("; ...")
    meta = prepare_criteo([tmp_path / "raw"], tmp_path / "out", max_bad=10)
    assert meta.rows["kept"] == 27


def test_a_file_of_another_format_is_refused_early(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "BLOCK", 100)
    (tmp_path / "raw").write_text("a,b,c\n" * 10_000)
    refused(
        tmp_path, partial(prepare_criteo, [tmp_path / "raw"]), match=r"of 1\d rows read are malformed"
    )


def test_skipped_rows_do_not_count_for_the_split(tmp_path):
    rows = [changed(14, f"{i:08x}") for i in range(14)]
    (tmp_path / "raw").write_bytes(b"\n".join([b"bad", *rows[:12], b"bad", *rows[12:]]))
    meta = prepare_criteo([tmp_path / "raw"], tmp_path / "out", max_bad=2)
    assert meta.splits == {"train": (0, 12), "validation": (12, 13), "test": (13, 14)}
    assert np.load(tmp_path / "out" / "ids.npy")[:, 0].tolist() == [*range(12), 12, 12]


def criteo(path, **given):
    return partial(prepare_criteo, [path], **given)


def test_files_that_cannot_be_read_are_named(tmp_path):
    raw = tmp_path / "raw"
    refused(tmp_path, criteo(raw), match="raw does not exist", error=FileNotFoundError)
    refused(tmp_path, criteo(tmp_path), match="is a directory", error=IsADirectoryError)
    refused(tmp_path, partial(prepare_criteo, []), match="at least one file")
    raw.write_bytes(b"")
    refused(tmp_path, criteo(raw), match="raw is empty")
    raw.write_bytes(gzip.compress(b""))
    refused(tmp_path, criteo(raw), match="raw is empty")
    raw.write_bytes(b"\n\n")
    refused(tmp_path, criteo(raw), match="no rows in the training split: 0 rows of raw")


@pytest.mark.parametrize(
    "spoil", [lambda data: data[:-20], lambda data: data[:60] + b"\0" * 30 + data[90:]]
)
def test_a_spoilt_gzip_file_is_named(tmp_path, spoil):
    raw = tmp_path / "raw.gz"
    raw.write_bytes(spoil(gzip.compress("\n".join([GOOD] * 5 + [str(range(999))]).encode() * 9)))
    refused(tmp_path, criteo(raw), match=r"raw\.gz (is truncated|cannot be decompressed)")


def test_a_line_without_end_is_no_text(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "LONGEST_LINE", 1000)
    monkeypatch.setattr(sources, "BLOCK", 100)
    (tmp_path / "raw").write_bytes(b"x" * 5000)
    refused(tmp_path, criteo(tmp_path / "raw"), match="raw: line 1 is longer than 1,000 bytes")


def test_arguments_of_criteo_are_checked(tmp_path):
    raw = tmp_path / "train.txt"
    raw.write_text(GOOD)
    refused(tmp_path, criteo(raw, layout="x"), match="layout must be 'kaggle' or 'terabyte', got 'x'")
    refused(tmp_path, criteo(raw, layout="terabyte"), match=r"train\.txt: .* day_0 to day_23")
    refused(tmp_path, criteo(raw, rows=0), match="rows must be >= 1, got 0")
    refused(tmp_path, criteo(raw, min_count=0), match="min_count must be >= 1, got 0")
    refused(tmp_path, criteo(raw, max_bad=-1), match="max_bad must be >= 0, got -1")
    (tmp_path / "day_24").write_text(GOOD)
    refused(tmp_path, criteo(tmp_path / "day_24", layout="terabyte"), match="day_24: ")
    (tmp_path / "day_23").write_text(GOOD)
    refused(
        tmp_path,
        criteo(tmp_path / "day_23", layout="terabyte"),
        match="no rows in the training split: 1 rows of day_23",
    )


def test_an_existing_folder_stays_unless_it_may_be_replaced(tmp_path):
    (tmp_path / "raw").write_text(GOOD)
    old = prepare_criteo([tmp_path / "raw"], tmp_path / "out")
    (tmp_path / "raw").write_text(f"{GOOD}\n{GOOD}")
    with pytest.raises(FileExistsError, match="--overwrite"):
        prepare_criteo([tmp_path / "raw"], tmp_path / "out")
    assert read_meta(tmp_path / "out") == old
    prepare_criteo([tmp_path / "raw"], tmp_path / "out", overwrite=True)
    assert read_meta(tmp_path / "out").num_rows == 2


# MovieLens


def test_movielens_input_that_is_none_is_named(tmp_path):
    raw = tmp_path / "raw"
    call = partial(prepare_movielens, raw)
    refused(tmp_path, call, match="does not exist", error=FileNotFoundError)
    raw.write_text("hello\n")
    refused(tmp_path, call, match="raw has no MovieLens ratings: its first line is 'hello'")
    raw.write_text("userId,rating,timestamp\n1,2,3\n")
    refused(tmp_path, call, match="header has no column movieId")
    raw.write_text("userId,movieId,movieId,rating,timestamp\n1,2,3,4,5\n")
    refused(tmp_path, call, match="names a column twice")
    raw.write_text("userId,movieId,rating,timestamp\n")
    refused(tmp_path, call, match="no rows in the training split")
    raw.write_text("1\t2\t3\t4\n")
    refused(tmp_path, partial(call, split="x"), match="split must be 'random' or 'time', got 'x'")
    (tmp_path / "folder").mkdir()
    refused(
        tmp_path,
        partial(prepare_movielens, tmp_path / "folder"),
        match=r"has no ratings: none of ratings\.csv",
        error=FileNotFoundError,
    )
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("movies.csv", "x")
    refused(tmp_path, partial(prepare_movielens, tmp_path / "x.zip"), match=r"x\.zip has no ratings")
    (tmp_path / "x.zip").write_bytes((tmp_path / "x.zip").read_bytes()[:-30])
    refused(tmp_path, partial(prepare_movielens, tmp_path / "x.zip"), match=r"x\.zip cannot be unpacked")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1::2::3", "wrong number of fields"),
        ("a::2::3::4", "not an integer"),
        ("1::::3::4", "not an integer"),
        ("1::2::3::x", "not an integer"),
        ("1::2::nan::4", "rating is not a number"),
        ("1::2::::4", "rating is not a number"),
    ],
)
def test_a_malformed_rating_is_refused_with_its_place(tmp_path, line, reason):
    (tmp_path / "ratings.dat").write_text(f"1::2::3::4\n{line}\n1::2::3::4\n")
    message = refused(
        tmp_path, partial(prepare_movielens, tmp_path / "ratings.dat"), match="1 of 3 rows read"
    )
    assert message.endswith(f"line 2: {reason}")


# Tables

TABLE = {"target": "y", "categorical": ["c"], "dense": ["d"], "split": "time:t"}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"1,a,2", "wrong number of fields"),
        (b"1,a,2,3,4", "wrong number of fields"),
        (b"2,a,2,3", "label is not 0 or 1: '2'"),
        (b"maybe,a,2,3", "label is not 0 or 1: 'maybe'"),
        (b",a,2,3", "target is empty"),
        (b"  ,a,2,3", "target is empty"),
        (b"1,a,x,3", "d is not a number: 'x'"),
        (b"1,a,inf,3", "d is not a number: 'inf'"),
        (b"1,a,1e39,3", "d is not a number: '1e39'"),
        (b"1,a," + b"x" * 99 + b",3", "d is not a number: '" + "x" * 39 + "..."),
        (b"1,a,2,soon", "t is not a time: 'soon'"),
        (b"1,a,2,", "t is not a time: nothing"),
        (b"1,\xff,2,3", "bad encoding"),
        (b'1,"a"b,2,3', "bad quotes"),
    ],
)
@pytest.mark.parametrize("quoted", [False, True])
def test_a_malformed_row_of_a_table_is_refused_with_its_place(tmp_path, line, reason, quoted):
    good = b'1,"a\nb",2,3\n' if quoted else b"1,a,2,3\n"
    (tmp_path / "t.csv").write_bytes(b"y,c,d,t\n" + good + line + b"\n" + good)
    call = partial(prepare_table, [tmp_path / "t.csv"], **TABLE)
    message = refused(tmp_path, call, match="1 of 3 rows read are malformed")
    told, _, advice = message.partition("; ")
    assert told.endswith(f"line {4 if quoted else 3}: {reason}")
    assert (advice == "try --encoding latin-1") == (reason == "bad encoding")
    assert ("--target" in advice) == reason.startswith("label")
    assert call(out=tmp_path / "out", max_bad=1).rows["kept"] == 2


def test_a_quote_that_never_closes_is_one_malformed_row(tmp_path):
    (tmp_path / "t.csv").write_text('y,c,d,t\n1,a,2,3\n1,"a,2,3\n1,a,2,3\n')
    call = partial(prepare_table, [tmp_path / "t.csv"], **TABLE)
    message = refused(tmp_path, call, match="1 of 2 rows")
    assert message.endswith("line 3: bad quotes")


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"target": "z"}, r"t\.csv has no column 'z'; it has y, c, d, t"),
        ({"categorical": ["c", "z"]}, r"t\.csv has no column 'z'"),
        ({"dense": ["z"]}, r"t\.csv has no column 'z'"),
        ({"bags": {"z": "|"}}, r"t\.csv has no column 'z'"),
        ({"split": "time:z"}, r"t\.csv has no column 'z'"),
        ({"categorical": []}, "categorical must name at least one column"),
        ({"categorical": ["c", "c"]}, "column 'c' is given twice"),
        ({"categorical": ["c", "y"]}, "column 'y' is the target"),
        ({"bags": {"c": ""}}, "bag 'c' needs the mark"),
        ({"bags": {"a/b": "|"}}, "bag 'a/b' cannot be a file name"),
        ({"task": "x"}, "task must be 'binary' or 'rating', got 'x'"),
        ({"split": "x"}, "split must be 'random', 'position' or 'time:COLUMN', got 'x'"),
        ({"split": "time:"}, "split must be"),
        ({"separator": ";;"}, "separator must be one ASCII character, got ';;'"),
        ({"separator": ";"}, "has no column 'y'"),
        ({"encoding": "x"}, "encoding 'x' is unknown"),
        ({"encoding": "utf-16"}, "encoding must extend ASCII"),
    ],
)
def test_arguments_of_a_table_are_checked(tmp_path, given, match):
    (tmp_path / "t.csv").write_text("y,c,d,t\n1,a,2,3\n")
    refused(tmp_path, partial(prepare_table, [tmp_path / "t.csv"], **TABLE | given), match=match)


def test_headers_and_files_of_a_table_are_checked(tmp_path):
    path = tmp_path / "t.csv"
    call = partial(prepare_table, [path], **TABLE)
    path.write_text("y,c,d,t,c\n")
    refused(tmp_path, call, match=r"t\.csv: its header names 'c' more than once")
    path.write_text("y,c,d,t\n")
    refused(tmp_path, call, match=r"no rows in the training split: 0 rows of t\.csv")
    path.write_bytes(b"y,c,d,t,\xff\n1,2,3,4,5\n")
    refused(tmp_path, call, match=r"t\.csv line 1: .*; try --encoding latin-1$")
    path.write_bytes("y,c,d,t\n".encode("utf-16"))
    refused(tmp_path, call, match=r"t\.csv line 1: .*; it looks like UTF-16: convert it to UTF-8$")
    pl.DataFrame({"y": [1]}).write_parquet(path)
    refused(tmp_path, call, match=r"t\.csv has no column 'd', 'c', 't'")
    path.write_bytes(path.read_bytes()[:-40])
    refused(tmp_path, call, match=r"t\.csv is no readable Parquet file")


CHILD = """
import resource, sys
from pathlib import Path
from mixdim.data import sources
from mixdim.data.prepare import prepare_criteo
sources.BLOCK = 20_000  # so that rows on their way fit and only ids.npy does not
for limit in (1_000, 60_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        prepare_criteo([Path(sys.argv[1])], sys.argv[2])
    except OSError as error:
        print(limit, error)
"""


def test_a_disk_that_takes_no_more_is_one_clear_line(tmp_path):
    (tmp_path / "raw").write_text(f"{GOOD}\n" * 1000)
    command = [sys.executable, "-c", CHILD, str(tmp_path / "raw"), str(tmp_path / "out")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    told = f"cannot write {tmp_path / 'out'}: File too large"
    assert result.stdout == f"1000 {told}\n60000 {told}\n"
    assert not (tmp_path / "out").exists()
