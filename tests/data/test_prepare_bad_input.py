"""What `prepare` says of input that is wrong; a refused preparation leaves nothing behind."""

import gzip
import io
import subprocess
import sys
import zipfile
from functools import partial

import numpy as np
import polars as pl
import pytest

from mixdim.data import sources
from mixdim.data.folder import read_meta
from mixdim.data.public.criteo import prepare_criteo
from mixdim.data.public.movielens import prepare_movielens
from mixdim.data.table import prepare_table

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


def file_of(write):
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def write_zip(file):
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("movies.csv", "x")


LINE, ZIP, PARQUET = GOOD.encode(), file_of(write_zip), file_of(pl.DataFrame({"y": [1]}).write_parquet)


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


# What cannot be prepared at all

RATED = b"userId,movieId,rating,timestamp\n"
GOOD_TABLE = b"y,c,d,t\n1,a,2,3\n"


@pytest.mark.parametrize(
    ("prepare", "name", "content", "given", "match"),
    [
        (prepare_criteo, "raw", None, {}, "raw does not exist"),
        (prepare_criteo, ".", None, {}, "is a directory"),
        (prepare_criteo, None, None, {}, "at least one file"),
        (prepare_criteo, "raw", b"", {}, "raw is empty"),
        (prepare_criteo, "raw", gzip.compress(b""), {}, "raw is empty"),
        (prepare_criteo, "raw", b"\n\n", {}, "no rows in the training split: 0 rows of raw"),
        (prepare_criteo, "raw", LINE, {"layout": "x"}, "layout must be 'kaggle' or 'terabyte', got 'x'"),
        (prepare_criteo, "a.txt", LINE, {"layout": "terabyte"}, r"a\.txt: .* day_0 to day_23"),
        (prepare_criteo, "day_24", LINE, {"layout": "terabyte"}, "day_24: "),
        (prepare_criteo, "day_23", LINE, {"layout": "terabyte"}, "no rows .*: 1 rows of day_23"),
        (prepare_criteo, "raw", LINE, {"rows": 0}, "rows must be >= 1, got 0"),
        (prepare_criteo, "raw", LINE, {"min_count": 0}, "min_count must be >= 1, got 0"),
        (prepare_criteo, "raw", LINE, {"max_bad": -1}, "max_bad must be >= 0, got -1"),
        (prepare_movielens, "raw", None, {}, "does not exist"),
        (prepare_movielens, "raw", b"hello\n", {}, "raw has no MovieLens ratings: its first .* 'hello'"),
        (prepare_movielens, "raw", b"userId,rating,timestamp\n1,2,3\n", {}, "has no column movieId"),
        (prepare_movielens, "raw", b"userId,userId,movieId,rating,timestamp\n", {}, "a column twice"),
        (prepare_movielens, "raw", RATED, {}, "no rows in the training split"),
        (prepare_movielens, "raw", RATED, {"split": "x"}, "must be 'random' or 'time', got 'x'"),
        (prepare_movielens, ".", None, {}, r"has no ratings: none of ratings\.csv"),
        (prepare_movielens, "x.zip", ZIP, {}, r"x\.zip has no ratings"),
        (prepare_movielens, "x.zip", ZIP[:-30], {}, r"x\.zip cannot be unpacked"),
        (
            prepare_table,
            "t.csv",
            GOOD_TABLE,
            {"target": "z"},
            r"t\.csv has no column 'z'; it has y, c",
        ),
        (prepare_table, "t.csv", GOOD_TABLE, {"categorical": ["c", "z"]}, "has no column 'z'"),
        (prepare_table, "t.csv", GOOD_TABLE, {"dense": ["z"]}, "has no column 'z'"),
        (prepare_table, "t.csv", GOOD_TABLE, {"bags": {"z": "|"}}, "has no column 'z'"),
        (prepare_table, "t.csv", GOOD_TABLE, {"split": "time:z"}, "has no column 'z'"),
        (prepare_table, "t.csv", GOOD_TABLE, {"categorical": []}, "must name at least one column"),
        (prepare_table, "t.csv", GOOD_TABLE, {"categorical": ["c", "c"]}, "column 'c' is given twice"),
        (prepare_table, "t.csv", GOOD_TABLE, {"categorical": ["c", "y"]}, "column 'y' is the target"),
        (prepare_table, "t.csv", GOOD_TABLE, {"bags": {"c": ""}}, "bag 'c' needs the mark"),
        (prepare_table, "t.csv", GOOD_TABLE, {"bags": {"a/b": "|"}}, "'a/b' cannot be a file name"),
        (prepare_table, "t.csv", GOOD_TABLE, {"task": "x"}, "must be 'binary' or 'rating', got 'x'"),
        (
            prepare_table,
            "t.csv",
            GOOD_TABLE,
            {"split": "x"},
            "'time:COLUMN' or 'column:COLUMN', got 'x'",
        ),
        (prepare_table, "t.csv", GOOD_TABLE, {"split": "time:"}, "split must be"),
        (prepare_table, "t.csv", GOOD_TABLE, {"separator": ";;"}, "one ASCII character, got ';;'"),
        (prepare_table, "t.csv", GOOD_TABLE, {"separator": ";"}, "has no column 'y'"),
        (prepare_table, "t.csv", GOOD_TABLE, {"encoding": "x"}, "encoding 'x' is unknown"),
        (prepare_table, "t.csv", GOOD_TABLE, {"encoding": "utf-16"}, "encoding must extend ASCII"),
        (prepare_table, "t.csv", b"y,c,d,t,c\n", {}, r"t\.csv: its header names 'c' more than once"),
        (prepare_table, "t.csv", b"y,c,d,t\n", {}, r"no rows in the training split: 0 rows of t\.csv"),
        (prepare_table, "t.csv", b"y,c,d,t,\xff\n", {}, r"line 1: .*; try --encoding latin-1$"),
        (prepare_table, "t.csv", "y".encode("utf-16"), {}, "looks like UTF-16: convert it to UTF-8$"),
        (prepare_table, "t.csv", PARQUET, {}, r"t\.csv has no column 'd', 'c', 't'"),
        (prepare_table, "t.csv", PARQUET[:-40], {}, r"t\.csv is no readable Parquet file"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # bytes of archives have times
)
def test_what_cannot_be_prepared_is_one_line(tmp_path, prepare, name, content, given, match):
    paths = [] if name is None else [tmp_path / name]
    if content is not None:
        paths[0].write_bytes(content)
    raw = paths[0] if prepare is prepare_movielens else paths
    given = (TABLE if prepare is prepare_table else {}) | given
    refused(tmp_path, partial(prepare, raw, **given), match=match, error=(ValueError, OSError))


CHILD = """
import resource, sys
from pathlib import Path
from mixdim.data import sources
from mixdim.data.public.criteo import prepare_criteo
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
