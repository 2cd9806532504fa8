"""What a table looks like to one who sees it for the first time; the proposed command works."""

import gzip
import random
import shlex

import polars as pl
import pytest

import mixdim.data
from commands import complaint, output
from mixdim.data import proposal
from mixdim.data.guesses import guess
from mixdim.data.proposal import propose


def rows(count=300):
    rng = random.Random(0)
    return [
        {
            "row": i,
            "userId": rng.randrange(40),
            "book, title": f"t{rng.randrange(30)}",
            "price": f"{rng.random():.2f}",
            "hour": rng.randrange(24),
            "tags": "|".join(rng.choices("abc", k=2)),
            "day": f"2024-01-{rng.randrange(1, 29):02d}",
            "review": "word " * 12 + str(i),
            "nothing": None,
            "clicked": rng.choice(["yes", "no"]),
            "rating": rng.randrange(1, 11),
        }
        for i in range(count)
    ]


ROLES = {
    "row": "leave out",
    "userId": "categorical",
    "book, title": "categorical",
    "price": "dense",
    "hour": "categorical",
    "tags": "bag",
    "day": "time",
    "review": "leave out",
    "nothing": "leave out",
    "clicked": "target",
    "rating": "leave out",
}


def write(path, frame):
    if path.suffix == ".parquet":
        frame.write_parquet(path)
    else:
        data = frame.write_csv().encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["books.csv", "books.csv.gz", "books.parquet"])
def test_the_proposed_command_prepares_the_table_and_looking_changes_nothing(
    capsys, tmp_path, monkeypatch, name
):
    monkeypatch.chdir(tmp_path)
    raw = write(tmp_path / name, pl.DataFrame(rows()))
    found = propose([raw])
    assert {column.name: found.role(column) for column in found.columns} == ROLES
    printed = output(capsys, "prepare", "table", name).out
    assert [path.name for path in tmp_path.iterdir()] == [name]
    command = shlex.split(printed.splitlines()[-1])
    assert command[:6] == ["mixdim", "prepare", "table", name, "--out", "books"]
    output(capsys, *command[1:])
    dataset = mixdim.data.open(tmp_path / "books")
    assert dataset.feature_names == ["userId", "book, title", "hour", "tags"]
    assert dataset.num_dense == 1
    assert "--out books-prepared" in output(capsys, "prepare", "table", name).out


def test_ratings_are_the_target_if_there_are_no_labels(capsys, tmp_path):
    raw = write(tmp_path / "t.csv", pl.DataFrame(rows()).drop("clicked"))
    printed = output(capsys, "prepare", "table", raw).out
    assert "--target rating --task rating" in printed
    assert "For clicks instead of ratings: --target 'rating >= NUMBER'" in printed
    assert "--where" not in printed


def test_a_rating_that_is_mostly_0_may_be_none(capsys, tmp_path):
    ratings = pl.DataFrame({"user": [*range(9)] * 4, "book rating": [0, 0, 0, 7, 8, 0] * 6})
    raw = write(tmp_path / "t.csv", ratings)
    printed = output(capsys, "prepare", "table", raw).out
    option = """--where '"book rating" > 0'"""
    assert f"0 is the most frequent rating; if it stands for none: {option}.\n" in printed
    command = f"{printed.splitlines()[-1]} {option} --out {tmp_path / 'made'}"
    output(capsys, *shlex.split(command)[1:])
    assert mixdim.data.open(tmp_path / "made").meta.rows["kept"] == 12


def test_a_table_without_target_features_or_rows_says_so(capsys, tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1.5,x\n2.5,x\n")
    printed = output(capsys, "prepare", "table", tmp_path / "t.csv").out
    assert "No column looks like a target" in printed
    assert "No column looks categorical" in printed
    assert "--target COLUMN" in printed
    (tmp_path / "t.csv").write_text("a,b\n")
    assert "2 columns, 0 rows looked at" in output(capsys, "prepare", "table", tmp_path / "t.csv").out


@pytest.mark.parametrize("header", ["click,city", "click,cité"])
def test_text_that_is_not_utf8_is_proposed_as_latin_1(capsys, tmp_path, header):
    raw = tmp_path / "t.csv"
    raw.write_bytes(f"{header}\n1,Köln\n0,Rom\n1,Rom\n".encode("latin-1"))
    printed = output(capsys, "prepare", "table", raw).out
    assert "--encoding latin-1" in printed.splitlines()[-1]
    raw.write_bytes(header.encode("utf-16"))
    assert "it looks like UTF-16" in complaint(capsys, "prepare", "table", raw)


def test_only_the_first_rows_are_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr(proposal, "SAMPLE", 50)
    for name in ("t.csv", "t.parquet"):
        raw = write(tmp_path / name, pl.DataFrame(rows(200)))
        assert propose([raw]).rows == 50
    monkeypatch.setattr(proposal, "SAMPLE_FIELDS", 110)
    assert propose([raw]).rows == 10


def test_parts_of_a_description_are_asked_to_be_whole(capsys, tmp_path):
    raw = write(tmp_path / "t.csv", pl.DataFrame(rows()))
    told = complaint(capsys, "prepare", "table", raw, "--target", "clicked")
    assert "missing option --out, --categorical;" in told
    assert "missing option --out, --target, --cat" in complaint(
        capsys, "prepare", "table", raw, "--where", "hour > 3"
    )
    assert "does not exist" in complaint(capsys, "prepare", "table", tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("name", "values", "kind"),
    [
        ("x", [True, False, True], "binary"),
        ("x", ["T", "f", None], "binary"),
        ("x", ["a", "b", "a"], "categorical"),
        ("x", ["3", "3", "3"], "leave out"),
        ("x", list(range(60, 0, -1)), "dense"),
        ("x", list(range(60)), "leave out"),
        ("user_id", [*range(60), 3], "categorical"),
        ("user_id", list(range(60, 0, -1)), "leave out"),
        ("timestamp", [1_700_000_000, 1_700_000_001], "time"),
        ("time", [3, 4, 3], "categorical"),
        ("x", [f"v{i}" for i in range(30)], "leave out"),
        ("x", [["a"], ["b", "c"]], "bag"),
        ("x", [{"a": 1}], "leave out"),
        ("x", [b"1", b"0"], "leave out"),
        ("x", [float("nan"), 1.5], "dense"),
        ("x", ["nan", "1.5"], "dense"),
        ("x", ["2024-01-01", "2024-01-02"], "time"),
        ("x", ["2024-01-01", "soon", "soon"], "categorical"),
    ],
)
def test_a_column_is_guessed_from_its_name_and_values(name, values, kind):
    assert guess(name, pl.Series(values)).kind == kind
