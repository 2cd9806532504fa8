"""Predictions of raw files, against those of the same rows prepared, and joined back row by row."""

import random
import shutil
import signal
import tempfile

import polars as pl
import pytest

from commands import complaint, output
from mixdim._util.signals import Terminated
from mixdim.data.public.criteo import prepare_criteo
from mixdim.data.public.movielens import prepare_movielens
from mixdim.data.table import prepare_table
from mixdim.runs.config import RunConfig
from mixdim.runs.run import Run
from small_runs import trained as train

GIVEN = {
    "target": "y",
    "categorical": ["c"],
    "dense": ["d"],
    "where": "y != ''",
    "encoding": "latin-1",
}
SMALL = {"base_dim": 2, "temperature": 0.0, "batch_size": 64, "epochs": 1, "lr": 0.1}


def lines(seed, count):
    rng = random.Random(seed)
    words = ["Köln", '"a, b"', '"two\nlines"', ""]
    return [f"{rng.randrange(2)},{rng.choice(words)},{rng.randrange(100)}" for _ in range(count)]


def write(path, header, rows):
    path.write_bytes(("\n".join([header, *rows]) + "\n").encode("latin-1"))
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with prepared data `data` and a run `run`."""
    place = tmp_path_factory.mktemp("trained")
    prepare_table([write(place / "t.csv", "y,c,d", lines(0, 200))], place / "data", **GIVEN)
    small = {"model": "dlrm", "bottom": (4,), "top": (4,), **SMALL}
    train(RunConfig.of(data=str(place / "data"), **small), place / "run")
    return place


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """Where temporary folders are made: nothing may be left there."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    yield tmp_path / "scratch"
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_raw_file_is_predicted_as_its_rows_are_once_prepared(capsys, tmp_path, trained, scratch):
    rows = lines(1, 50)
    raw = write(tmp_path / "new.csv", "y,c,d", rows)
    prepare_table([raw], tmp_path / "new", vocabulary_of=trained / "data")
    Run.open(trained / "run").predict(tmp_path / "new", tmp_path / "wanted.parquet")
    wanted = pl.read_parquet(tmp_path / "wanted.parquet")
    found = Run.open(trained / "run").predict(raw, tmp_path / "found.parquet")
    assert (found.rows, found.data) == (50, trained / "data")
    assert pl.read_parquet(tmp_path / "found.parquet").equals(wanted)
    assert Run.open(trained / "run").evaluate(tmp_path / "new")["rows"] == 50
    # Without the target, in another order of columns, by the command:
    bare = [f"{row.rpartition(',')[2]},{row[2:].rpartition(',')[0]}" for row in rows]
    raw = write(tmp_path / "bare.csv", "d,c", bare)
    out = tmp_path / "bare.parquet"
    printed = output(capsys, "predict", trained / "run", "--raw", raw, "--out", out).out
    assert (
        f"{out}: 50 predictions, ids as in {trained / 'data'}\nunknown values: none in test\n" in printed
    )
    assert pl.read_parquet(out).equals(wanted.drop("target"))


def test_rows_are_those_of_the_file_where_some_are_malformed_or_lack_a_label(
    capsys, tmp_path, trained, scratch
):
    rows = ["1,Köln,3", '0,"two\nlines",4', "", "1,Köln,many", ",Köln,3", "1,too,1,many", "maybe,Köln,3"]
    raw, out = write(tmp_path / "new.csv", "y,c,d", rows), tmp_path / "p.parquet"
    told = ("predict", trained / "run", "--raw", raw, "--out", out)
    said = output(capsys, *told, code=2).err
    assert "2 of 6 rows read are malformed (1 d is not a number, 1 wrong number of fields)" in said
    assert not out.exists()
    printed = output(capsys, *told, "--max-bad", "2").out
    assert "4 predictions" in printed
    assert "skipped malformed rows: 1 d is not a number, 1 wrong number of fields\n" in printed
    found = pl.read_parquet(out)
    assert found["row"].to_list() == [0, 1, 3, 5]
    assert found["target"].to_list() == [1.0, 0.0, None, None]
    assert found["prediction"][0] == found["prediction"][2] == found["prediction"][3]


def test_a_file_of_another_encoding_and_separator_is_predicted_as_well(
    capsys, tmp_path, trained, scratch
):
    rows = [row for row in lines(1, 50) if '"' not in row]
    raw, out = write(tmp_path / "new.csv", "y,c,d", rows), tmp_path / "p.parquet"
    Run.open(trained / "run").predict(raw, out)
    wanted = pl.read_parquet(out)
    raw.write_text("\n".join(["y;c;d", *rows]).replace(",", ";"), encoding="utf-8")
    told = ("predict", trained / "run", "--raw", raw, "--out", out, "--separator", ";")
    printed = output(capsys, *told, "--encoding", "utf-8").out
    assert "unknown values: none in test" in printed
    assert pl.read_parquet(out).equals(wanted)
    output(capsys, *told)  # as it was trained, so "Köln" is read as other letters
    assert not pl.read_parquet(out).equals(wanted)


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("ending", "error"),
    [(interrupt, KeyboardInterrupt), (lambda: signal.raise_signal(signal.SIGTERM), Terminated)],
)
@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize("stage", ["read", "encode", "predict"])
def test_nothing_stays_behind_when_it_is_stopped(tmp_path, trained, scratch, stage, ending, error):
    raw = write(tmp_path / "new.csv", "y,c,d", lines(1, 50))
    stages = []

    def stop(name, *_):
        stages.append(name)
        if name == stage or (stage == "predict" and name not in ("read", "count", "encode")):
            assert any(scratch.iterdir())
            ending()

    with pytest.raises(error):
        Run.open(trained / "run").predict(raw, tmp_path / "p.parquet", progress=stop)
    assert stages
    assert not any(scratch.iterdir())
    assert not (tmp_path / "p.parquet").exists()


def test_what_cannot_be_predicted_is_told_in_a_line(capsys, tmp_path, trained, scratch):
    raw = write(tmp_path / "new.csv", "y,c,d", lines(1, 50))
    run = shutil.copytree(trained / "run", tmp_path / "run")
    config = (run / "config.toml").read_text().replace(str(trained / "data"), str(tmp_path / "gone"))
    (run / "config.toml").write_text(config)
    told = ("predict", run, "--out", tmp_path / "p.parquet")
    assert "was trained with is not at" in complaint(capsys, *told, "--raw", raw)
    output(capsys, *told, "--raw", raw, "--data", trained / "data")
    prepare_table([raw], tmp_path / "other", **GIVEN | {"where": "d > 10"})
    assert "another vocabulary" in complaint(capsys, *told, "--raw", raw, "--data", tmp_path / "other")
    prepare_table([raw], tmp_path / "third", target="y", categorical=["d"], encoding="latin-1")
    said = complaint(capsys, *told, "--data", tmp_path / "third")
    assert "has other features than" in said
    # The same ids, but other numbers.
    prepare_table([trained / "t.csv"], tmp_path / "as-is", dense_as_is=True, **GIVEN)
    assert "other dense rules" in complaint(capsys, *told, "--data", tmp_path / "as-is")
    assert "new.csv has no column 'd': a prediction needs d, c, and it has c" in complaint(
        capsys, *told, "--data", trained / "data", "--raw", write(raw, "c", ["x"])
    )
    assert "give --data, a prepared folder, or --raw" in complaint(capsys, *told)
    for extra in (("--split", "test", "--raw", raw), ("--encoding", "utf-8", "--data", run)):
        assert "--raw" in complaint(capsys, *told, *extra)


def test_criteo_files_without_labels_are_predicted(tmp_path, scratch):
    rng = random.Random(4)
    cells = [[str(rng.randrange(9)) for _ in range(13)] for _ in range(70)]
    hexes = [[f"{rng.randrange(4):08x}" for _ in range(26)] for _ in range(70)]
    bare = ["\t".join([*a, *b]) for a, b in zip(cells, hexes, strict=True)]
    (tmp_path / "train").write_text("".join(f"{n % 2}\t{line}\n" for n, line in enumerate(bare)))
    (tmp_path / "test").write_text("".join(f"{line}\n" for line in bare))
    prepare_criteo([tmp_path / "train"], tmp_path / "data")
    small = {"model": "dlrm", "bottom": (4,), "top": (4,), **SMALL}
    train(RunConfig.of(data=str(tmp_path / "data"), **small), tmp_path / "run")
    found = {}
    for name in ("train", "test"):
        Run.open(tmp_path / "run").predict(tmp_path / name, tmp_path / f"{name}.parquet")
        found[name] = pl.read_parquet(tmp_path / f"{name}.parquet")
    assert found["train"].drop("target").equals(found["test"])
    with pytest.raises(ValueError, match="is of criteo, and encoding and separator are those of tables"):
        Run.open(tmp_path / "run").predict(tmp_path / "test", tmp_path / "p.parquet", encoding="latin-1")
    assert found["train"]["target"].to_list() == [float(n % 2) for n in range(70)]


def test_movielens_files_without_ratings_are_predicted(tmp_path, scratch):
    rng = random.Random(5)
    pairs = [(rng.randrange(20), rng.randrange(9)) for _ in range(200)]
    rated = "".join(f"{u},{i},{(u + i) % 5 + 1},7\n" for u, i in pairs)
    (tmp_path / "ratings.csv").write_text("userId,movieId,rating,timestamp\n" + rated)
    (tmp_path / "new.csv").write_text("movieId,userId\n" + "".join(f"{i},{u}\n" for u, i in pairs))
    prepare_movielens(tmp_path / "ratings.csv", tmp_path / "data")
    config = RunConfig(data=str(tmp_path / "data"), model="mf", bands=2, **SMALL)
    train(config, tmp_path / "run")
    found = {}
    for name in ("ratings", "new"):
        Run.open(tmp_path / "run").predict(tmp_path / f"{name}.csv", tmp_path / f"{name}.parquet")
        found[name] = pl.read_parquet(tmp_path / f"{name}.parquet")
    assert found["ratings"].drop("target").equals(found["new"])
    assert found["ratings"]["target"].to_list() == [(u + i) % 5 + 1 for u, i in pairs]
