"""What a table looks like to one who sees it for the first time; the proposed command works."""

import gzip
import random
import re
import shlex
import zipfile

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


def test_guesses_are_by_a_bounded_number_of_rows_from_everywhere(tmp_path, monkeypatch):
    monkeypatch.setattr(proposal, "SAMPLE", 50)
    for name in ("t.csv", "t.parquet"):
        raw = write(tmp_path / name, pl.DataFrame(rows(200)))
        found = propose([raw])
        assert 25 < found.rows <= 50
        assert found.all_rows == 200
    monkeypatch.setattr(proposal, "SAMPLE_FIELDS", 110)
    assert 5 < propose([raw]).rows <= 10


def runs(capsys, tmp_path, monkeypatch, *files):
    """The command that is proposed, after it ran as it stands, and the data set that it made."""
    monkeypatch.chdir(tmp_path)
    printed = output(capsys, "prepare", "table", *files).out
    command = shlex.split(printed.splitlines()[-1])
    output(capsys, *command[1:])
    assert command[3 : 3 + len(files)] == [*files]
    return printed, mixdim.data.open(tmp_path / command[command.index("--out") + 1])


def late(first, last):
    """Lines of which the last are of another form, after more than are looked at to guess."""
    return "\n".join(
        ["city,price,clicked", *[f"c{n % 7},{n / 7:.2f},{n % 2}" for n in range(first)], *last, ""]
    )


@pytest.mark.parametrize(
    ("last", "option", "kept"),
    [
        ([], None, 900),
        (["Köln,1.5,1"], "--encoding latin-1", 901),
        (["a,1.5,", "b,2.5,"], "--where 'clicked is not null'", 900),
        (["a,2", "b,2,3,4,5", "c,n/a,1", "d,1,maybe"], "--max-bad 4", 900),
        (["Köln,1,", "x,oops,1"], "--where 'clicked is not null' --max-bad 1 --encoding latin-1", 900),
    ],
)
def test_what_is_wrong_late_in_a_file_is_in_the_command(
    capsys, tmp_path, monkeypatch, last, option, kept
):
    monkeypatch.setattr(proposal, "SAMPLE", 60)
    (tmp_path / "t.csv").write_bytes(late(900, last).encode("latin-1"))
    printed, dataset = runs(capsys, tmp_path, monkeypatch, "t.csv")
    assert option is None or option in printed.splitlines()[-1]
    assert dataset.meta.rows["kept"] == kept
    assert dataset.meta.dense_sources == ("price",)


def test_a_column_of_numbers_that_is_often_none_is_left_out(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(proposal, "SAMPLE", 60)
    texts = [f"c,unknown {n},{n % 2}" for n in range(300)]
    (tmp_path / "t.csv").write_text(late(900, []) + "\n".join(texts) + "\n")
    monkeypatch.setattr(proposal.pl.DataFrame, "gather_every", lambda frame, *_: frame.head(0))
    printed, dataset = runs(capsys, tmp_path, monkeypatch, "t.csv")
    assert re.search(r"price +leave out .* 300 rows: price is not a number", printed)
    assert dataset.meta.dense == ()


def test_a_file_without_header_gets_names_and_runs(capsys, tmp_path, monkeypatch):
    rng = random.Random(0)
    lines = [
        f"{rng.randrange(90)}\t{rng.randrange(70)}\t{rng.randrange(1, 6)}\t{893286638 + n}"
        for n in range(400)
    ]
    (tmp_path / "plays.tsv").write_text("\n".join(lines) + "\n")
    printed, dataset = runs(capsys, tmp_path, monkeypatch, "plays.tsv")
    assert "The first line is no header" in printed
    assert "--columns c1,c2,c3,c4" in printed
    assert dataset.meta.rows["kept"] == 400
    assert dataset.meta.task == "rating"
    named = ("--columns", "user,item,stars,at")
    assert "--target stars" not in printed
    assert "--categorical user,item" in output(capsys, "prepare", "table", "plays.tsv", *named).out


@pytest.mark.parametrize(
    ("lines", "header"),
    [
        (["1,2,3", "4,5,6"], False),
        (["a,b", "1,2", "3,4"], True),
        (["1,1,5", "1,2,7", "2,1,7"], False),
        (["red,x", "blue,y", "red,x"], False),
        (["color,y", "blue,y", "red,n"], True),
        (["2015,2016", "a,b", "c,d"], True),
        (["a,b"], True),
    ],
)
def test_a_header_is_told_from_a_first_row(tmp_path, lines, header):
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    assert (propose([tmp_path / "t.csv"]).form.columns is None) == header


def test_positives_only_are_proposed_with_negatives_and_what_tells_the_item_is_left_out(
    capsys, tmp_path, monkeypatch
):
    rng = random.Random(1)
    lines = ["customer,sku,brand,region,price,part"]
    for n in range(3000):
        user, item = rng.randrange(200), rng.randrange(50)
        part = "train" if n < 2500 else "test"
        lines.append(f"{user},{item},brand{item % 9},{user % 5}x,{item / 7:.3f},{part}")
    (tmp_path / "buys.csv").write_text("\n".join(lines) + "\n")
    printed, dataset = runs(capsys, tmp_path, monkeypatch, "buys.csv")
    options = (
        "--negatives 4 --negatives-of sku --negatives-for customer --categorical customer,sku,region"
    )
    assert f"{options} --split column:part" in printed
    assert re.search(r"brand +leave out .* goes with sku", printed)
    assert re.search(r"price +leave out .* goes with sku", printed)
    assert dataset.meta.splits["test"][1] == 5 * 3000


def test_hundreds_of_columns_are_grouped_in_a_table_and_a_command_of_a_screen(
    capsys, tmp_path, monkeypatch
):
    rng = random.Random(2)
    columns = {"label": [rng.randrange(2) for _ in range(200)]}
    for n in range(1, 191):
        columns[f"Var{n}"] = ["" if n % 19 == 0 else f"{rng.gauss(0, 1):.4f}" for _ in range(200)]
    for n in range(40):
        columns[f"{'num' if n % 2 else 'cat'}_{'abcdefghij'[n % 10]}{n}"] = [
            rng.random() if n % 2 else rng.choice("xyz") for _ in range(200)
        ]
    pl.DataFrame(columns).write_csv(tmp_path / "wide.csv")
    printed, dataset = runs(capsys, tmp_path, monkeypatch, "wide.csv")
    lines = printed.splitlines()
    assert len(lines) < 45
    assert len(lines[-1]) < 600
    assert "Var1..Var18 (18)" in printed
    assert "Var19, ... (10)" in printed
    assert "cat_*" in lines[-1]
    assert len(dataset.feature_names) == 20
    assert len(dataset.meta.dense_sources) == 180 + 20


def test_movielens_is_pointed_to_its_own_command(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ratings.dat").write_text("1::2::5::978300760\n")
    (tmp_path / "ratings.csv").write_text("userId,movieId,rating,timestamp\n1,2,3.5,978300760\n")
    (tmp_path / "u.data").write_text("1\t2\t5\t978300760\n")
    for name in ("ratings.dat", "ratings.csv", "u.data"):
        printed = output(capsys, "prepare", "table", name).out
        assert printed.splitlines()[-1] == f"  mixdim prepare movielens {name} --out movielens"
        output(capsys, *shlex.split(printed.splitlines()[-1])[1:], "--overwrite")


def test_other_ratings_in_a_folder_are_no_movielens(capsys, tmp_path):
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "ratings.csv").write_text("user_id,book_id,rating\n" + "1,2,5\n2,2,3\n" * 9)
    assert "prepare table" in output(capsys, "prepare", "table", tmp_path / "books").out


def test_a_zip_that_is_no_movielens_is_one_line(capsys, tmp_path):
    with zipfile.ZipFile(tmp_path / "x.xlsx", "w") as archive:
        archive.writestr("sheet.xml", "x")
    assert "x.xlsx is a zip archive: unpack it" in complaint(
        capsys, "prepare", "table", tmp_path / "x.xlsx"
    )


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
        ("x", ["April 20, 2016", "May 1, 2017"], "time"),
        ("x", ["2016/04/20 13:05", "2016/04/21 03:05"], "time"),
        ("x", ["2016-04-20T13:05:00+02:00", "2016-04-20T13:05:00Z"], "time"),
        ("x", ["20/04/2016", "03/04/2016"], "time"),
        ("ts", [1_461_157_500_123, 1_461_157_500_124], "time"),
        ("date", [20160420, 20160501, 20151231], "time"),
        ("part", ["train", "test", "train"], "split"),
        ("part", ["test", "test2", "train"], "categorical"),
    ],
)
def test_a_column_is_guessed_from_its_name_and_values(name, values, kind):
    assert guess(name, pl.Series(values)).kind == kind
