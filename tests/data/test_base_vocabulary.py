"""New rows with the ids and dense rules of an earlier folder, against dictionaries and formulas."""

import csv
import io
import json
import random
import shutil

import numpy as np
import polars as pl
import pytest
from small_folder import write_small_folder

from mixdim.data import Dataset
from mixdim.data.folder import read_meta
from mixdim.data.public.criteo import prepare_criteo
from mixdim.data.public.movielens import prepare_movielens
from mixdim.data.table import prepare_table

GIVEN = {
    **{"target": "n >= 5", "categorical": ["c", "k"], "dense": ["d"], "bags": {"tags": "|"}},
    **{"where": "n > 0", "split": "position"},
}


def rows(seed, count, values):
    rng = random.Random(seed)
    return [
        {
            "n": rng.randrange(10),
            "c": rng.choice(["", *(f"v{n}" for n in range(values))]),
            "k": rng.randrange(values),
            "d": rng.choice(["", *map(str, range(5))]),
            "tags": "|".join(rng.choices([f"t{n}" for n in range(values)], k=rng.randrange(4))),
        }
        for _ in range(count)
    ]


def write(path, found):
    file = io.StringIO()
    writer = csv.DictWriter(file, found[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    path.write_text(file.getvalue())
    return path


@pytest.fixture
def old(tmp_path):
    prepare_table([write(tmp_path / "old.csv", rows(0, 200, 8))], tmp_path / "old", **GIVEN)
    return tmp_path / "old"


def ids_of(folder, number):
    """The id of each text, of what is missing (None), and of what is unknown (...)."""
    table = pl.read_parquet(folder / "vocabulary" / f"{number}.parquet")
    key = {"value": str, "missing": lambda _: None, "out_of_vocabulary": lambda _: ...}
    return {key[kind](value): i for i, value, kind, _ in table.iter_rows()}


def check(new, old, found):
    """Everything in the new folder, given the rows that it should hold."""
    dataset, before = Dataset(new), Dataset(old)
    assert dataset.cardinalities == before.cardinalities
    assert dataset.vocabulary_fingerprint == before.vocabulary_fingerprint
    everything = dataset.rows(slice(0, len(found)))
    for number, name in enumerate(["c", "k"]):
        ids = ids_of(old, number)
        wanted = [ids.get(str(row[name]) if row[name] != "" else None, ids[...]) for row in found]
        assert everything.ids[:, number].tolist() == wanted
    ids = ids_of(old, 2)
    tags = [tag for row in found for tag in row["tags"].split("|") if tag]
    assert everything.bags["tags"][0].tolist() == [ids.get(tag, ids[...]) for tag in tags]
    (rule,) = before.meta.dense_rules
    z = [(float(row["d"]) - rule.mean) / rule.scale if row["d"] else 0.0 for row in found]
    np.testing.assert_allclose(everything.dense[:, 0], z, rtol=1e-6, atol=1e-7)
    assert everything.dense[:, 1].tolist() == [float(row["d"] == "") for row in found]
    assert everything.target.tolist() == [float(row["n"] >= 5) for row in found]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_new_rows_get_the_ids_rules_and_options_of_the_earlier_folder(tmp_path, old, form):
    found = rows(1, 80, 12)  # a third of the values are new
    raw = write(tmp_path / "new.csv", found)
    if form == "parquet":  # where k holds numbers, that are compared as the texts they were
        pl.read_csv(raw, schema_overrides={"d": pl.Int64}).write_parquet(tmp_path / "new.parquet")
        raw = tmp_path / "new.parquet"
    meta = prepare_table([raw], tmp_path / "new", vocabulary_of=old)
    kept = [row for row in found if row["n"] > 0]
    assert meta.splits == {"train": (0, 0), "validation": (0, 0), "test": (0, len(kept))}
    check(tmp_path / "new", old, kept)
    # And those of that folder are the same again.
    prepare_table([raw], tmp_path / "newer", vocabulary_of=tmp_path / "new")
    check(tmp_path / "newer", old, kept)


def test_numbers_stay_raw_where_the_earlier_folder_has_no_rules(tmp_path):
    raw = write(tmp_path / "old.csv", rows(0, 50, 4))
    prepare_table([raw], tmp_path / "old", dense_as_is=True, **GIVEN)
    prepare_table([raw], tmp_path / "new", vocabulary_of=tmp_path / "old", split="position")
    for name in ("dense.npy", "ids.npy", "target.npy", "bags/tags.values.npy"):
        assert (tmp_path / "new" / name).read_bytes() == (tmp_path / "old" / name).read_bytes()


def test_numbers_of_an_earlier_parquet_file_are_found_in_text(tmp_path, old):
    pl.read_csv(tmp_path / "old.csv").write_parquet(tmp_path / "old.parquet")
    prepare_table([tmp_path / "old.parquet"], tmp_path / "numbers", **GIVEN)
    found = [*rows(1, 80, 12), rows(1, 1, 1)[0] | {"k": "07", "n": 3}]
    raw = write(tmp_path / "new.csv", found)
    prepare_table([raw], tmp_path / "new", vocabulary_of=tmp_path / "numbers", where="n >= 0")
    check(tmp_path / "new", tmp_path / "numbers", found)


def test_new_rows_may_be_split_to_be_trained_on(tmp_path, old):
    raw = write(tmp_path / "new.csv", rows(1, 100, 12))
    given = {"vocabulary_of": old, "split": "random", "where": "n >= 0"}
    meta = prepare_table([raw], tmp_path / "new", **given)
    assert [stop - start for start, stop in meta.splits.values()] == [80, 10, 10]
    counts, before = Dataset(tmp_path / "new").counts, Dataset(old).counts
    assert all((counts[name] == before[name]).all() for name in before)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"target": "n"}, "target must be 'n >= 5', as in .*old, got 'n'"),
        ({"task": "rating"}, "task must be 'binary', as in .*old, got 'rating'"),
        ({"categorical": ["c"]}, r"must have the features of .*old, \['c', 'k', 'tags'\], got"),
        ({"categorical": ["k", "c"]}, "must have the features of"),
        ({"bags": {"tags": ";"}}, "bags must be"),
        ({"dense": []}, r"must have the dense columns of .*old, \['d'\], got \[\]"),
        ({"dense_as_is": True}, "dense_as_is must be False, as in .*old, got True"),
        ({"min_count": 2}, "min_count must be 1, as in .*old, got 2"),
        ({"split": "half"}, "split must be 'random', 'position', 'time:COLUMN' or .*, got 'half'"),
    ],
)
def test_contradictions_are_refused(tmp_path, old, given, match):
    raw = write(tmp_path / "new.csv", rows(1, 20, 3))
    with pytest.raises(ValueError, match=match):
        prepare_table([raw], tmp_path / "new", vocabulary_of=old, **given)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.csv", "old", "old.csv"]
    with pytest.raises(ValueError, match="split 'test' is for rows whose vocabulary"):
        prepare_table([raw], tmp_path / "new", **GIVEN | {"split": "test"})


def test_an_earlier_folder_that_cannot_serve_is_named(tmp_path, old):
    raw = write(tmp_path / "new.csv", rows(1, 20, 3))

    def refused(folder, match, error=ValueError, prepare=prepare_table):
        with pytest.raises(error, match=match):
            prepare([raw], tmp_path / "new", vocabulary_of=folder)
        assert not (tmp_path / "new").exists()

    refused(tmp_path / "none", "none is not a prepared folder", FileNotFoundError)
    write_small_folder(tmp_path / "made")
    refused(tmp_path / "made", "made was not prepared from raw files, so there can be no new ones")
    refused(old, "was prepared by `mixdim prepare table`, so new rows", prepare=prepare_criteo)
    for name, spoil in {
        "gone": lambda path: path.unlink(),
        "cut": lambda path: path.write_bytes(path.read_bytes()[:50]),
    }.items():
        shutil.copytree(old, tmp_path / name)
        spoil(tmp_path / name / "vocabulary" / "1.parquet")
        refused(tmp_path / name, r"vocabulary/1\.parquet (is missing|has 50 bytes)")
    lacking = [{name: cell for name, cell in row.items() if name != "k"} for row in rows(1, 9, 3)]
    write(raw, lacking)
    refused(old, r"new\.csv has no column 'k'")


def criteo_line(rng, values, label="1"):
    integers = ["" if rng.random() < 0.3 else str(rng.randrange(-2, 50)) for _ in range(13)]
    hexes = ["" if rng.random() < 0.1 else f"{rng.randrange(values):08x}" for _ in range(26)]
    return "\t".join([label, *integers, *hexes])


def test_new_rows_of_criteo_get_earlier_ids_and_the_same_logarithms(tmp_path):
    rng = random.Random(4)
    (tmp_path / "old").write_text("".join(criteo_line(rng, 9) + "\n" for _ in range(70)))
    lines = [criteo_line(rng, 12, "0") for _ in range(30)]
    (tmp_path / "new").write_text("\n".join(lines) + "\n")
    prepare_criteo([tmp_path / "old"], tmp_path / "a", min_count=2)
    meta = prepare_criteo([tmp_path / "new"], tmp_path / "b", vocabulary_of=tmp_path / "a")
    assert meta.splits["test"] == (0, 30)
    assert meta.options["min_count"] == 2
    batch = Dataset(tmp_path / "b").rows(slice(0, 30))
    for number in range(26):
        ids = ids_of(tmp_path / "a", number)
        cells = [line.split("\t")[14 + number] for line in lines]
        wanted = [ids.get(str(int(cell, 16)) if cell else None, ids[...]) for cell in cells]
        assert batch.ids[:, number].tolist() == wanted
    logs = [[np.log1p(max(int(x or 0), 0)) for x in line.split("\t")[1:14]] for line in lines]
    np.testing.assert_allclose(batch.dense, logs, rtol=1e-6)
    days = prepare_criteo([tmp_path / "new"], tmp_path / "c", vocabulary_of=tmp_path / "a", split="days")
    assert days.splits["train"] == (0, 26)


def test_new_ratings_get_the_ids_of_earlier_ones_in_the_same_form(tmp_path):
    rng = random.Random(5)
    for place, users in (("old", 20), ("new", 30)):
        (tmp_path / place).mkdir()
        lines = [
            f"{rng.randrange(users)}::{rng.randrange(9)}::{rng.randrange(1, 6)}::7" for _ in range(100)
        ]
        (tmp_path / place / "ratings.dat").write_text("\n".join(lines) + "\n")
        movies = "".join(f"{n}::Film (199{n})::Drama|G{n}\n" for n in range(9))
        (tmp_path / place / "movies.dat").write_text(movies)
    prepare_movielens(tmp_path / "old", tmp_path / "a", form="clicks", split="time")
    meta = prepare_movielens(tmp_path / "new", tmp_path / "b", vocabulary_of=tmp_path / "a")
    assert (meta.task, meta.splits["test"]) == ("binary", (0, 100))
    ids = ids_of(tmp_path / "a", 0)
    wanted = [ids.get(line.split("::")[0], ids[...]) for line in lines]
    assert ids[...] in wanted
    assert Dataset(tmp_path / "b").rows(slice(0, 100)).ids[:, 0].tolist() == wanted
    with pytest.raises(ValueError, match=r"form must be 'clicks', as in .*a, got 'ratings'"):
        prepare_movielens(tmp_path / "new", tmp_path / "c", vocabulary_of=tmp_path / "a", form="ratings")
    (tmp_path / "new" / "movies.dat").unlink()
    with pytest.raises(ValueError, match=r"must have the features of .*a, \['user', 'movie', 'genres'"):
        prepare_movielens(tmp_path / "new", tmp_path / "c", vocabulary_of=tmp_path / "a")


def test_what_is_prepared_says_whose_ids_it_has(tmp_path, old):
    raw = write(tmp_path / "new.csv", rows(1, 20, 3))
    prepare_table([raw], tmp_path / "new", vocabulary_of=old)
    document = json.loads((tmp_path / "new" / "meta.json").read_text())
    assert document["options"]["vocabulary_of"] == str(old)
    assert read_meta(tmp_path / "new").dense_rules == read_meta(old).dense_rules
