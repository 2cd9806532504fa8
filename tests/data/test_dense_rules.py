"""Dense columns against the formulas of their rules, in plain numpy."""

import json

import numpy as np
import polars as pl
import pytest

from commands import output
from mixdim.data import Dataset, sources
from mixdim.data.dense_rules import DenseRule, dense_names
from mixdim.data.folder import read_meta
from mixdim.data.inspect import inspect
from mixdim.data.table import prepare_table

NAMES = ("even", "skewed", "both", "gaps", "same", "nothing", "late", "time", "rare")
ROWS, TRAIN = 500, 400
GIVEN = {"target": "y", "categorical": ["c"], "dense": NAMES, "split": "position"}


def numbers():
    """(rows, columns): NaN where missing. The last tenths, held out, are of another size."""
    rng = np.random.default_rng(5)
    found = np.stack([
        rng.normal(50, 7, ROWS),
        np.floor(np.exp(rng.normal(4, 2, ROWS))),
        np.exp(rng.normal(4, 2, ROWS)) - 20,
        np.where(rng.random(ROWS) < 0.3, np.nan, rng.normal(-3, 1, ROWS)),
        np.full(ROWS, 0.1),
        np.full(ROWS, np.nan),
        rng.random(ROWS),
        1.7e9 + rng.integers(0, 60, ROWS),  # float32 would know the time to two minutes only
        (rng.random(ROWS) < 0.02).astype(float),
    ], axis=1)  # fmt: skip
    held_out = found[TRAIN:]
    held_out[:, :3] = held_out[:, :3] * 1e6 - 40
    held_out[:, 4], held_out[:, 5] = 7.0, 3.0
    held_out[::3, 6] = np.nan
    return found


def write(path, found):
    cells = [["" if np.isnan(x) else repr(float(x)) for x in row] for row in found]
    lines = [",".join(["1", "v", *row]) for row in cells]
    path.write_text("\n".join([",".join(["y", "c", *NAMES]), *lines]) + "\n")
    return path


def expected(x):
    """One column by its rule, and whether the logarithm is taken; only training rows say how."""
    train = x[:TRAIN][~np.isnan(x[:TRAIN])]
    if len(train) == 0 or train.min() == train.max():
        return np.zeros(len(x)), False
    skewness = np.mean((train - train.mean()) ** 3) / train.std() ** 3
    log = bool(train.min() >= 0 and skewness > 1)
    z = np.log(1 + np.maximum(x, 0)) if log else x
    train = np.log(1 + train) if log else train
    return np.nan_to_num(np.clip((z - train.mean()) / train.std(), -10, 10)), log


def test_dense_columns_follow_their_formulas(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "BLOCK", 3000)  # many chunks, whose moments are merged
    found = numbers()
    meta = prepare_table([write(tmp_path / "t.csv", found)], tmp_path / "out", **GIVEN)
    assert meta == read_meta(tmp_path / "out")
    dense = np.load(tmp_path / "out" / "dense.npy")
    for column, rule in enumerate(meta.dense_rules):
        values, log = expected(found[:, column])
        assert (rule.column, rule.log) == (NAMES[column], log)
        np.testing.assert_allclose(dense[:, column], values, rtol=2e-5, atol=2e-6, err_msg=rule.column)
    assert [rule.column for rule in meta.dense_rules if rule.log] == ["skewed", "rare"]
    # A column tells where another is missing in training; not if that is only later, or always.
    assert meta.dense == (*NAMES, "gaps is missing")
    np.testing.assert_array_equal(dense[:, -1], np.isnan(found[:, 3]))
    assert dense[TRAIN:, 0].max() == 10
    assert Dataset(tmp_path / "out").num_dense == len(NAMES) + 1


@pytest.mark.parametrize(("low", "outliers"), [(-3, [1e30]), (-3, [-1e9, 4e20]), (0, [1e30])])
def test_outliers_do_not_flatten_a_column(tmp_path, capsys, low, outliers):
    rng = np.random.default_rng(1)
    clean = np.round(rng.uniform(low, 3, 30_000), 4)
    found = clean.copy()
    found[rng.choice(20_000, len(outliers), replace=False)] = outliers
    (tmp_path / "t.csv").write_text("y,c,x\n" + "".join(f"1,a,{x!r}\n" for x in found.tolist()))
    columns = ("--target", "y", "--categorical", "c", "--dense", "x", "--split", "position")
    out = tmp_path / "out"
    printed = output(capsys, "prepare", "table", tmp_path / "t.csv", "--out", out, *columns).out
    assert "dense: 1 standardised by the training split, without outliers: x\n" in printed
    (rule,) = read_meta(out).dense_rules
    assert (rule.robust, rule.log) == (True, False)
    assert rule.mean == pytest.approx(clean.mean(), abs=0.05)
    assert rule.scale == pytest.approx(clean.std(), rel=0.05)
    dense = np.load(out / "dense.npy")[:, 0]
    assert np.abs(dense).max() == 10
    assert np.median(np.abs(dense)) > 0.5
    assert "robust" in str(inspect(out))


def test_sparse_and_skewed_columns_have_no_outliers(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "BLOCK", 20_000)
    rng = np.random.default_rng(2)
    columns = {
        "sparse": (rng.random(20_000) < 0.001).astype(float),
        "counts": rng.zipf(1.5, 20_000).clip(0, 10**6).astype(float),
        "amounts": np.exp(rng.normal(4, 2, 20_000)),
        "normal": rng.normal(size=20_000),
    }
    pl.DataFrame({"y": [0, 1] * 10_000, "c": ["a"] * 20_000, **columns}).write_csv(tmp_path / "t.csv")
    given = {"target": "y", "categorical": ["c"], "dense": list(columns), "split": "position"}
    meta = prepare_table([tmp_path / "t.csv"], tmp_path / "out", **given)
    assert [rule.robust for rule in meta.dense_rules] == [False] * 4
    assert "robust" not in (tmp_path / "out" / "meta.json").read_text()


def test_rules_know_nothing_of_validation_and_test(tmp_path):
    found = numbers()
    one = prepare_table([write(tmp_path / "one.csv", found)], tmp_path / "one", **GIVEN)
    found[TRAIN:] = -(found[TRAIN:] ** 2) - 1
    other = prepare_table([write(tmp_path / "other.csv", found)], tmp_path / "other", **GIVEN)
    assert one.dense_rules == other.dense_rules
    first, second = (np.load(tmp_path / name / "dense.npy") for name in ("one", "other"))
    np.testing.assert_array_equal(first[:TRAIN], second[:TRAIN])
    assert (first[TRAIN:] != second[TRAIN:]).any()


def test_dense_columns_stay_as_they_are_if_asked(tmp_path):
    found = numbers()
    raw = write(tmp_path / "t.csv", found)
    meta = prepare_table([raw], tmp_path / "out", dense_as_is=True, **GIVEN)
    assert (meta.dense, meta.dense_rules) == (NAMES, None)
    np.testing.assert_array_equal(
        np.load(tmp_path / "out" / "dense.npy"), np.nan_to_num(found).astype(np.float32)
    )
    assert "dense_rules" not in json.loads((tmp_path / "out" / "meta.json").read_text())
    # Numbers that mean something else do not go for the same, though the ids are.
    ruled = prepare_table([raw], tmp_path / "ruled", **GIVEN)
    assert ruled.features == meta.features
    out, ruled_out = Dataset(tmp_path / "out"), Dataset(tmp_path / "ruled")
    assert out.vocabulary_fingerprint != ruled_out.vocabulary_fingerprint


@pytest.mark.parametrize("value", ["inf", "-1e39", "nan"])
def test_a_number_without_bounds_is_malformed(tmp_path, value):
    (tmp_path / "t.csv").write_text(f"y,c,d\n1,a,2\n0,b,{value}\n")
    with pytest.raises(ValueError, match=f"line 3: d is not a number: '{value}'"):
        prepare_table([tmp_path / "t.csv"], tmp_path / "out", target="y", categorical=["c"], dense=["d"])


def test_a_column_that_is_called_like_an_indicator_keeps_its_name():
    rules = [DenseRule(name, False, 0.0, 1.0, 0.5) for name in ("a", "a is missing")]
    assert dense_names(rules) == ("a", "a is missing", "a is missing'", "a is missing is missing")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"mean": "x"}, "mean of dense column 'even' must be finite, got 'x'"),
        ({"scale": -1.0}, "'even' must have a scale >= 0"),
        ({"column": "odd"}, "dense rules are of other columns than even, skewed"),
        ({"more": 1}, "meta.json is malformed"),
    ],
)
def test_rules_that_cannot_be_are_named(tmp_path, change, match):
    prepare_table([write(tmp_path / "t.csv", numbers())], tmp_path / "out", **GIVEN)
    page = tmp_path / "out" / "meta.json"
    document = json.loads(page.read_text())
    document["dense_rules"][0] |= change
    page.write_text(json.dumps(document))
    with pytest.raises(ValueError, match=match):
        Dataset(tmp_path / "out")
