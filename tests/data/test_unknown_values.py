import pytest

from mixdim.data import Dataset
from mixdim.data.inspection import inspect
from mixdim.data.prepare import prepare_table
from mixdim.data.unknown_values import advice


@pytest.fixture
def raw(tmp_path):
    """In training (8 rows) the user 'once' comes once; validation and test have a new user each."""
    rows = ["1,often,x"] * 7 + ["0,once,x", "1,new,x", "1,newer,x"]
    (tmp_path / "t.csv").write_text("\n".join(["y,user,item", *rows]) + "\n")
    return tmp_path / "t.csv"


def prepare(raw, min_count):
    out = raw.with_name(f"min-count-{min_count}")
    columns = {"target": "y", "categorical": ["user", "item"], "split": "position"}
    prepare_table([raw], out, min_count=min_count, **columns)
    return out


def test_the_advice_is_given_where_the_row_of_unknown_values_was_never_trained_and_helps(raw):
    out = prepare(raw, 1)
    assert Dataset(out).unknown_lookups == {
        "user": {"validation": 1.0, "test": 1.0, "trained": False},
        "item": {"validation": 0.0, "test": 0.0, "trained": False},
    }
    assert "100.0% of the lookups in test of user,\n" in inspect(out).advice
    assert "mixdim train --unknown-dropout trains it" in inspect(out).advice
    assert "--min-count 2" in inspect(out).advice
    better = prepare(raw, 2)
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
