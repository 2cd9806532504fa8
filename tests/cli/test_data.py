import json
import sys
import zipfile

import numpy as np
import pytest

import mixdim.data
from commands import complaint, output


def write_table(path):
    lines = ["click,site,user,age,tags", "1,a,u1,3,x|y", "0,b,u2,,", "1,a,u1,4.5,y", "0,a,u3,2,z"]
    path.write_text("\n".join([lines[0], *lines[1:] * 10]) + "\n")
    return path


TABLE = ("--target", "click", "--categorical", "site,user", "--dense", "age", "--bag", "tags:|")


def test_a_table_is_prepared_and_inspected(capsys, tmp_path):
    raw, out = write_table(tmp_path / "clicks.csv"), tmp_path / "clicks"
    printed = output(capsys, "prepare", "table", str(raw), "--out", str(out), *TABLE)
    assert "3 features, rows: train 32, validation 4, test 4" in printed.out
    assert f"next: mixdim inspect {out}" in printed.out
    dataset = mixdim.data.open(out)
    assert dataset.feature_names == ["site", "user", "tags"]
    picture = tmp_path / "popularity.svg"
    found = json.loads(output(capsys, "inspect", str(out), "--json", "--plot", str(picture)).out)
    assert [feature["name"] for feature in found["features"]] == ["site", "user", "tags"]
    assert picture.read_text().startswith("<?xml")
    assert "Prepared data: binary task, 40 rows, 3 features" in output(capsys, "inspect", str(out)).out


def test_dense_columns_follow_rules_that_are_shown_or_stay_as_they_are(capsys, tmp_path):
    raw, out = write_table(tmp_path / "clicks.csv"), tmp_path / "clicks"
    told = ("prepare", "table", str(raw), "--out", str(out), *TABLE)
    printed = output(capsys, *told).out
    assert "dense: 1 standardised by the training split, 1 more for missing values\n" in printed
    assert "unknown values: none in validation and test\n" in printed
    (column,) = json.loads(output(capsys, "inspect", str(out), "--json").out)["dense"]
    assert (column["name"], column["tells_missing"]) == ("age", True)
    assert column["rule"].startswith("(x - 3.")
    assert f"age           {column['rule']}" in output(capsys, "inspect", str(out)).out
    assert "dense: " not in output(capsys, *told, "--dense-as-is", "--overwrite").out
    assert "x, as it was given" in output(capsys, "inspect", str(out)).out
    assert np.load(out / "dense.npy").max() == 4.5


def test_a_dense_column_of_one_value_is_named(capsys, tmp_path):
    (tmp_path / "t.csv").write_text("y,c,d\n" + "1,a,7\n" * 20)
    told = ("--target", "y", "--categorical", "c", "--dense", "d")
    printed = output(capsys, "prepare", "table", tmp_path / "t.csv", "--out", tmp_path / "t", *told).out
    assert (
        "dense: 1 standardised by the training split, always 0 as training has one value: d\n" in printed
    )
    assert (
        "always 0: training has no two different numbers"
        in output(capsys, "inspect", tmp_path / "t").out
    )


def test_rows_kept_by_where_are_counted(capsys, tmp_path):
    raw, out = write_table(tmp_path / "clicks.csv"), tmp_path / "out"
    chosen = ("--target", "age >= 3", "--where", "age != ''", "--categorical", "s*,user")
    printed = output(capsys, "prepare", "table", str(raw), "--out", str(out), *chosen).out
    assert "2 features, rows: train 24, validation 3, test 3\n30 of 40 rows kept by --where\n" in printed
    said = complaint(capsys, "prepare", "table", str(raw), "--out", "x", *TABLE, "--where", "age > > 3")
    assert "where 'age > > 3', '>' at character 7: a number or a text in quotes must come here" in said


def test_movielens_is_prepared_from_its_zip(capsys, tmp_path):
    ratings = "".join(
        f"{u}::{i}::{(u + i) % 5 + 1}::{u * i}\n" for u in range(1, 21) for i in range(1, 11)
    )
    with zipfile.ZipFile(tmp_path / "ml-1m.zip", "w") as archive:
        archive.writestr("ml-1m/ratings.dat", ratings)
    out = tmp_path / "ml"
    printed = output(capsys, "prepare", "movielens", str(tmp_path / "ml-1m.zip"), "--out", str(out))
    assert "2 features, rows: train 160, validation 20, test 20" in printed.out


def test_movielens_is_prepared_as_clicks_and_what_the_release_has_not_is_said(capsys, tmp_path):
    ratings = "".join(f"{u}::{i}::{(u + i) % 5 + 1}::{u}\n" for u in range(1, 21) for i in range(1, 11))
    (tmp_path / "ratings.dat").write_text(ratings)
    (tmp_path / "movies.dat").write_text("".join(f"{i}::Film (199{i % 10})::Drama\n" for i in range(11)))
    told = ("prepare", "movielens", str(tmp_path), "--as", "clicks", "--every", "2")
    printed = output(capsys, *told, "--out", str(tmp_path / "ml")).out
    assert "4 features, rows: train 80, validation 10, test 10" in printed
    assert "not in this release: gender, age, occupation, zip\n" in printed
    assert mixdim.data.open(tmp_path / "ml").task == "binary"


def test_criteo_is_prepared_and_bad_rows_are_counted(capsys, tmp_path):
    row = "\t".join(["1", *["5"] * 13, *["0000000a"] * 26])
    raw, out = tmp_path / "train.txt", tmp_path / "criteo"
    raw.write_text("\n".join([row] * 20 + ["garbage"] + [row] * 8) + "\n")
    printed = output(capsys, "prepare", "criteo", str(raw), "--out", str(out), code=2)
    assert "line 21" in printed.err
    assert not out.exists()
    printed = output(capsys, "prepare", "criteo", str(raw), "--out", str(out), "--max-bad", "1")
    assert "26 features, rows: train 24, validation 2, test 2" in printed.out
    assert "skipped malformed rows: 1 wrong number of fields" in printed.out


@pytest.mark.parametrize("kind", ["criteo-like", "movielens-like"])
def test_synthetic_data_is_generated_and_planned(capsys, tmp_path, kind):
    out = tmp_path / "made"
    output(
        capsys,
        "generate",
        kind,
        "--rows",
        "2000",
        "--out",
        str(out),
        "--scale",
        "0.001",
        "--skew",
        "1.1",
    )
    dataset = mixdim.data.open(out)
    assert len(np.load(out / "target.npy")) == 2000
    plan = mixdim.plan(dataset, temperature=0.3, budget="2M", bands=4)
    assert plan.num_parameters <= 2_000_000
    options = ("--temperature", "0.3", "--budget", "2M", "--bands", "4", "--json")
    assert mixdim.Plan.from_json(output(capsys, "plan", "--plan-from", str(out), *options).out) == plan


def test_realistic_clicks_have_the_asked_share_of_unseen_lookups(capsys, tmp_path):
    out = tmp_path / "made"
    words = ("--realistic", "--unseen", "0.3", "--rows", "30000", "--out", str(out))
    output(capsys, "generate", "criteo-like", *words)
    found = json.loads(output(capsys, "inspect", str(out), "--json").out)
    assert found["features"][2]["out_of_vocabulary_test"] == pytest.approx(0.3, abs=0.04)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prepare", "criteo", "/nowhere.txt", "--out", "x"], "/nowhere.txt"),
        (["prepare", "movielens", "/nowhere", "--out", "x"], "/nowhere"),
        (["prepare", "table", "/nowhere.csv", "--out", "x", *TABLE], "/nowhere.csv"),
        (["prepare", "table", "t.csv", "--out", "x", *TABLE[:-1], "tags"], "--bag must be a column"),
        (["generate", "music-like", "--rows", "9", "--out", "x"], "criteo-like or movielens-like"),
        (["generate", "criteo-like", "--rows", "0", "--out", "x"], "rows must be"),
        (["generate", "criteo-like", "--rows", "1" + "0" * 18, "--out", "x"], "rows must fit the disk"),
        (["generate", "criteo-like", "--rows", "1" + "0" * 20, "--out", "x"], "rows must be below 2^63"),
        (["generate", "movielens-like", "--realistic", "--rows", "99", "--out", "x"], "of criteo-like"),
        (["generate", "criteo-like", "--unseen", "0.4", "--rows", "99", "--out", "x"], "--realistic"),
        (
            ["generate", "criteo-like", "--realistic", "--unseen", "1.5", "--rows", "99", "--out", "x"],
            "unseen must be above 0 and below 1, got 1.5",
        ),
        (["download", "netflix"], "netflix"),
        (["inspect", "/nowhere"], "there is no such directory"),
    ],
)
def test_bad_input_is_one_clear_line(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in complaint(capsys, *arguments)
    assert not (tmp_path / "x").exists()


def test_an_existing_folder_stays_unless_asked(capsys, tmp_path):
    raw, out = write_table(tmp_path / "clicks.csv"), tmp_path / "clicks"
    arguments = ("prepare", "table", str(raw), "--out", str(out), *TABLE)
    output(capsys, *arguments)
    assert "--overwrite replaces it" in output(capsys, *arguments, code=2).err
    output(capsys, *arguments, "--overwrite")


def test_a_missing_extra_is_named(capsys, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("mixdim.data")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "polars", None)
    told = output(capsys, "inspect", str(tmp_path), code=2).err
    assert told == "mixdim: this command needs polars: pip install 'mixdim[all]'\n"
