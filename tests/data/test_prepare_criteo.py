"""Prepared Criteo files against the slow encoder, and kills while they are prepared."""

import gzip
import math
import random
import signal
import subprocess
import sys

import numpy as np
import polars as pl
import pytest
from slow_encoder import SHARED, arrays, check_feature, needs_real_data

from mixdim.data import sources
from mixdim.data.folder import read_meta
from mixdim.data.public.criteo import prepare_criteo


def criteo_row(rng, *, values=50):
    integers = [rng.choice(["", "0", "-1", "7", str(rng.randrange(100_000))]) for _ in range(13)]
    # A skewed choice: the cube prefers small numbers.
    hexes = [f"{int(values * rng.random() ** 3) * 2654435761 % 2**32:08x}" for _ in range(26)]
    hexes = [value if rng.random() < 0.9 else "" for value in hexes]
    return [str(rng.randrange(2)), *integers, *hexes]


def criteo_text(rows, end="\n"):
    return "".join("\t".join(row) + end for row in rows).encode()


@pytest.fixture
def criteo_rows():
    rng = random.Random(0)
    return [criteo_row(rng) for _ in range(1000)]


def check_criteo(out, rows, min_count=1):
    meta = read_meta(out)
    found = arrays(out)
    assert meta.task == "binary"
    assert meta.num_rows == len(rows)
    assert found["ids"].dtype == np.int32
    np.testing.assert_array_equal(found["target"], [float(row[0]) for row in rows])
    dense = [[math.log1p(max(int(x), 0)) if x else 0.0 for x in row[1:14]] for row in rows]
    np.testing.assert_allclose(found["dense"], np.array(dense, np.float32), rtol=1e-6)
    for index in range(26):
        values = [int(row[14 + index], 16) if row[14 + index] else None for row in rows]
        check_feature(out, meta, index, values, found["ids"][:, index], min_count)


@pytest.mark.parametrize("min_count", [1, 3, 10**6])
def test_criteo_rows_equal_the_slow_encoder(tmp_path, criteo_rows, min_count):
    (tmp_path / "train.txt").write_bytes(criteo_text(criteo_rows))
    meta = prepare_criteo([tmp_path / "train.txt"], tmp_path / "out", min_count=min_count)
    assert meta == read_meta(tmp_path / "out")
    check_criteo(tmp_path / "out", criteo_rows, min_count)
    assert meta.splits == {"train": (0, 858), "validation": (858, 929), "test": (929, 1000)}
    assert meta.rows == {"read": 1000, "kept": 1000, "rejected": {}}


def test_small_blocks_gzip_carriage_returns_a_mark_and_several_files_change_nothing(
    tmp_path, criteo_rows, monkeypatch
):
    monkeypatch.setattr(sources, "BLOCK", 5000)
    files = [tmp_path / name for name in ("a", "b.gz", "c")]
    files[0].write_bytes(b"\xef\xbb\xbf" + criteo_text(criteo_rows[:300], "\r\n") + b"\r\n")
    files[1].write_bytes(gzip.compress(criteo_text(criteo_rows[300:301]).rstrip(b"\n")))
    files[2].write_bytes(criteo_text(criteo_rows[301:]) + b"\n\n")
    told = []
    meta = prepare_criteo(files, tmp_path / "out", progress=lambda *step: told.append(step))
    check_criteo(tmp_path / "out", criteo_rows)
    assert [file["name"] for file in meta.source["files"]] == ["a", "b.gz", "c"]
    assert told[-1] == ("encode", 1000, 1000)
    assert {step[0] for step in told} == {"read", "count", "encode"}


@pytest.mark.parametrize("block", [2000, 1 << 20])
def test_only_the_first_rows_are_taken_if_asked(tmp_path, criteo_rows, monkeypatch, block):
    monkeypatch.setattr(sources, "BLOCK", block)
    (tmp_path / "a").write_bytes(b"\n" + criteo_text(criteo_rows[:20]) + b"\n")
    (tmp_path / "b").write_bytes(criteo_text(criteo_rows[20:50]) + b"\n" + criteo_text(criteo_rows[50:]))
    meta = prepare_criteo([tmp_path / "a", tmp_path / "b"], tmp_path / "out", rows=70)
    check_criteo(tmp_path / "out", criteo_rows[:70])
    assert meta.splits == {"train": (0, 60), "validation": (60, 65), "test": (65, 70)}


def test_terabyte_days_are_split_by_their_names(tmp_path, criteo_rows):
    (tmp_path / "day_2").write_bytes(criteo_text(criteo_rows[100:300]))
    (tmp_path / "day_10.gz").write_bytes(gzip.compress(criteo_text(criteo_rows[300:400])))
    (tmp_path / "day_23").write_bytes(criteo_text(criteo_rows[400:501]))
    files = [tmp_path / name for name in ("day_23", "day_10.gz", "day_2")]
    meta = prepare_criteo(files, tmp_path / "out", layout="terabyte")
    assert meta.splits == {"train": (0, 300), "validation": (300, 351), "test": (351, 401)}
    check_criteo(tmp_path / "out", criteo_rows[100:501])


def test_the_vocabulary_depends_on_the_training_split_only(tmp_path, criteo_rows):
    other = [row if i < 858 else criteo_row(random.Random(i)) for i, row in enumerate(criteo_rows)]
    for name, rows in (("a", criteo_rows), ("b", other)):
        (tmp_path / f"{name}.txt").write_bytes(criteo_text(rows))
        prepare_criteo([tmp_path / f"{name}.txt"], tmp_path / name)
    for index in range(26):
        tables = [pl.read_parquet(tmp_path / name / "vocabulary" / f"{index}.parquet") for name in "ab"]
        assert tables[0].equals(tables[1])


@needs_real_data
def test_the_real_criteo_rows_decode_to_the_raw_file(tmp_path):
    raw = SHARED / "criteo_kaggle_17583.tsv"
    rows = [line.split("\t") for line in raw.read_text().splitlines()]
    meta = prepare_criteo([raw], tmp_path / "out")
    assert meta.num_rows == 17_583
    assert [feature.name for feature in meta.features] == [f"C{i}" for i in range(1, 27)]
    check_criteo(tmp_path / "out", rows)
    ids = np.load(tmp_path / "out" / "ids.npy")
    for index in range(26):
        table = pl.read_parquet(tmp_path / "out" / "vocabulary" / f"{index}.parquet")
        text = [f"{v:08x}" if k == "value" else "" for v, k in table.select("value", "kind").rows()]
        other = meta.features[index].out_of_vocabulary
        raw_values = [row[14 + index] for row in rows]
        assert [
            (text[i], raw) for i, raw in zip(ids[:, index], raw_values, strict=True) if i != other
        ] == [(raw, raw) for i, raw in zip(ids[:, index], raw_values, strict=True) if i != other]
        assert not (ids[: meta.splits["train"][1], index] == other).any()


# Interruption

CHILD = """
import sys
from pathlib import Path
from mixdim.data.public.criteo import prepare_criteo
def tell(stage, done, total):
    print(stage, flush=True)
    if stage == sys.argv[3]:
        sys.stdin.read()
prepare_criteo([Path(sys.argv[1])], sys.argv[2], progress=tell, overwrite=True)
"""


@pytest.mark.parametrize(("stage", "existing"), [("read", True), ("count", False), ("encode", True)])
def test_a_kill_leaves_no_new_folder(tmp_path, criteo_rows, stage, existing):
    (tmp_path / "raw").write_bytes(criteo_text(criteo_rows))
    out = tmp_path / "out"
    if existing:
        (tmp_path / "few").write_bytes(criteo_text(criteo_rows[:10]))
        old = prepare_criteo([tmp_path / "few"], out)
    command = [sys.executable, "-c", CHILD, str(tmp_path / "raw"), str(out), stage]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        for line in child.stdout:
            if line.strip() == stage:
                break
        child.send_signal(signal.SIGKILL)
        child.wait()
    if existing:
        assert read_meta(out) == old
    else:
        with pytest.raises(FileNotFoundError):
            read_meta(out)
    partial = list(tmp_path.glob(".out.partial-*"))
    assert len(partial) == 1
    with pytest.raises(ValueError, match="what an interrupted run left"):
        read_meta(partial[0])
