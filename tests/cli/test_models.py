"""DCN and DeepFM from a raw file to a served one, as a user types it: numbers, a bag, a kill."""

import json
import random

import numpy as np
import polars as pl
import pytest

from commands import output
from mixdim.cli.main import run
from mixdim.runs.config import read_config
from mixdim.runs.sweeps.records import read_records
from resumed_runs import Kill, Killer, everything
from small_runs import trained as train

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::mixdim.FloorWarning"),
]
MODELS = {
    "dcn": ("--cross-layers", "2", "--cross-rank", "3", "--hidden", "8"),
    "deepfm": ("--hidden", "8,4"),
}


def lines(seed, count):
    """Rows of user, genres and age, of which a user's parity and a genre say how likely a click is."""
    rng, rows = random.Random(seed), []
    for _ in range(count):
        user, genres = rng.randrange(12), rng.sample("abcd", rng.randrange(3))
        click = rng.random() < (0.8 if user % 2 or "a" in genres else 0.2)
        rows.append(f"{int(click)},u{user},{'|'.join(genres)},{rng.randrange(60)}")
    return rows


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A raw file, and prepared data."""
    folder = tmp_path_factory.mktemp("models")
    header = "click,user,genres,age"
    for name, seed, count in (("raw", 0, 600), ("new", 1, 40)):
        (folder / f"{name}.csv").write_text("\n".join([header, *lines(seed, count)]) + "\n")
    columns = ["--target", "click", "--categorical", "user", "--bag", "genres:|", "--dense", "age"]
    raw, data = folder / "raw.csv", folder / "data"
    assert run(["prepare", "table", str(raw), "--out", str(data), *columns]) == 0
    return folder


@pytest.fixture(scope="module", params=MODELS)
def trained(request, place):
    """The name of a model, and a run of it."""
    out = place / request.param
    words = (
        *("train", "--data", place / "data", "--model", request.param, *MODELS[request.param]),
        *("--temperature", "0.3", "--base-dim", "4", "--batch-size", "64", "--epochs", "3"),
        *("--checkpoint-every", "3", "--out", out),
    )
    assert run([str(word) for word in words]) == 0
    return request.param, out


def test_it_begins_as_its_baseline_and_goes_on_after_a_kill_with_the_same_bytes(trained, tmp_path):
    name, out = trained
    config = read_config(out / "config.toml")
    assert config.model_options["from_baseline"]
    said, calls = [], Killer()
    train(config, tmp_path / "whole", progress=calls, echo=said.append)
    assert f"{name}: " in said[0]
    assert said[0].endswith(" first-order weights")
    assert any("begins as its baseline" in line for line in said)
    whole = everything(tmp_path / "whole")
    assert whole == everything(out)
    for at in (calls.calls // 2, calls.calls - 3):
        with pytest.raises(Kill):
            train(config, tmp_path / "killed", progress=Killer(at), overwrite=True)
        train(config, tmp_path / "killed", resume=True)
        assert everything(tmp_path / "killed") == whole


def test_it_is_compressed_exported_and_predicts_what_it_predicted(trained, place, tmp_path, capsys):
    pytest.importorskip("onnxruntime", reason="pip install 'mixdim[serve]'")
    _, out = trained
    small, data = tmp_path / "small", place / "data"
    output(capsys, "compress", out, "--budget", "1/2", "--bits", "8", "--out", small)
    for run_folder in (out, small):
        expected = tmp_path / "run.parquet"
        output(capsys, "predict", run_folder, "--data", data, "--out", expected)
        wanted = pl.read_parquet(expected)["prediction"].to_numpy()
        file = tmp_path / f"{run_folder.name}.onnx"
        assert "log loss on test: " in output(capsys, "export", run_folder, "--out", file).out
        output(capsys, "predict", file, "--data", data, "--out", tmp_path / "file.parquet")
        found = pl.read_parquet(tmp_path / "file.parquet")["prediction"].to_numpy()
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    said = output(capsys, "export", out, "--out", tmp_path / "model.pt2").out
    before, after = (float(said.split(" on test: ")[1].split()[n]) for n in (0, 2))
    assert after == pytest.approx(before, abs=2e-6)


def test_raw_rows_are_predicted(trained, place, tmp_path, capsys):
    _, out = trained
    raw, file = place / "new.csv", tmp_path / "raw.parquet"
    assert "40 predictions" in output(capsys, "predict", out, "--raw", raw, "--out", file).out
    assert pl.read_parquet(file)["prediction"].is_between(0, 1).all()


def test_it_is_swept_and_the_recommended_command_makes_the_same_run(place, tmp_path, capsys):
    records, config = tmp_path / "records.jsonl", tmp_path / "run.toml"
    of_models = {
        "dcn": "cross_layers = 2\ncross_rank = 3\nhidden = [8]\n",
        "deepfm": "hidden = [8, 4]\n",
    }
    for name, small in of_models.items():
        config.write_text(f"{small}batch_size = 64\nepochs = 1\n")
        words = (
            *("sweep", "--data", place / "data", "--model", name, "--temperatures", "0.3"),
            *("--budgets", "embeddings:60", "--seeds", "1", "--config", config, "--records", records),
        )
        output(capsys, *words)
        words = ("recommend", "--records", records, "--model", name, "--budget", "1M")
        printed = output(capsys, *words).out
        command = printed.splitlines()[-1].removeprefix("train it: mixdim ").split()
        assert run([*command[:-1], str(tmp_path / name)]) == 0
        (record,) = (one for one in read_records([records]) if one.config["model"] == name)
        again = json.loads((tmp_path / name / "summary.json").read_text())
        assert again["test"]["best"] == record.summary["test"]["best"]
