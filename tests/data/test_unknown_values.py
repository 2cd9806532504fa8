"""What `prepare` and `inspect` say of unknown values, against counting by hand and preparing again."""

import random
import re

import pytest

from mixdim.data import Dataset
from mixdim.data.inspect import inspect
from mixdim.data.table import prepare_table
from mixdim.data.unknown_values import advice, unknown_report

GIVEN = {"target": "y", "categorical": ["user", "item"], "bags": {"tags": "|"}, "split": "position"}


def prepare(tmp_path, rows, **given):
    raw = tmp_path / "t.csv"
    raw.write_text("\n".join(["y,user,item,tags", *rows]) + "\n")
    out = tmp_path / f"out-{given.get('min_count', 1)}"
    meta = prepare_table([raw], out, **{**GIVEN, **given})
    return out, meta, unknown_report(out, meta)


@pytest.mark.parametrize("feature", ["user", "tags"])
def test_the_advice_says_what_preparing_again_gives(tmp_path, feature):
    rng = random.Random(3)
    often = [f"u{rng.randrange(40)}" for _ in range(1000)]
    rare = [f"u{int(900 * rng.random() ** 2)}" for _ in range(1000)]
    cells = {"user": often, "tags": often} | {feature: rare}
    rows = [f"1,{cells['user'][n]},i{n % 3},{cells['tags'][n]}|x" for n in range(1000)]
    out, meta, lines = prepare(tmp_path, rows)
    found = {f.name: f for f in inspect(out).features}
    for line in lines[1:4]:
        name, validation, test = line.split()
        assert validation == f"{found[name].out_of_vocabulary_validation:.1%}"
        assert test == f"{found[name].out_of_vocabulary_test:.1%}"
    said = lines[4].replace("\n", " ")
    min_count = int(re.search(r"--min-count (\d+)", said)[1])
    again, then, _ = prepare(tmp_path, rows, min_count=min_count)
    better = {f.name: f for f in inspect(again).features}[feature]
    assert said.startswith(
        f"{found[feature].out_of_vocabulary_test:.1%} of the lookups in test of {feature}"
    )
    assert f"would train it on {better.out_of_vocabulary_train:.1%} of the training lookups" in said
    assert f"send {better.out_of_vocabulary_test:.1%} of those in test there" in said
    sizes = [sum(f.rows for f in folder.features) for folder in (then, meta)]
    assert f"keep {sizes[0]:,} of {sizes[1]:,} rows in all" in said


def test_the_advice_on_positives_is_about_these_and_not_their_negatives(tmp_path):
    rng = random.Random(5)
    rows = [f"1,u{int(900 * rng.random() ** 2)},i{rng.randrange(60)},x" for _ in range(1000)]
    drawn = {"target": None, "negatives": 4, "negatives_of": "item"}
    _, _, lines = prepare(tmp_path, rows, **drawn)
    min_count = int(re.search(r"--min-count (\d+)", lines[4])[1])
    again, _, _ = prepare(tmp_path, rows, **drawn, min_count=min_count)
    better = {f.name: f for f in inspect(again).features}["user"]
    said = lines[4].replace("\n", " ")
    assert f"would train it on {better.out_of_vocabulary_train:.1%} of the training lookups" in said
    assert f"send {better.out_of_vocabulary_test:.1%} of those in test there" in said


def test_where_nothing_is_unknown_a_line_says_so(tmp_path):
    _, _, lines = prepare(tmp_path, ["1,u,i,x"] * 20)
    assert lines == ["unknown values: none in validation and test"]


def test_no_min_count_is_advised_that_does_not_help(tmp_path):
    rows = [f"1,u{n // 40},i,x" for n in range(800)] + ["1,new,i,x"] * 200  # no value is rare
    _, _, lines = prepare(tmp_path, rows)
    assert lines[1].split() == ["user", "100.0%", "100.0%"]
    assert "--min-count would not help, as hardly a value is rare" in lines[4]
    # Nor where training rows ask for that row already.
    _, _, lines = prepare(tmp_path, rows, min_count=50)
    assert len(lines) == 4


def test_a_feature_that_training_has_nothing_of_is_reported(tmp_path):
    _, _, lines = prepare(tmp_path, ["1,u,i,"] * 16 + ["1,u,i,x"] * 4)
    assert lines[3].split() == ["tags", "100.0%", "100.0%"]
    assert "--min-count would not help" in lines[4]


def test_of_many_features_those_that_ask_most_are_shown(tmp_path):
    names = [f"f{n}" for n in range(40)]
    rows = [["0"] + ["a"] * 40 for _ in range(8)]
    held_out = ["0"] + ["new" if n >= 35 else "a" for n in range(40)]
    lines = [",".join(row) for row in [["y", *names], *rows, held_out, held_out]]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    given = {"target": "y", "categorical": names, "split": "position"}
    meta = prepare_table([tmp_path / "t.csv"], tmp_path / "out", **given)
    found = unknown_report(tmp_path / "out", meta)
    assert [line.split()[0] for line in found[1:6]] == names[35:]
    assert found[31] == "and at most 0.0% of 10 other features"
    # Of new rows, such as those to predict, the lines of at most 6 features.
    meta = prepare_table([tmp_path / "t.csv"], tmp_path / "new", vocabulary_of=tmp_path / "out")
    assert len(unknown_report(tmp_path / "new", meta)) == 1 + 6 + 1


@pytest.fixture
def raw(tmp_path):
    """In training (8 rows) the user 'once' comes once; validation and test have a new user each."""
    rows = ["1,often,x"] * 7 + ["0,once,x", "1,new,x", "1,newer,x"]
    (tmp_path / "t.csv").write_text("\n".join(["y,user,item", *rows]) + "\n")
    return tmp_path / "t.csv"


def prepared(raw, min_count):
    out = raw.with_name(f"min-count-{min_count}")
    columns = {"target": "y", "categorical": ["user", "item"], "split": "position"}
    prepare_table([raw], out, min_count=min_count, **columns)
    return out


def test_the_advice_is_given_where_the_row_of_unknown_values_was_never_trained_and_helps(raw):
    out = prepared(raw, 1)
    assert Dataset(out).unknown_lookups == {
        "user": {"validation": 1.0, "test": 1.0, "trained": False},
        "item": {"validation": 0.0, "test": 0.0, "trained": False},
    }
    assert "100.0% of the lookups in test of user,\n" in inspect(out).advice
    assert "mixdim train --unknown-dropout trains it" in inspect(out).advice
    assert "--min-count 2" in inspect(out).advice
    better = prepared(raw, 2)
    assert Dataset(better).unknown_lookups["user"] == {"validation": 1.0, "test": 1.0, "trained": True}
    assert inspect(better).advice is None


def lookups(*shares, trained=False, split="test"):
    other = "validation" if split == "test" else "test"
    return {f"f{n}": {split: share, other: None, "trained": trained} for n, share in enumerate(shares)}


def test_only_what_matters_is_said():
    assert advice(lookups(0.0099, None), prepared=True) is None
    assert advice(lookups(0.5, trained=True), prepared=True) is None
    assert advice({}, prepared=True) is None


def test_the_worst_features_are_named_and_the_others_counted():
    assert advice(lookups(0.1, 0.3, 0.01, 0.2, 0.02, 0.001), prepared=False).splitlines() == [
        "unknown values: training never saw those of 30.0% of the lookups in test of f1, 20.0% of f3, "
        "10.0% of f0, 1% or more of 2 others,",
        "and the row they share was never trained: "
        "mixdim train --unknown-dropout trains it on rare values",
    ]


def test_without_a_test_split_validation_speaks():
    assert "30.0% of the lookups in validation of f0" in advice(
        lookups(0.3, split="validation"), prepared=True
    )
