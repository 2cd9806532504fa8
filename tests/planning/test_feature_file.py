import json

import pytest

import mixdim
from mixdim.planning.feature_file import read_features


def write(tmp_path, name, text):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("f.json", '{"a": 3, "b": 2}'),
        ("f.JSON", '{"a": [1, 2, 3], "b": 2}'),
        ("f.csv", "feature,rows\na,3\nb,2\n"),
        ("f.csv", "\ufefffeature, rows\r\na, 3\r\nb, 2\r\n"),
        ("f.csv", "feature,count\na,1\na,2\na,3\nb,1\nb,1"),
        ("f.csv", "feature,id,count\na,2,5\nb,1,1\na,0,9\n"),
    ],
)
def test_features_have_the_rows_that_the_file_says(tmp_path, name, text):
    assert read_features(write(tmp_path, name, text)).rows == {"a": 3, "b": 2}


def test_a_list_gets_numbers_for_names(tmp_path):
    features = read_features(write(tmp_path, "f.json", "[3, [4, 5]]"))
    assert features.rows == {"0": 3, "1": 2}
    assert {name: counts.tolist() for name, counts in features.counts.items()} == {"1": [4, 5]}


def test_counts_by_id_fill_the_ids_left_out_with_0(tmp_path):
    features = read_features(write(tmp_path, "f.csv", "feature,id,count\na,2,5\na,0,9\n"))
    assert features.counts["a"].tolist() == [9, 0, 5]


def test_ids_per_sample_come_along(tmp_path):
    text = "feature,rows,ids_per_sample\ntags,100,3.5\nuser,10,1\n"
    assert read_features(write(tmp_path, "f.csv", text)).ids_per_sample == {"tags": 3.5, "user": 1.0}


def test_the_features_of_a_saved_plan_can_be_planned_anew(tmp_path):
    saved = mixdim.plan({"a": 3, "b": 2}, temperature=0, base_dim=2)
    assert read_features(write(tmp_path, "p.json", saved.to_json())).rows == {"a": 3, "b": 2}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("f.txt", "", "a .json or .csv file"),
        ("f.json", "", "Expecting value"),
        ("f.json", "{", "Expecting property name"),
        ("f.json", "{}", "no features in it"),
        ("f.json", "3", "no features in it"),
        ("f.json", b"\xff\x00", "not UTF-8"),
        ("f.json", "[" * 100_000, "nested too deeply"),
        ("f.json", '{"a": "3"}', "rows of feature 'a' must be a whole number"),
        ("f.json", '{"a": [1, [2]]}', "counts of feature 'a' must be a list of numbers"),
        ("f.json", '{"a": ["x"]}', "counts of feature 'a' must be numbers"),
        (
            "f.json",
            '{"a": [1, -2]}',
            "counts of feature 'a' must be finite and not negative, got -2 at 1",
        ),
        ("f.json", '{"": 5}', "a feature has no name"),
        ("f.csv", "feature,rows\n,5\n", "a feature has no name"),
        ("f.json", json.dumps({"format": "mixdim.plan"}), "reads version 4"),
        ("f.csv", "", r"unknown columns \(none\)"),
        ("f.csv", "name,n\na,3\n", "unknown columns name, n"),
        ("f.csv", "feature,rows\na,x\n", "line 2: rows must be a number, got 'x'"),
        ("f.csv", "feature,rows\na\n", "line 2: rows must be a number, got None"),
        ("f.csv", "feature,rows\na,1\na,2\n", "line 3: feature 'a' is there twice"),
        ("f.csv", "feature,id,count\na,0,1\na,0,1\n", "line 3: id 0 of feature 'a' is there twice"),
        ("f.csv", "feature,id,count\na,-1,1\n", "line 2: id -1 is negative"),
    ],
)
def test_a_malformed_file_says_where(tmp_path, name, text, message):
    path = write(tmp_path, name, text)
    with pytest.raises(ValueError, match=message) as caught:
        read_features(path)
    assert str(path) in str(caught.value)


def test_a_plan_with_orders_beside_it_is_read_for_its_features(tmp_path):
    counts = {"a": list(range(12_000))}
    plan = mixdim.plan({"a": 12_000}, counts=counts, bands=2, temperature=0.1, base_dim=4)
    plan.save(tmp_path / "p.json")
    assert len(list(tmp_path.iterdir())) == 2
    assert read_features(tmp_path / "p.json").rows == {"a": 12_000}
