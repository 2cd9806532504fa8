"""Rows of a request, against the rows of the same file prepared for prediction."""

import json
import random
from datetime import date
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
import torch
from small_folder import write_small_folder

from mixdim.data import Dataset, RowEncoder
from mixdim.data.prediction_rows import opened_raw
from mixdim.data.public.criteo import prepare_criteo
from mixdim.data.public.movielens import prepare_movielens
from mixdim.data.table import prepare_table
from odd_rows import ROLES, odd_rows, write_rows


def assert_same(encoder, found, folder, raw):
    """Rows are what the same file gives that is prepared for prediction."""
    batch = encoder.encode(found)
    with opened_raw(raw, folder) as prepared:
        wanted = prepared.dataset.rows(slice(0, prepared.dataset.meta.num_rows))
    assert torch.equal(batch.ids, wanted.ids)
    assert torch.equal(batch.dense, wanted.dense)
    assert batch.bags.keys() == wanted.bags.keys()
    for name, parts in wanted.bags.items():
        assert all(map(torch.equal, batch.bags[name], parts))
    assert batch.target.isnan().all()
    assert all(one.dtype == other.dtype for one, other in zip(batch[:3], wanted[:3], strict=True))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kinds")
    prepare_table([write_rows(folder / "t.csv", odd_rows(1, 300))], folder / "data", **ROLES)
    return folder / "data"


def of_document(encoder, folder):
    """The encoder as it is read beside an exported model."""
    (folder / "m.onnx.vocabulary.json").write_text(json.dumps(encoder.document()))
    return RowEncoder.of_model(folder / "m.onnx")


def test_rows_of_a_text_file_are_encoded_as_the_file_is(tmp_path, prepared):
    new = odd_rows(2, 80)
    raw, encoder = write_rows(tmp_path / "new.csv", new), RowEncoder.of_folder(prepared)
    assert encoder.columns == ("city", "number", "share", "a, b", "tags", "income", "age", "same")
    for one in (encoder, of_document(encoder, tmp_path)):
        assert_same(one, new, prepared, raw)
        assert_same(one, pl.DataFrame(new), prepared, raw)


def test_rows_may_have_numbers_lists_and_gaps_where_a_file_has_texts(prepared):
    encoder = RowEncoder.of_folder(prepared)
    texts = {"city": "", "number": "7", "share": "0.5", "a, b": "x", "income": "12", "tags": "a|b"}
    values = {"city": None, "number": 7, "share": 0.5, "a, b": "x", "income": 12, "tags": ["a", "b"]}
    some = [texts, {**values, "day": "x", "user": {}}, {**texts, "number": 7.5}, {}]
    one, other, mixed, nothing = (encoder.arrays([row]) for row in some)
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name])
    together = encoder.arrays(some)
    np.testing.assert_array_equal(
        together["ids"], np.concatenate([found["ids"] for found in (one, other, mixed, nothing)])
    )
    assert encoder.arrays([])["ids"].shape == (0, 4)


def test_rows_of_a_parquet_file_are_encoded_as_the_file_is(tmp_path):
    rng = np.random.default_rng(0)

    def frame(n, shift):
        tags = [
            [f"t{k}" for k in rng.integers(0, 4 + shift, k)] if k else None
            for k in rng.integers(0, 4, n)
        ]
        return pl.DataFrame({
            "y": rng.integers(0, 2, n).astype(bool),
            "whole": pl.Series(rng.integers(0, 9 + shift, n)),
            "real": np.round(rng.random(n), 1) * 1e16,
            "yes": pl.Series(rng.integers(0, 2, n) > 0).replace_strict({True: True, False: None}),
            "when": [date(2026, 1, int(d)) for d in rng.integers(1, 9 + shift, n)],
            "tags": tags,
            "x": pl.Series(rng.normal(size=n)).set(pl.Series(rng.random(n) < 0.1), None),
        })  # fmt: skip

    columns = {"categorical": ["whole", "real", "yes", "when"], "dense": ["x"], "bags": {"tags": ";"}}
    frame(200, 0).write_parquet(tmp_path / "t.parquet")
    prepare_table([tmp_path / "t.parquet"], tmp_path / "data", target="y", **columns)
    new = frame(60, 3)
    new.write_parquet(tmp_path / "new.parquet")
    encoder = RowEncoder.of_folder(tmp_path / "data")
    for one in (encoder, of_document(encoder, tmp_path)):
        assert_same(one, new, tmp_path / "data", tmp_path / "new.parquet")
        assert_same(one, new.to_dicts(), tmp_path / "data", tmp_path / "new.parquet")


def test_rows_of_criteo_and_movielens_are_encoded_as_their_files_are(tmp_path):
    rng = random.Random(4)
    names = [*(f"I{n}" for n in range(1, 14)), *(f"C{n}" for n in range(1, 27))]
    cells = [
        [rng.choice(["", "-1", str(rng.randrange(99))]) for _ in range(13)]
        + [rng.choice(["", f"{rng.randrange(4):08x}"]) for _ in range(26)]
        for _ in range(70)
    ]
    lines = ["\t".join(["1", *row]) for row in cells]
    (tmp_path / "train").write_text("\n".join(lines[:60]) + "\n")
    (tmp_path / "new").write_text("\n".join(lines) + "\n")
    prepare_criteo([tmp_path / "train"], tmp_path / "criteo")
    new = [dict(zip(names, row, strict=True)) for row in cells]
    encoder = RowEncoder.of_folder(tmp_path / "criteo")
    for one in (encoder, of_document(encoder, tmp_path)):
        assert_same(one, new, tmp_path / "criteo", tmp_path / "new")
    with pytest.raises(ValueError, match="row 1: not 8 hex digits"):
        encoder.encode([new[0], {"C3": "xyz"}])
    pairs = [(rng.randrange(20), rng.randrange(9)) for _ in range(100)]
    text = "userId,movieId,rating,timestamp\n" + "".join(f"{u},{i},3,7\n" for u, i in pairs)
    (tmp_path / "ratings.csv").write_text(text)
    prepare_movielens(tmp_path / "ratings.csv", tmp_path / "rated")
    new = [{"user": str(u), "item": i} for u, i in pairs]
    assert_same(
        RowEncoder.of_folder(tmp_path / "rated"), new, tmp_path / "rated", tmp_path / "ratings.csv"
    )


def test_data_from_no_raw_file_is_encoded_by_the_names_of_its_features(tmp_path):
    dataset = Dataset(write_small_folder(tmp_path / "small", bags=True))
    batch = dataset.rows(slice(0, 100))
    values, offsets = batch.bags["tags"]
    bags = [values[i:j].tolist() for i, j in pairwise(offsets)]
    columns = (*batch.ids.T.tolist(), *batch.dense.T.tolist(), bags)
    names = ("user", "item", "x", "y", "tags")
    found = RowEncoder.of_folder(dataset.path).encode(
        [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    )
    assert torch.equal(found.ids, batch.ids)
    assert torch.equal(found.dense, batch.dense)
    assert all(map(torch.equal, found.bags["tags"], (values, offsets)))


def test_wrong_rows_and_files_are_told_in_a_line(tmp_path, prepared):
    encoder = RowEncoder.of_folder(prepared)
    for wrong, message in [
        ([{}, {"age": "many"}], "row 1: age is not a number: 'many'"),
        ([{"age": float("inf")}], "row 0: age is not a number: inf"),
        ([{}, {"note": "x"}], "row 1 has none of the columns city, number, share"),
        (pl.DataFrame({"note": ["x"]}), "the frame has none of the columns city"),
        ([{"city": ["x"]}], r"'city' must be a string or a number, got \['x'\]"),
    ]:
        with pytest.raises(ValueError, match=message):
            encoder.encode(wrong)
    with pytest.raises(FileNotFoundError):
        RowEncoder.of_model(tmp_path / "gone.onnx")
    path = tmp_path / "m.onnx.vocabulary.json"
    for change in ({"version": 1}, {"features": [{}]}, {"dense": 3}):
        path.write_text(json.dumps(encoder.document() | change))
        with pytest.raises(ValueError, match="is malformed, export the model again: "):
            RowEncoder.of_model(tmp_path / "m.onnx")
