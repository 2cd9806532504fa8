"""Tables of tens of thousands of columns: what is done for each must not grow with their number."""

import csv
import resource
import sys

import numpy as np
import polars as pl
import pytest

from mixdim.data import Dataset, lines, table_files
from mixdim.data.inspect import inspect
from mixdim.data.table import prepare_table


class Name(str):
    """A column's name that counts how often names are compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other):
        Name.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def write_table(path, columns, rows=12):
    lines = [[f"c{i}" for i in range(columns)], *([str(row % 3)] * columns for row in range(rows))]
    lines = [["y", *lines[0]], *([str(row % 2), *line] for row, line in enumerate(lines[1:]))]
    path.write_text("\n".join(map(",".join, lines)) + "\n")
    return lines[0][1:]


def prepare(tmp_path, columns, names=list):
    raw, out = tmp_path / f"{columns}.csv", tmp_path / f"{columns}"
    found = names(write_table(raw, columns))
    half = columns // 2
    prepare_table(
        [raw],
        out,
        target=names(["y"])[0],
        categorical=found[:half],
        dense=found[half:],
        dense_as_is=True,
    )
    return out


def test_names_are_compared_a_few_times_however_many_there_are(tmp_path, monkeypatch):
    def names(texts):
        return [Name(text) for text in texts]

    read = csv.reader
    monkeypatch.setattr(
        table_files.csv, "reader", lambda *given, **options: map(names, read(*given, **options))
    )
    counts = []
    for columns in (40, 160):
        Name.compared = 0
        prepare(tmp_path, columns, names)
        counts.append(Name.compared)
    assert 0 < counts[1] < 6 * counts[0]


def queries_of(call):
    """How many queries polars is asked."""
    asked = []

    def count(frame, event, argument):
        if event == "c_call" and argument.__name__ == "collect":
            asked.append(argument)

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(before)
    return len(asked)


def test_all_numbers_are_read_in_as_many_queries_as_one(tmp_path):
    def dense(columns):
        names = write_table(tmp_path / "t.csv", columns)
        given = {"target": "y", "categorical": names[:1], "dense": names[1:], "overwrite": True}
        return queries_of(lambda: prepare_table([tmp_path / "t.csv"], tmp_path / "out", **given))

    assert dense(3) == dense(60) > 0


def test_opening_and_inspecting_asks_for_each_vocabulary_once(tmp_path):
    few, many = (prepare(tmp_path, columns) for columns in (8, 80))
    opened = [queries_of(lambda folder=folder: Dataset(folder).counts) for folder in (few, many)]
    inspected = [queries_of(lambda folder=folder: inspect(folder)) for folder in (few, many)]
    assert opened == inspected
    assert opened[1] <= 10 * opened[0]


def test_a_folder_of_very_many_bags_opens(tmp_path, monkeypatch):
    names = [f"b{n}" for n in range(150)]
    lines = [",".join(["y", *names]), *(",".join([str(n % 2), *["x|z"] * 150]) for n in range(10))]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    bags = dict.fromkeys(names, "|")
    prepare_table([tmp_path / "t.csv"], tmp_path / "out", target="y", categorical=[], bags=bags)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
        dataset = Dataset(tmp_path / "out")
        assert next(dataset.batches("train", batch_size=8)).bags["b149"][0].tolist() == [0, 1] * 8
        monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 300))
        with pytest.raises(OSError, match=r"maps 300 files of bags, .* open 300: see ulimit -n"):
            Dataset(tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_wide_table_holds_what_was_in_it(tmp_path):
    dataset = Dataset(prepare(tmp_path, 200))
    assert (len(dataset.feature_names), dataset.num_dense) == (100, 100)
    dense, ids = (np.load(dataset.path / f"{name}.npy") for name in ("dense", "ids"))
    assert sorted(dense[:, 0].tolist()) == sorted([0.0, 1.0, 2.0] * 4)
    assert (dense == dense[:, :1]).all()
    assert (ids == ids[:, :1]).all()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_names_that_look_like_patterns_are_names(tmp_path, kind):
    frame = pl.DataFrame({"y": [0, 1] * 5, "*": [3] * 10, "^.*$": range(10), "^y": ["a", "b"] * 5})
    path = tmp_path / f"t.{kind}"
    frame.write_csv(path) if kind == "csv" else frame.write_parquet(path)
    prepare_table(
        [path],
        tmp_path / "out",
        target="y",
        dense=["*", "^.*$"],
        categorical=["^y"],
        split="position",
        dense_as_is=True,
    )
    assert np.load(tmp_path / "out" / "dense.npy").tolist() == [[3, n] for n in range(10)]
    assert Dataset(tmp_path / "out").cardinalities == {"^y": 3}


def test_a_number_called_target_is_told_from_the_target(tmp_path):
    (tmp_path / "t.csv").write_text("y,target,c\n1.5,x,a\nz,2,a\n3,4,b\n")
    given = {"target": "y", "dense": ["target"], "categorical": ["c"], "task": "rating"}
    with pytest.raises(ValueError, match=r"2 of 3 rows .*\(2 target is not a number\)"):
        prepare_table([tmp_path / "t.csv"], tmp_path / "out", **given)


ODD_TYPES = {
    "list": pl.Series([[1]] * 10),
    "struct": pl.Series([{"a": 1}] * 10),
    "bytes": pl.Series([b"1"] * 10),
    "array": pl.Series([[1, 2]] * 10, dtype=pl.Array(pl.Int64, 2)),
}


@pytest.mark.parametrize("kind", ODD_TYPES)
def test_values_of_odd_types_are_no_numbers_no_times_and_no_ids(tmp_path, kind):
    path, out = tmp_path / "t.parquet", tmp_path / "out"
    pl.DataFrame({"y": [0, 1] * 5, "c": ["a"] * 10, "odd": ODD_TYPES[kind]}).write_parquet(path)
    with pytest.raises(ValueError, match="10 odd is not a number"):
        prepare_table([path], out, target="y", categorical=["c"], dense=["odd"])
    with pytest.raises(ValueError, match="10 odd is not a time"):
        prepare_table([path], out, target="y", categorical=["c"], split="time:odd")
    with pytest.raises(ValueError, match="column 'odd' has values of type"):
        prepare_table([path], out, target="y", categorical=["c", "odd"])


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["7", "8", ""])])
def test_texts_of_few_values_are_texts(tmp_path, kind):
    path, out = tmp_path / "t.parquet", tmp_path / "out"
    text = pl.Series(["7", "8", "", None, "7"] * 2)
    frame = pl.DataFrame({"y": [0, 1] * 5, "c": text.cast(kind), "d": text.cast(kind)})
    frame.write_parquet(path)
    prepare_table(
        [path], out, target="y", categorical=["c"], dense=["d"], split="position", dense_as_is=True
    )
    assert np.load(out / "dense.npy")[:5, 0].tolist() == [7, 8, 0, 0, 7]
    values = pl.read_parquet(out / "vocabulary" / "0.parquet")
    assert values["value"].to_list()[:2] == ["7", None]
    assert Dataset(out).cardinalities == {"c": 4}


def test_quoted_rows_wait_in_frames_of_bounded_size(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "QUOTED_FIELDS", 20)
    names = write_table(tmp_path / "t.csv", 8)
    text = (tmp_path / "t.csv").read_text().replace(",1", ',"1"')
    (tmp_path / "t.csv").write_text(text)
    sizes = []
    rows = lines._rows
    monkeypatch.setattr(lines, "_rows", lambda *given: sizes.append(len(given[1])) or rows(*given))
    prepare_table([tmp_path / "t.csv"], tmp_path / "out", target="y", categorical=names)
    assert sizes == [2] * 6 + [0]
