import numpy as np
import polars as pl
import pytest
from small_folder import change_page, sign_again, write_small_folder

from mixdim.data import Dataset
from mixdim.data.folder import PIECES, SAMPLE, fingerprint, read_meta
from mixdim.data.inspect import inspect


def test_a_finished_folder_says_what_it_holds(tmp_path):
    meta = read_meta(write_small_folder(tmp_path / "data"))
    assert [feature.name for feature in meta.features] == ["user", "item"]
    assert meta.splits == {"train": (0, 70), "validation": (70, 85), "test": (85, 100)}
    assert meta.num_rows == 100
    assert list(tmp_path.iterdir()) == [tmp_path / "data"]


@pytest.mark.parametrize("name", ["ids.npy", "target.npy", "dense.npy", "vocabulary/0.parquet"])
def test_a_damaged_file_is_named(tmp_path, name):
    folder = write_small_folder(tmp_path / "data")
    good = (folder / name).read_bytes()
    (folder / name).write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(ValueError, match=f"{name} was changed after it was prepared"):
        read_meta(folder)
    (folder / name).write_bytes(good[:-1])
    with pytest.raises(ValueError, match=f"{name} has .* bytes instead of"):
        read_meta(folder)
    (folder / name).unlink()
    with pytest.raises(ValueError, match=f"{name} is missing"):
        read_meta(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format="other"), "'mixdim.data'"),
        (lambda d: d.update(version=2), "reads version 1, got 2"),
        (lambda d: d.pop("splits"), "'splits' is missing"),
        (lambda d: d["features"][0].pop("rows"), "malformed"),
        (lambda d: d.update(files=3), "malformed"),
        (lambda d: d.update(task="guess"), "task must be 'binary' or 'rating', got 'guess'"),
        (lambda d: d["splits"].update(train=[0, 1_000_000_000]), "'validation' must begin at row 1,000"),
        (lambda d: d["splits"].update(train=[1, 70]), "'train' must begin at row 0, .* got 1"),
        (lambda d: d["splits"].update(test=[85, 80]), "'test' ends at row 80, before it begins at 85"),
        (lambda d: d["splits"].update(test=[85, 1e2]), "must be a whole number, got 100.0"),
        (lambda d: d["splits"].update(test=[85]), "first row and the row after its last"),
        (lambda d: d["splits"].update(test=[85, 101]), "end at row 101 of 100"),
        (lambda d: d["features"][0].update(rows=0), "rows of feature 'user' must be at least 1, got 0"),
        (lambda d: d["features"][0].update(rows=9.5), "must be a whole number, got 9.5"),
        (lambda d: d["features"][1].update(out_of_vocabulary=5), "one of its rows 0 to 4, got 5"),
        (lambda d: d["features"][1].update(out_of_vocabulary=-1), "at least 0, got -1"),
        (lambda d: d["features"][1].update(source_values=None), "must be a whole number, got None"),
        (lambda d: d["features"][1].update(name="user"), "column 'user' is there twice"),
        (lambda d: d["features"][1].update(name=7), "must be text, got 7"),
        (lambda d: d["features"][1].update(bag="no"), "must be true or false, got 'no'"),
        (lambda d: d["features"][1].update(bag=True), "lack bags/item.values.npy"),
        (lambda d: d["files"].pop("ids.npy"), "lack ids.npy"),
    ],
)
def test_a_malformed_page_says_what_is_wrong(tmp_path, change, message):
    folder = write_small_folder(tmp_path / "data")
    change_page(folder, change)
    for read in (read_meta, Dataset, inspect):
        with pytest.raises(ValueError, match=message) as raised:
            read(folder)
        assert "meta.json is malformed" in str(raised.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: all_end_at(d, 1_000), r"ids.npy has shape \(100, 2\) instead of \(1000, 2\)"),
        (lambda d: d.update(dense=["x"]), r"dense.npy has shape \(100, 2\) instead of \(100, 1\)"),
        (lambda d: d["features"].pop(1), r"ids.npy has shape \(100, 2\) instead of \(100, 1\)"),
    ],
)
def test_a_page_must_speak_of_the_arrays_that_are_there(tmp_path, change, message):
    folder = write_small_folder(tmp_path / "data", bags=True)
    change_page(folder, change)
    for read in (Dataset, inspect):
        with pytest.raises(ValueError, match=message):
            read(folder)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("ids.npy", lambda a: a.astype(np.int64), "ids.npy holds int64 instead of int32"),
        ("target.npy", lambda a: a.astype(np.float64), "target.npy holds float64 instead of float32"),
        ("target.npy", lambda a: a[:99], r"target.npy has shape \(99,\) instead of \(100,\)"),
        ("bags/tags.offsets.npy", lambda a: a[1:], r"offsets.npy has shape \(100,\) instead of"),
        ("bags/tags.offsets.npy", lambda a: a + 1, "must rise from 0 to the .* values there are"),
        ("bags/tags.values.npy", lambda a: a[:-1], "must rise from 0 to the .* values there are"),
        ("bags/tags.values.npy", lambda a: a[:, None], "values.npy has shape"),
    ],
)
def test_arrays_must_be_what_the_format_says(tmp_path, name, change, message):
    folder = write_small_folder(tmp_path / "data", bags=True)
    np.save(folder / name, change(np.load(folder / name)))
    sign_again(folder, name)
    for read in (Dataset, inspect):
        with pytest.raises(ValueError, match=message):
            read(folder)


def test_a_vocabulary_must_have_a_value_for_each_row(tmp_path):
    folder = write_small_folder(tmp_path / "data")
    path = folder / "vocabulary" / "0.parquet"
    pl.read_parquet(path).head(8).write_parquet(path)
    sign_again(folder, "vocabulary/0.parquet")
    for read in (lambda folder: Dataset(folder).counts, inspect):
        with pytest.raises(ValueError, match=r"0\.parquet has 8 values, and feature 'user' has 9 rows"):
            read(folder)


def all_end_at(document, rows):
    document["splits"]["test"][1] = document["num_rows"] = rows


def test_what_is_no_folder_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no such directory"):
        read_meta(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"it has no meta\.json"):
        read_meta(tmp_path)


def test_a_large_file_is_fingerprinted_by_pieces_from_end_to_end(tmp_path):
    path = tmp_path / "large"
    size = SAMPLE * PIECES + 5 * SAMPLE
    with path.open("wb") as file:
        file.truncate(size)
    before = fingerprint(path)
    for place in (0, size - 1):
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"x")
        assert fingerprint(path) != before
        before = fingerprint(path)
