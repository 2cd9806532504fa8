"""Negatives of files of positives only, against sets and formulas; splits that the file brings."""

import itertools

import numpy as np
import polars as pl
import pytest
from scipy.stats import chi2

from commands import output
from mixdim.data import Dataset, negatives, sources
from mixdim.data.folder import read_meta
from mixdim.data.prediction_rows import opened_raw
from mixdim.data.table import prepare_table

DRAWN = {"categorical": ["user", "item", "country"], "negatives": 3, "negatives_of": "item"}


def purchases(rows=4000, users=300, items=60, seed=0):
    rng = np.random.default_rng(seed)
    pairs = {"user": rng.integers(0, users, rows), "item": (items * rng.random(rows) ** 3).astype(int)}
    frame = pl.DataFrame({name: [f"{name[0]}{n}" for n in column] for name, column in pairs.items()})
    columns = {
        "country": [f"c{n}" for n in rng.integers(0, 9, rows)],
        "price": np.round(rng.normal(size=rows), 3),
        "tags": ["|".join(rng.choice(list("abcd"), n)) for n in rng.integers(0, 4, rows)],
        "part": rng.choice(["train", "train", "train", "test"], rows),
    }
    return frame.with_columns(**{name: pl.Series(column) for name, column in columns.items()})


def rows_of(folder, split):
    """The rows of a split with their values instead of ids."""
    meta = read_meta(folder)
    start, stop = meta.splits[split]
    ids = np.load(folder / "ids.npy")[start:stop]
    singles = [n for n, feature in enumerate(meta.features) if not feature.bag]
    columns = {}
    for place, number in enumerate(singles):
        table = pl.read_parquet(folder / "vocabulary" / f"{number}.parquet")
        columns[meta.features[number].name] = table["value"][ids[:, place]]
    return pl.DataFrame({**columns, "target": np.load(folder / "target.npy")[start:stop]})


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    path = tmp_path_factory.mktemp("positives") / "buys.csv"
    purchases().write_csv(path)
    return path


@pytest.fixture(scope="module")
def folder(raw, tmp_path_factory):
    out = tmp_path_factory.mktemp("prepared") / "out"
    columns = {"dense": ["price"], "bags": {"tags": "|"}, "split": "column:part"}
    prepare_table([raw], out, seed=4, **DRAWN, **columns)
    return out


def test_each_positive_is_followed_by_copies_with_items_that_its_user_has_not(raw, folder):
    given = pl.read_csv(raw)
    meta = read_meta(folder)
    assert meta.rows["negatives"] == 3 * given.height
    assert meta.options["negatives_for"] == ["user"]
    assert meta.options["validation_drawn"]
    for split in ("train", "validation", "test"):
        rows = rows_of(folder, split)
        positives = rows.gather_every(4)
        known = set(positives.select("user", "item").rows())
        assert positives["target"].to_list() == [1.0] * positives.height
        for offset in (1, 2, 3):
            drawn = rows.gather_every(4, offset)
            assert drawn["target"].sum() == 0
            assert known.isdisjoint(drawn.select("user", "item").rows())
            assert drawn.select("user", "country").equals(positives.select("user", "country"))
    test = rows_of(folder, "test").gather_every(4).select("user", "item", "country")
    assert test.equals(given.filter(part="test").select("user", "item", "country"))


def test_dense_numbers_and_bags_are_copied(folder):
    dense = np.load(folder / "dense.npy").reshape(-1, 4)
    assert (dense == dense[:, :1]).all()
    values, offsets = (np.load(folder / "bags" / f"tags.{part}.npy") for part in ("values", "offsets"))
    bags = [values[start:stop].tolist() for start, stop in itertools.pairwise(offsets)]
    assert all(bags[n] == bags[n - n % 4] for n in range(len(bags)))


def test_counts_are_those_of_the_rows_and_of_the_positives_among_them(folder):
    dataset = Dataset(folder)
    start, stop = dataset.splits["train"]
    ids = np.load(folder / "ids.npy")[start:stop]
    is_positive = np.load(folder / "target.npy")[start:stop] == 1
    for number, name in enumerate(["user", "item", "country"]):
        counts, rows = dataset.counts[name], dataset.cardinalities[name]
        assert counts.tolist() == np.bincount(ids[:, number], minlength=rows).tolist()
        positives = pl.read_parquet(folder / "vocabulary" / f"{number}.parquet")["positives"]
        wanted = np.bincount(ids[is_positive, number], minlength=rows)
        assert positives.to_list() == wanted.tolist()


def test_items_are_drawn_by_their_training_popularity_to_the_power_of_three_quarters(tmp_path):
    """Chi-square over items; a user's own items are left out of what is expected of that user."""
    frame = purchases(rows=6000, users=500, items=40, seed=3)
    frame.write_csv(tmp_path / "t.csv")
    given = {"categorical": ["user", "item"], "split": "column:part"}
    prepare_table(
        [tmp_path / "t.csv"], tmp_path / "out", negatives=8, negatives_of="item", seed=1, **given
    )
    rows = rows_of(tmp_path / "out", "train")
    positives = rows.filter(target=1)
    popularity = dict(positives["item"].value_counts().iter_rows())
    names = sorted(popularity)
    weights = np.array([popularity[name] for name in names]) ** 0.75
    own = {name: set(of["item"]) for (name,), of in positives.partition_by("user", as_dict=True).items()}
    expected = np.zeros(len(names))
    for user in positives["user"]:
        free = weights * [name not in own[user] for name in names]
        expected += 8 * free / free.sum()
    drawn = dict(rows.filter(target=0)["item"].value_counts().iter_rows())
    found = np.array([drawn.get(name, 0) for name in names])
    assert expected.min() > 5
    assert ((found - expected) ** 2 / expected).sum() < chi2.ppf(0.999, len(names) - 1)
    flat = found.sum() * np.array([popularity[name] for name in names]) / positives.height
    assert ((found - flat) ** 2 / flat).sum() > chi2.ppf(0.999, len(names) - 1)


def test_the_seed_alone_decides_however_the_file_is_read(tmp_path, raw, monkeypatch):
    def bytes_of(name, seed):
        prepare_table([raw], tmp_path / name, seed=seed, split="position", **DRAWN)
        return {path.name: path.read_bytes() for path in (tmp_path / name).glob("*.npy")}

    first = bytes_of("first", 0)
    monkeypatch.setattr(sources, "BLOCK", 3000)
    assert bytes_of("again", 0) == first
    assert bytes_of("other", 1)["ids.npy"] != first["ids.npy"]


def test_values_that_are_searched_when_many_draws_fail_are_free_ones_too(tmp_path, raw, monkeypatch):
    monkeypatch.setattr(negatives, "ROUNDS", 0)
    prepare_table([raw], tmp_path / "out", split="position", **DRAWN)
    rows = rows_of(tmp_path / "out", "train")
    known = set(rows.filter(target=1).select("user", "item").rows())
    assert rows.height == 4 * rows.filter(target=1).height
    assert known.isdisjoint(rows.filter(target=0).select("user", "item").rows())


def test_a_user_with_every_item_gets_no_negative_and_the_summary_says_so(tmp_path, capsys):
    lines = ["user,item,tags", *[f"all,i{n},x|y" for n in range(5)], *["one,i1,z"] * 3]
    (tmp_path / "t.csv").write_text("\n".join([*lines, "one,i0,", "one,i4,z"]) + "\n")
    names = ("--categorical", "user,item", "--bag", "tags:|", "--split", "position")
    drawn = ("--negatives", "2", "--negatives-of", "item")
    command = ("prepare", "table", tmp_path / "t.csv", "--out", tmp_path / "out", *names, *drawn)
    printed = output(capsys, *map(str, command)).out
    assert (
        "negatives: 10, 2 for each of 10 positives, 10 fewer as a user has every item; item is"
        in printed
    )
    rows = rows_of(tmp_path / "out", "train")
    assert rows["target"].to_list() == [1.0] * 5 + [1.0, 0.0, 0.0] * 3
    dataset = Dataset(tmp_path / "out")
    assert dataset.counts["user"].sum() == rows.height
    assert len(next(iter(dataset.batches("train", batch_size=100))).bags["tags"][0]) == 5 * 2 + 3 * 3


def test_rare_values_are_those_with_few_positives(tmp_path):
    (tmp_path / "t.csv").write_text(
        "user,item\n" + "u1,a\nu2,b\nu1,c\nu2,c\nu3,a\nu4,b\n" * 2 + "u5,d\n"
    )
    given = {"categorical": ["user", "item"], "negatives": 5, "negatives_of": "item"}
    prepare_table([tmp_path / "t.csv"], tmp_path / "out", min_count=3, split="position", **given)
    table = pl.read_parquet(tmp_path / "out" / "vocabulary" / "0.parquet")
    assert sorted(table.filter(kind="value")["value"]) == ["u1", "u2"]


def test_new_positives_get_negatives_of_the_old_items_and_predicted_rows_none(tmp_path, raw, folder):
    new = tmp_path / "new.csv"
    frame = purchases(rows=200, seed=9).with_columns(pl.lit("new").alias("country"))
    frame.write_csv(new)
    meta = prepare_table([new], tmp_path / "new", vocabulary_of=folder)
    assert meta.splits["test"] == (0, 4 * 200)
    rows = rows_of(tmp_path / "new", "test")
    known = set(frame.select("user", "item").rows())
    assert known.isdisjoint(rows.filter(target=0).select("user", "item").rows())
    assert set(rows.filter(target=0)["item"]) <= set(pl.read_csv(raw)["item"])
    with opened_raw(new, folder) as predicted:
        assert predicted.dataset.meta.num_rows == 200
        assert not predicted.has_target
    with pytest.raises(ValueError, match="negatives_of must be 'item', as in"):
        prepare_table([new], tmp_path / "x", vocabulary_of=folder, negatives_of="country")


def test_users_are_told_apart_by_the_columns_that_are_named(tmp_path, raw):
    prepare_table([raw], tmp_path / "out", negatives_for=["country"], split="position", **DRAWN)
    rows = rows_of(tmp_path / "out", "train")
    known = set(rows.filter(target=1).select("country", "item").rows())
    assert known.isdisjoint(rows.filter(target=0).select("country", "item").rows())
    assert read_meta(tmp_path / "out").options["negatives_for"] == ["country"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"negatives": None}, "without a target, negatives must be given too"),
        ({"negatives_of": None}, "without a target, negatives_of must be given too"),
        ({"negatives": None, "negatives_of": None}, "target must be given.*if all rows are positives"),
        ({"target": "price"}, "negatives is for rows that are positives: leave target out"),
        ({"negatives": 0}, "negatives must be at least 1, got 0"),
        ({"negatives_of": "price"}, "negatives_of must name a categorical column, not 'price'"),
        ({"negatives_for": ["x"]}, "negatives_for must name a categorical column, not 'x'"),
        ({"negatives_for": ["item"]}, "negatives_for must name other columns than negatives_of"),
        ({"categorical": ["item"]}, "negatives need a second categorical column"),
        ({"task": "rating"}, "positives and negatives are labels, so task cannot be 'rating'"),
        ({"split": "column:country"}, "country is not train, validation or test: 'c"),
        ({"split": "column:price"}, "price is not train, validation or test"),
        ({"split": "column:"}, "'time:COLUMN' or 'column:COLUMN', got 'column:'"),
    ],
)
def test_options_that_do_not_go_together_are_named(tmp_path, raw, given, message):
    with pytest.raises(ValueError, match=message):
        prepare_table([raw], tmp_path / "out", **DRAWN | given)
    assert not list(tmp_path.iterdir())


def test_a_column_of_splits_is_followed_in_any_case_and_may_name_validation(tmp_path):
    names = [" Train", "VAL", "test", "training", "dev", "Validation", "train"]
    lines = [f"{n % 2},c{n},{name}" for n, name in enumerate(names)]
    (tmp_path / "t.csv").write_text("\n".join(["y,c,part", *lines]) + "\n")
    given = {"target": "y", "categorical": ["c"], "split": "column:part"}
    meta = prepare_table([tmp_path / "t.csv"], tmp_path / "out", **given)
    assert meta.splits == {"train": (0, 3), "validation": (3, 6), "test": (6, 7)}
    assert "validation_drawn" not in meta.options
    assert np.load(tmp_path / "out" / "target.npy").tolist() == [0, 1, 0, 1, 0, 1, 0]


def test_a_tenth_of_training_validates_where_the_column_names_no_validation(tmp_path, capsys):
    lines = [f"{n % 2},c,{'test' if n % 5 == 0 else 'train'}" for n in range(100)]
    (tmp_path / "t.csv").write_text("\n".join(["y,c,part", *lines]) + "\n")
    command = ["prepare", "table", str(tmp_path / "t.csv"), "--target", "y", "--categorical", "c"]
    printed = output(capsys, *command, "--split", "column:part", "--out", str(tmp_path / "a")).out
    assert "train 72, validation 8, test 20" in printed
    assert "validation is a tenth of train, drawn by --seed: the column names none" in printed
