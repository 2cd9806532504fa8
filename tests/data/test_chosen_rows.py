"""Tables whose targets, rows and columns are chosen by conditions and patterns."""

import numpy as np
import polars as pl
import pytest

from mixdim.data import Dataset, sources
from mixdim.data.columns import match_columns
from mixdim.data.folder import read_meta
from mixdim.data.table import prepare_table

LINES = ["0,a,u1,5,x", "9,a,u2,6,y", "8,b,u1,,x", "3,b,u3,8,y", "10,a,u1,9,z"]
GIVEN = {"categorical": ["site", "user"], "split": "position"}


@pytest.fixture
def raw(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["rating,site,user,age,extra tag", *LINES * 4]) + "\n")
    return path


def targets(out):
    return np.load(out / "target.npy").tolist()


def test_a_threshold_makes_labels(tmp_path, raw):
    meta = prepare_table([raw], tmp_path / "out", target="rating >= 8", **GIVEN)
    assert meta.task == "binary"
    assert targets(tmp_path / "out") == [0, 1, 1, 0, 1] * 4
    prepare_table([raw], tmp_path / "in", target="rating in (3, 10)", **GIVEN)
    assert targets(tmp_path / "in") == [0, 0, 0, 1, 1] * 4


@pytest.mark.parametrize("block", [40, 1 << 20])
def test_rows_that_where_leaves_out_are_counted_and_all_else_is_as_without_them(
    tmp_path, raw, monkeypatch, block
):
    monkeypatch.setattr(sources, "BLOCK", block)
    out, other = tmp_path / "out", tmp_path / "other"
    where = "rating > 0 and not ('extra tag' == 'z')"
    meta = prepare_table([raw], out, target="rating", task="rating", where=where, **GIVEN)
    assert meta.rows == {"read": 20, "kept": 12, "rejected": {}, "left_out": 8}
    assert meta.options["where"] == where
    assert meta == read_meta(out)
    (tmp_path / "u.csv").write_text("\n".join(["rating,site,user,age,e", *LINES[1:4] * 4]) + "\n")
    prepare_table([tmp_path / "u.csv"], other, target="rating", task="rating", **GIVEN)
    for name in ("target.npy", "ids.npy", "vocabulary/0.parquet"):
        assert (out / name).read_bytes() == (other / name).read_bytes()


def test_without_conditions_and_patterns_meta_has_nothing_of_them(tmp_path, raw):
    meta = prepare_table([raw], tmp_path / "out", target="rating", task="rating", **GIVEN)
    assert meta.rows == {"read": 20, "kept": 20, "rejected": {}}
    assert "where" not in meta.options


def test_rows_left_out_may_be_malformed_otherwise(tmp_path):
    path, out = tmp_path / "t.csv", tmp_path / "out"
    path.write_text("y,c,d\n" + "1,a,2\n0,b,3\n,a,x\n" * 4)
    given = {"target": "y", "categorical": ["c"], "dense": ["d"]}
    assert prepare_table([path], out, where="y != ''", **given).rows["left_out"] == 4
    with pytest.raises(ValueError, match=r"0 rows of t\.csv, 12 others left out by where"):
        prepare_table([path], tmp_path / "none", where="c == 'z'", **given)


@pytest.mark.parametrize(
    ("line", "given", "message"),
    [
        ("x,a", {"target": "y >= 8"}, r"1 of 3 rows .*line 4: y is not a number: 'x'$"),
        ("nan,a", {"target": "y >= 8"}, r"line 4: y is not a number: 'nan'$"),
        (",a", {"target": "y >= 8"}, r"line 4: target is empty$"),
        (",a", {"target": "y"}, r"line 4: target is empty$"),
        (",a", {"target": "y", "task": "rating"}, r"line 4: target is empty$"),
        ("x,a", {"target": "y", "where": "y > 0"}, r"1 of 3 rows .*line 4: y is not a number: 'x'$"),
        ("1,a", {"target": "z >= 8"}, r"t\.csv has no column 'z'; it has y, c"),
        ("1,a", {"target": "y", "where": "z >= 8"}, r"t\.csv has no column 'z'; it has y, c"),
        (
            "1,a",
            {"target": "y", "where": "(y >= 8"},
            r"where '\(y >= 8', '\(' at character 1: this",
        ),
        ("1,a", {"target": "y >= "}, r"target 'y >= ', its end: a number"),
        ("1,a", {"target": "y >= 8", "task": "rating"}, "makes labels, so task cannot be 'rating'"),
        ("1,a", {"target": "c == 'a'"}, "column 'c' is the target, so it cannot be a feature too"),
        ("1,a", {"target": "y", "categorical": ["d*"]}, r"categorical 'd\*' matches no column.* y, c"),
        ("1,a", {"target": "y", "dense": ["y*"]}, r"dense 'y\*' matches no column"),
    ],
)
def test_what_cannot_be_chosen_is_said_with_line_and_value(tmp_path, line, given, message):
    (tmp_path / "t.csv").write_text(f"y,c\n1,a\n0,b\n{line}\n")
    with pytest.raises(ValueError, match=message):
        prepare_table([tmp_path / "t.csv"], tmp_path / "out", **{"categorical": ["c"]} | given)
    assert not (tmp_path / "out").exists()


def test_a_column_that_looks_like_a_condition_is_a_column(tmp_path):
    (tmp_path / "t.csv").write_text("y >= 8,y,c\n" + "1,3,a\n0,9,b\n" * 5)
    prepare_table([tmp_path / "t.csv"], tmp_path / "out", target="y >= 8", categorical=["c"])
    assert sorted(targets(tmp_path / "out")) == [0] * 5 + [1] * 5


def test_types_that_cannot_be_compared_are_named(tmp_path):
    path = tmp_path / "t.parquet"
    pl.DataFrame({"y": [0, 1] * 5, "c": ["a"] * 10, "odd": [[1]] * 10}).write_parquet(path)
    for where, message in (("odd > 1", "'odd' has values of type"), ("y == '1'", "'y' holds numbers")):
        with pytest.raises(ValueError, match=message):
            prepare_table([path], tmp_path / "out", target="y", categorical=["c"], where=where)
    meta = prepare_table([path], tmp_path / "out", target="y", categorical=["c"], where="y in (0, 1)")
    assert meta.rows["left_out"] == 0


def test_patterns_stand_for_columns_in_the_order_of_the_header(tmp_path):
    header = "label,I1,I2,C1,C2,C10,t"
    (tmp_path / "t.csv").write_text(f"{header}\n" + "1,2,3,a,b,c,5\n0,2,3,a,b,c,6\n" * 5)
    given = {"target": "label", "categorical": ["C*"], "dense": ["I?"], "split": "time:t"}
    meta = prepare_table([tmp_path / "t.csv"], tmp_path / "out", **given)
    assert Dataset(tmp_path / "out").feature_names == ["C1", "C2", "C10"]
    assert meta.dense == ("I1", "I2")
    assert meta.options["categorical"] == ["C1", "C2", "C10"]
    rest = given | {"categorical": ["C2", "*"]}
    meta = prepare_table([tmp_path / "t.csv"], tmp_path / "rest", **rest | {"dense": ["I1", "I2"]})
    assert [feature.name for feature in meta.features] == ["C2", "C1", "C10"]
    with pytest.raises(ValueError, match="'I1' matches a pattern of categorical and one of dense"):
        prepare_table([tmp_path / "t.csv"], tmp_path / "both", **rest)


def test_a_range_stands_for_the_free_columns_of_the_header_between_its_ends():
    header = ["y", "a1", "a2", "x", "b..c", "a3", "t"]
    given = {"dense": ["a1..a3"], "categorical": ["x"]}
    found = match_columns(given, header, ["y", "t"])
    assert found == {"dense": ["a1", "a2", "b..c", "a3"], "categorical": ["x"]}
    assert match_columns({"dense": ["b..c"]}, header)["dense"] == ["b..c"]
    assert match_columns({"dense": ["b..c..t"]}, header)["dense"] == ["b..c", "a3", "t"]
    assert match_columns({"dense": ["a1..z"]}, header)["dense"] == ["a1..z"]  # which is then named
    with pytest.raises(ValueError, match=r"dense 't\.\.a1' matches no column"):
        match_columns({"dense": ["t..a1"]}, header)


def test_exact_names_win_over_patterns():
    header = ["C*", "C1", "C2", "[x]"]
    assert match_columns({"categorical": ["C*", "[x]"]}, header) == {"categorical": ["C*", "[x]"]}
    found = match_columns({"categorical": ["C?", "?1"], "dense": ["C2"]}, header)
    assert found == {"categorical": ["C*", "C1"], "dense": ["C2"]}
    assert match_columns({"dense": ["none"]}, header) == {"dense": ["none"]}
