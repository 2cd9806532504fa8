import json
from collections import Counter
from itertools import pairwise

import numpy as np
import polars as pl
import pytest

from commands import complaint, output
from mixdim.data import folder
from mixdim.data.folder import FeatureMeta, Meta
from mixdim.data.folder_writer import FolderWriter
from mixdim.data.inspect import inspect


def write_folder(out, columns, targets, sizes, *, min_count=1):
    """Prepare lists of raw values (of lists of values: a bag) the slow way, with plain dictionaries."""
    bounds = np.cumsum([0, *sizes]).tolist()
    rows = bounds[-1]
    features, singles = [], []
    with FolderWriter(out) as writer:
        for number, (name, column) in enumerate(columns.items()):
            bag = any(isinstance(value, list) for value in column)
            per_row = column if bag else [[value] for value in column]
            counts = Counter(value for values in per_row[: sizes[0]] for value in values)
            known = {value: count for value, count in counts.items() if count >= min_count}
            entries = [(count, "missing" if v is None else "value", v) for v, count in known.items()]
            rare = sum(counts.values()) - sum(known.values())
            entries.append((rare, "out_of_vocabulary", None))
            entries.sort(key=lambda entry: -entry[0])
            vocabulary = pl.DataFrame(
                {
                    "id": range(len(entries)),
                    "value": [value for _, _, value in entries],
                    "kind": [kind for _, kind, _ in entries],
                    "count": [count for count, _, _ in entries],
                },
                schema={"id": pl.Int32, "value": pl.String, "kind": pl.String, "count": pl.Int64},
            )
            vocabulary.write_parquet(writer.path / "vocabulary" / f"{number}.parquet")
            unknown = next(i for i, entry in enumerate(entries) if entry[1] == "out_of_vocabulary")
            id_of = {entry[2]: i for i, entry in enumerate(entries) if i != unknown}
            encoded = [[id_of.get(value, unknown) for value in values] for values in per_row]
            if bag:
                flat = [value for values in encoded for value in values]
                offsets = np.cumsum([0, *(len(values) for values in encoded)])
                writer.array(f"bags/{name}.values.npy", (len(flat),), np.int32)[:] = flat
                writer.array(f"bags/{name}.offsets.npy", (rows + 1,), np.int64)[:] = offsets
            else:
                singles.append([ids[0] for ids in encoded])
            source_values = len({value for values in per_row for value in values})
            features.append(FeatureMeta(name, len(entries), unknown, source_values, bag))
        writer.array("ids.npy", (rows, len(singles)), np.int32)[:] = np.array(
            singles, np.int32
        ).T.reshape(rows, len(singles))
        writer.array("target.npy", (rows,), np.float32)[:] = targets
        splits = dict(zip(("train", "validation", "test"), pairwise(bounds), strict=True))
        writer.finish(Meta("rating", tuple(features), (), splits))
    return out


@pytest.fixture
def small(tmp_path):
    color = ["red", "red", "red", "blue", "blue", None, "red", "green", "pink", "blue"]
    tags = [["a", "b"], ["a"], [], ["a", "c"], [], ["b"], ["a", "z", "z"], [], ["y"], []]
    return write_folder(
        tmp_path / "small", {"color": color, "tags": tags}, [1, 2, 3, 4, 5, 3, 1, 2, 5, 2], (6, 2, 2)
    )


def test_a_small_folder_is_inspected_as_counted_by_hand(small):
    found = inspect(small)
    color, tags = found.features
    assert (found.task, [split.rows for split in found.splits]) == ("rating", [6, 2, 2])
    assert [split.mean_target for split in found.splits] == [3.0, 1.5, 3.5]
    # Rows of color: red 3, blue 2, missing 1, out of vocabulary 0; green and pink come later.
    assert (color.rows, color.source_values, color.in_vocabulary) == (4, 5, 3)
    assert (color.top_1_percent, color.top_10_percent) == (3 / 6, 3 / 6)
    assert (color.out_of_vocabulary_validation, color.out_of_vocabulary_test) == (1 / 2, 1 / 2)
    # Rows of tags: a 3, b 2, c 1, out of vocabulary 0; then z twice of three values, and y.
    assert (tags.bag, tags.rows, tags.source_values, tags.in_vocabulary) == (True, 4, 5, 3)
    assert (tags.top_1_percent, tags.out_of_vocabulary_validation) == (3 / 6, 2 / 3)
    assert tags.out_of_vocabulary_test == 1.0
    assert (color.out_of_vocabulary_trained, tags.out_of_vocabulary_trained) == (False, False)


def test_the_table_is_readable(small):
    assert str(inspect(small)).splitlines() == [
        "Prepared data: rating task, 10 rows, 2 features",
        "",
        "split       rows  mean target",
        "train          6       3.0000",
        "validation     2       1.5000",
        "test           2       3.5000",
        "",
        "                     values  with own  queries on  queries on  "
        "unknown in  unknown in  unknown in",
        "feature     rows  in source       row      top 1%     top 10%  "
        "     train  validation        test",
        "color          4          5         3       50.0%       50.0%  "
        "     0.00%      50.00%      50.00%",
        "tags (bag)     4          5         3       50.0%       50.0%  "
        "     0.00%      66.67%     100.00%",
        "",
        "unknown values: training never saw those of 100.0% of the lookups in test of tags, "
        "50.0% of color,",
        "and the row they share was never trained: "
        "mixdim train --unknown-dropout trains it on rare values,",
        "and so does mixdim prepare ... --min-count 2",
    ]


def test_the_largest_features_are_shown_with_their_most_popular_values(small, capsys):
    found = inspect(small, top=1)
    assert [feature.name for feature in found.features] == ["color"]
    assert found.features[0].popular == (("red", 3),)
    assert inspect(small, top=9).features[1].popular == (("a", 3), ("b", 2), ("c", 1))
    printed = output(capsys, "inspect", small, "--top", "2").out
    assert "rating task, 10 rows, 2 features" in printed
    assert "most popular in training\ncolor  red 3, blue 2\ntags   a 3, b 2\n" in printed
    assert "and 1 with fewer rows" in output(capsys, "inspect", small, "--top", "1").out
    assert json.loads(output(capsys, "inspect", small, "--top", "1", "--json").out)["features_left_out"]
    assert "top must be at least 1, got 0" in complaint(capsys, "inspect", small, "--top", "0")


def test_the_dictionary_is_what_json_gives_back(small):
    found = inspect(small).to_dict()
    assert json.loads(json.dumps(found)) == found
    assert found["features"][0]["name"] == "color"
    assert found["features"][0]["out_of_vocabulary_trained"] is False
    assert found["advice"].startswith("unknown values: training never saw")
    assert found["splits"][1] == {"name": "validation", "rows": 2, "mean_target": 1.5}


@pytest.mark.parametrize("chunk", [1, 7, 1 << 22])
def test_shares_and_rates_equal_brute_force_for_every_chunk(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(folder, "CHUNK", chunk)
    random = np.random.default_rng(3)
    sizes, min_count = (900, 60, 75), 2
    train, validation = sizes[0], sizes[0] + sizes[1]
    columns = {
        "few": [str(v) for v in random.integers(0, 4, sum(sizes))],
        "bag": [
            [str(v) for v in random.zipf(1.4, n) % 1000]
            for n in random.integers(0, 5, sum(sizes)).tolist()
        ],
        "many": [str(v) for v in random.zipf(1.3, sum(sizes)) % 5000],
    }
    targets = random.normal(size=sum(sizes)).astype(np.float32)
    found = inspect(write_folder(tmp_path / "out", columns, targets, sizes, min_count=min_count))
    for feature, (name, column) in zip(found.features, columns.items(), strict=True):
        per_row = column if name == "bag" else [[value] for value in column]
        parts = [per_row[:train], per_row[train:validation], per_row[validation:]]
        queries = [[value for values in part for value in values] for part in parts]
        counts = Counter(queries[0])
        known = {value for value, count in counts.items() if count >= min_count}
        rare = sum(count for value, count in counts.items() if value not in known)
        popular = sorted([*(counts[value] for value in known), rare], reverse=True)
        assert feature.rows == len(known) + 1
        assert feature.out_of_vocabulary_trained == (rare > 0)
        assert feature.in_vocabulary == len(known)
        assert feature.source_values == len({value for part in queries for value in part})
        for share, percent in ((feature.top_1_percent, 1), (feature.top_10_percent, 10)):
            top = max(1, len(popular) * percent // 100)
            assert share == pytest.approx(sum(popular[:top]) / len(queries[0]))
        for rate, part in (
            (feature.out_of_vocabulary_validation, queries[1]),
            (feature.out_of_vocabulary_test, queries[2]),
        ):
            assert rate == pytest.approx(sum(value not in known for value in part) / len(part))
    means = [targets[:train].mean(), targets[train:validation].mean(), targets[validation:].mean()]
    assert [split.mean_target for split in found.splits] == pytest.approx(means, abs=1e-6)


def test_nothing_has_no_share(tmp_path):
    folder = write_folder(tmp_path / "out", {"bag": [[], [], []]}, [1, 0, 1], (2, 0, 1))
    found = inspect(folder)
    (bag,) = found.features
    assert (bag.rows, bag.in_vocabulary, bag.source_values) == (1, 0, 0)
    assert bag.top_1_percent is bag.top_10_percent is None
    assert bag.out_of_vocabulary_validation is bag.out_of_vocabulary_test is None
    assert [split.mean_target for split in found.splits] == [0.5, None, 1.0]
    assert str(found).splitlines()[-1].split()[-4:] == ["-"] * 4


def test_a_changed_folder_is_refused(small):
    (small / "target.npy").write_bytes(b"short")
    with pytest.raises(ValueError, match=r"target\.npy has 5 bytes instead of"):
        inspect(small)
