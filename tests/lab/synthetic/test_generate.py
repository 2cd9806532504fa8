"""Generated data against a slow generator in plain Python."""

import hashlib
import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from redrawn import redraw

from mixdim.data.folder import read_meta
from mixdim.lab.synthetic import planted
from mixdim.lab.synthetic.generate import (
    CHUNK,
    generate_criteo_like,
    generate_movielens_like,
    generate_realistic_clicks,
)

GENERATORS = {"criteo": generate_criteo_like, "movielens": generate_movielens_like}
both = pytest.mark.parametrize("generate", GENERATORS.values(), ids=GENERATORS)
ALL = GENERATORS | {"realistic": generate_realistic_clicks}
every = pytest.mark.parametrize("generate", ALL.values(), ids=ALL)


def files_of(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def vocabulary_of(folder, feature):
    return pl.read_parquet(folder / "vocabulary" / f"{feature}.parquet")


def slow_ids(values, train):
    """Ranks of popularity in the training split by a plain dictionary; all others share the last id."""
    counts = Counter(values[:train])
    ranked = sorted(counts, key=lambda value: (-counts[value], value))
    ids = {value: rank for rank, value in enumerate(ranked)}
    return [ids.get(value, len(ids)) for value in values], ranked, counts


@both
def test_ids_vocabulary_and_counts_equal_a_slow_encoder(generate, tmp_path):
    rows = CHUNK + 700  # the last chunk is a short one
    meta = generate(tmp_path / "out", rows=rows, seed=3, scale=0.0004)
    ids = np.load(tmp_path / "out" / "ids.npy")
    train = meta.splits["train"][1]
    assert ids.dtype == np.int32
    assert ids.shape == (rows, len(meta.features))
    for n, feature in enumerate(meta.features):
        values = redraw(meta, n)
        expected, ranked, counts = slow_ids(values, train)
        assert ids[:, n].tolist() == expected
        assert (feature.rows, feature.out_of_vocabulary) == (len(ranked) + 1, len(ranked))
        assert feature.source_values == len(set(values))
        table = vocabulary_of(tmp_path / "out", n)
        assert table.schema == {"id": pl.Int32, "value": pl.Int64, "kind": pl.String, "count": pl.Int64}
        assert table["id"].to_list() == list(range(feature.rows))
        assert table["value"].to_list() == [*ranked, None]
        assert table["kind"].to_list() == ["value"] * len(ranked) + ["out_of_vocabulary"]
        assert table["count"].to_list() == [*(counts[value] for value in ranked), 0]


@every
def test_counts_equal_a_recount_of_the_training_split_and_fall(generate, tmp_path):
    meta = generate(tmp_path / "out", rows=60_000)
    ids = np.load(tmp_path / "out" / "ids.npy", mmap_mode="r")
    start, stop = meta.splits["train"]
    for n, feature in enumerate(meta.features):
        counts = vocabulary_of(tmp_path / "out", n)["count"].to_numpy()
        assert (counts == np.bincount(ids[start:stop, n], minlength=feature.rows)).all()
        assert (np.diff(counts) <= 0).all()
        assert ids[:, n].max() <= feature.out_of_vocabulary


def test_unseen_values_are_out_of_vocabulary_in_validation_and_test(tmp_path):
    meta = generate_criteo_like(tmp_path / "out", rows=20_000)
    ids = np.load(tmp_path / "out" / "ids.npy")
    unseen = np.array([feature.out_of_vocabulary for feature in meta.features])
    outside = (ids == unseen).mean(axis=0)
    assert (ids[: meta.splits["train"][1]] != unseen).all()
    assert outside[2] > 0  # C3, with 101,312 planted values
    assert outside[8] == 0  # C9, with 2


@every
def test_the_files_are_a_function_of_the_arguments(generate, tmp_path):
    generate(tmp_path / "a", rows=20_000, seed=5, scale=0.001)
    generate(tmp_path / "b", rows=20_000, seed=5, scale=0.001)
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


@pytest.mark.parametrize(
    ("generate", "ids", "targets"),
    [
        (generate_criteo_like, "5eadda7477d21107", "3cb43e2f3bd7e07c"),
        (generate_movielens_like, "1123b51187225b07", "3213d4f5baff7f02"),
    ],
)
def test_the_files_are_those_of_earlier_versions(generate, ids, targets, tmp_path):
    generate(tmp_path / "out", rows=20_000, scale=0.001, seed=3)
    for name, digest in (("ids.npy", ids), ("target.npy", targets)):
        content = (tmp_path / "out" / name).read_bytes()
        assert hashlib.blake2b(content, digest_size=8).hexdigest() == digest


@both
@pytest.mark.parametrize(
    "other", [{"seed": 6}, {"skew": 1.3}, {"decay": 1.0}, {"scale": 0.002}], ids=str
)
def test_every_argument_changes_the_targets(generate, other, tmp_path):
    arguments = {"rows": 2_000, "seed": 5, "scale": 0.001}
    generate(tmp_path / "a", **arguments)
    generate(tmp_path / "b", **(arguments | other))
    assert files_of(tmp_path / "a")["target.npy"] != files_of(tmp_path / "b")["target.npy"]


def test_another_decay_changes_only_what_is_clicked(tmp_path):
    generate_criteo_like(tmp_path / "a", rows=2_000, scale=0.001)
    generate_criteo_like(tmp_path / "b", rows=2_000, scale=0.001, decay=1.0)
    first, second = files_of(tmp_path / "a"), files_of(tmp_path / "b")
    assert {name for name in first if first[name] != second[name]} == {"target.npy", "meta.json"}


@both
def test_a_longer_set_begins_with_the_rows_of_a_shorter_one(generate, tmp_path):
    generate(tmp_path / "short", rows=CHUNK + 100, scale=0.001)
    generate(tmp_path / "long", rows=CHUNK + 5_000, scale=0.001)
    for name in ["target.npy"] + ["dense.npy"] * (generate is generate_criteo_like):
        short, long = (np.load(tmp_path / folder / name) for folder in ("short", "long"))
        assert (long[: len(short)] == short).all()


def run_apart(tmp_path, script, **environment):
    """Run a script in a process of its own; returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=os.environ | environment,
    )
    return done.stdout.strip()


def test_the_files_do_not_depend_on_the_number_of_threads(tmp_path):
    limits = ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"]
    assert os.environ["OPENBLAS_NUM_THREADS"] != "2"  # polars has here as many as there are cores
    both = [generate_criteo_like, generate_realistic_clicks]
    calls = "; ".join(f"{generate.__name__}('{generate.__name__}', rows=20_000)" for generate in both)
    script = f"from mixdim.lab.synthetic.generate import *; {calls}"
    run_apart(tmp_path, script, **{**dict.fromkeys(limits, "2"), "POLARS_MAX_THREADS": "1"})
    for generate in both:
        here = tmp_path / f"{generate.__name__}-here"
        generate(here, rows=20_000)
        assert files_of(here) == files_of(tmp_path / generate.__name__)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's VmHWM")
def test_memory_does_not_grow_with_the_rows(tmp_path):
    script = """
from mixdim.lab.synthetic.generate import generate_criteo_like
for rows in (50_000, 200_000):
    generate_criteo_like(str(rows), rows=rows, scale=0.001)
    print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""
    few, many = map(int, run_apart(tmp_path, script).split())  # the peak until then
    assert many - few < 10_000  # kB; the files are 24,000 kB longer


def test_popularity_falls_as_asked(tmp_path):
    for skew in (0.7, 1.05):
        meta = generate_movielens_like(tmp_path / str(skew), rows=200_000, skew=skew, scale=0.3)
        table = vocabulary_of(tmp_path / str(skew), 0).drop_nulls().sort("value").head(60)
        ranks, counts = table["value"].to_numpy() + 1, table["count"].to_numpy()
        slope = np.polyfit(np.log(ranks), np.log(counts), 1, w=np.sqrt(counts))[0]
        assert slope == pytest.approx(-skew, abs=0.03)
        expected = planted.popularity(meta.source["planted_values"]["user"], skew)[:60]
        expected *= meta.splits["train"][1]
        assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()


@both
def test_the_folder_is_a_prepared_one_and_says_how_it_was_made(generate, tmp_path):
    meta = generate(tmp_path / "out", rows=1_000, seed=2)
    assert read_meta(tmp_path / "out") == meta
    assert meta.options == {"rows": 1_000, "seed": 2, "scale": 0.01, "decay": 0.6} | {
        "skew": 1.05 if generate is generate_criteo_like else 0.8
    }
    assert meta.rows == {"read": 1_000, "kept": 1_000, "rejected": {}}
    assert meta.truth["rank"] == 24


def test_each_set_has_the_shape_of_its_model(tmp_path):
    meta = generate_criteo_like(tmp_path / "clicks", rows=7_000)
    assert (meta.task, meta.source["generator"]) == ("binary", "criteo-like")
    assert [f.name for f in meta.features] == [f"C{n}" for n in range(1, 27)]
    assert meta.dense == tuple(f"I{n}" for n in range(1, 14))
    assert meta.splits == {"train": (0, 6_000), "validation": (6_000, 6_500), "test": (6_500, 7_000)}
    assert meta.source["planted_values"]["C3"] == 101_312
    assert meta.source["planted_values"]["C9"] == 2
    dense = np.load(tmp_path / "clicks" / "dense.npy")
    assert (dense.dtype, dense.shape) == (np.float32, (7_000, 13))
    assert np.unique(np.load(tmp_path / "clicks" / "target.npy")).tolist() == [0, 1]

    meta = generate_movielens_like(tmp_path / "ratings", rows=1_000)
    assert (meta.task, meta.source["generator"]) == ("rating", "movielens-like")
    assert [f.name for f in meta.features] == ["user", "item"]
    assert meta.splits == {"train": (0, 800), "validation": (800, 900), "test": (900, 1_000)}
    assert meta.source["planted_values"] == {"user": 2832, "item": 539}
    assert not (tmp_path / "ratings" / "dense.npy").exists()
    assert np.load(tmp_path / "ratings" / "target.npy").dtype == np.float32


@pytest.mark.parametrize(
    ("generate", "rows"), [(generate_criteo_like, 14), (generate_movielens_like, 10)]
)
def test_the_fewest_rows_leave_one_in_each_split(generate, rows, tmp_path):
    meta = generate(tmp_path / "out", rows=rows)
    assert all(stop > start for start, stop in meta.splits.values())
    with pytest.raises(ValueError, match=f"rows must be at least {rows}, got {rows - 1}"):
        generate(tmp_path / "fewer", rows=rows - 1)


@both
@pytest.mark.parametrize("skew", [0, 4])
def test_the_bounds_of_skew_are_usable(generate, skew, tmp_path):
    meta = generate(tmp_path / "out", rows=3_000, skew=skew, scale=1e-9)
    assert set(meta.source["planted_values"].values()) == {2}
    assert all(math.isfinite(scale) for scale in meta.truth["component_scale"])


@both
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rows": 2.5}, "rows must be a whole number, got 2.5"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"scale": 0}, "scale must be above 0 and at most 1, got 0.0"),
        ({"scale": 1.5}, "scale must be above 0 and at most 1, got 1.5"),
        ({"scale": "big"}, "scale must be a number, got 'big'"),
        ({"skew": -0.1}, r"skew must be in \[0, 4\], got -0.1"),
        ({"skew": float("nan")}, "skew must be finite, got nan"),
        ({"decay": 9}, r"decay must be in \[0, 4\], got 9.0"),
    ],
    ids=str,
)
def test_an_argument_out_of_bounds_is_named_and_nothing_is_written(generate, wrong, message, tmp_path):
    with pytest.raises((TypeError, ValueError), match=message):
        generate(tmp_path / "out", **({"rows": 100} | wrong))
    assert not list(tmp_path.iterdir())


@every
def test_an_existing_folder_is_replaced_only_when_told(generate, tmp_path):
    generate(tmp_path / "out", rows=100, scale=0.001)
    with pytest.raises(FileExistsError, match="exists already"):
        generate(tmp_path / "out", rows=200, scale=0.001)
    assert read_meta(tmp_path / "out").num_rows == 100
    generate(tmp_path / "out", rows=200, scale=0.001, overwrite=True)
    assert read_meta(tmp_path / "out").num_rows == 200


def test_progress_counts_rows_in_both_passes(tmp_path):
    calls = []
    generate_movielens_like(tmp_path / "out", rows=CHUNK + 5, progress=lambda *call: calls.append(call))
    total = CHUNK + 5
    assert calls == [
        (stage, done, total) for stage in ("counting", "writing") for done in (CHUNK, total)
    ]


def test_a_stop_halfway_leaves_nothing(tmp_path):
    def stop(stage, rows_done, rows_total):
        if stage == "writing":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate_criteo_like(tmp_path / "out", rows=100, progress=stop)
    assert not list(tmp_path.iterdir())
