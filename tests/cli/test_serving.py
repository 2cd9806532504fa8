"""The commands about serving, as a user types them."""

import json
import os
import re
import shutil
import signal

import numpy as np
import polars as pl
import pytest

import mixdim
from commands import complaint, output
from mixdim.cli.main import run
from mixdim.runs import serving_times
from mixdim.serving import onnx_file
from mixdim.serving.session import ServedModel
from training_data import clicks, clicks_with_bags, ratings

pytest.importorskip("onnxruntime", reason="pip install 'mixdim[serve]'")
DATA = {"mf": ratings, "ncf": ratings, "dlrm": clicks, "bags": clicks_with_bags}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A trained run of each model."""
    folder = tmp_path_factory.mktemp("serving")
    for name, data in DATA.items():
        model = "dlrm" if name == "bags" else name
        small = {"dlrm": ("--bottom", "8", "--top", "8"), "mf": (), "ncf": ("--hidden", "8,4")}[model]
        arguments = (
            *("train", "--data", data().path, "--model", model, "--out", folder / name, *small),
            *("--temperature", "0.3", "--base-dim", "8", "--batch-size", "50", "--epochs", "1"),
        )
        assert run([str(argument) for argument in arguments]) == 0
    return folder


def predictions(capsys, source, data, out):
    output(capsys, "predict", source, "--data", data, "--out", out)
    return pl.read_parquet(out)


@pytest.mark.parametrize("name", DATA)
def test_an_exported_file_predicts_as_the_run(capsys, tmp_path, runs, name):
    data, file = DATA[name]().path, tmp_path / "model.onnx"
    said = output(capsys, "export", runs / name, "--out", file).out.splitlines()
    assert said[0].startswith(f"{file}: ")
    assert said[1].startswith(f"{file}.vocabulary.json: ")
    loss = "log loss" if name in ("dlrm", "bags") else "mean squared error"
    assert said[2].startswith(f"{loss} on test: ")
    assert [line.split(":")[0] for line in said[3:]] == ["batch of 1", "batch of 256"]
    found = predictions(capsys, file, data, tmp_path / "file.parquet")
    expected = predictions(capsys, runs / name, data, tmp_path / "run.parquet")
    assert found.schema == expected.schema
    assert found[["row", "target"]].equals(expected[["row", "target"]])
    assert np.abs(found["prediction"] - expected["prediction"]).max() < 1e-5

    summary = json.loads((runs / name / "summary.json").read_text())["test"]["best"]
    before, after = (float(said[2].split()[place]) for place in (-5, -3))
    assert before == pytest.approx(summary["log_loss" if name in ("dlrm", "bags") else "mse"], abs=2e-6)
    assert after == pytest.approx(before, abs=2e-6)


def test_quantizing_says_what_it_costs_and_a_quantized_run_stays_as_it_is(capsys, tmp_path, runs):
    data, file = ratings().path, tmp_path / "model.onnx"
    expected = predictions(capsys, runs / "mf", data, tmp_path / "run.parquet")["prediction"]
    distances = []
    for bits in (32, 8, 4):
        export = ("export", runs / "mf", "--out", file, "--overwrite")
        said = output(capsys, *export, "--bits", bits).out
        found = predictions(capsys, file, data, tmp_path / "p.parquet")
        distances.append(np.abs(found["prediction"] - expected).max())
        mse = float(((found["prediction"] - found["target"]) ** 2).mean())
        assert float(said.splitlines()[2].split()[-3]) == pytest.approx(mse, abs=3e-6)
    assert distances == sorted(distances)
    assert distances[0] < 1e-5 < distances[1]
    small = shutil.copytree(runs / "mf", tmp_path / "small")
    mixdim.Plan.load(small / "plan.json").quantized(8).save(small / "plan.json")
    export = ("export", small, "--out", file, "--overwrite")
    for bits in (32, 4):
        message = f"is quantized to 8 bits already, so bits cannot be {bits}"
        assert message in complaint(capsys, *export, "--bits", bits)
    output(capsys, *export, "--bits", 8)
    exported = file.read_bytes()
    output(capsys, *export)
    assert file.read_bytes() == exported
    assert ServedModel(file).about["bits"] == 8
    found = predictions(capsys, file, data, tmp_path / "p.parquet")["prediction"]
    assert np.abs(found - expected).max() == pytest.approx(distances[1], rel=1e-3)


def test_an_export_says_which_blocks_it_does_not_quantize(capsys, tmp_path):
    arguments = ("--model", "mf", "--base-dim", "8", "--batch-size", "50", "--epochs", "1")
    method = ("--method", "hashed", "--budget", "1kB")
    output(capsys, "train", "--data", ratings().path, *arguments, *method, "--out", tmp_path / "hashed")
    export = ("export", tmp_path / "hashed", "--out", tmp_path / "model.onnx")
    assert "not quantized" not in output(capsys, *export).out
    said = output(capsys, *export, "--bits", "8", "--overwrite").out
    assert "not quantized: blocks stored as hashed\n" in said


def test_the_file_beside_the_model_says_which_id_a_value_has(capsys, tmp_path, runs):
    output(capsys, "export", runs / "bags", "--out", tmp_path / "m.onnx")
    side = json.loads((tmp_path / "m.onnx.vocabulary.json").read_text())
    as_it_is = {"log": False, "mean": 0.0, "scale": 1.0, "tells_missing": False}
    assert side["dense"] == [{"name": name, **as_it_is} for name in ("x", "y")]
    assert [(f["name"], f["bag"], f["unknown"], f["missing"]) for f in side["features"]] == [
        ("user", False, 8, 8),
        ("item", False, 4, 4),
        ("tags", True, 5, 5),
    ]
    assert side["features"][1]["values"] == [0, 1, 2, 3, 4]


def test_what_is_there_stays_and_a_refused_export_leaves_nothing(capsys, tmp_path, runs, monkeypatch):
    file = tmp_path / "model.onnx"
    export = ("export", runs / "mf", "--out", file)
    for more, message in [
        (("--bits", "7"), "bits must be 1, 2, 3, 4, 5, 6, 8 or 32, got 7"),
        (("--unknown", "guess"), "unknown must be clip or refuse, got 'guess'"),
        (("--format", "tflite"), "format must be onnx or pt2, got 'tflite'"),
        (("--split", "dev"), "split must be one of train, validation, test, got 'dev'"),
        (("--data", clicks().path), "has other features than"),
        (("--data", tmp_path / "nowhere"), "nowhere is not a prepared folder"),
    ]:
        assert message in complaint(capsys, *export, *more)
        assert list(tmp_path.iterdir()) == []
    output(capsys, *export)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert f"{file} exists already; --overwrite replaces it" in complaint(capsys, *export)
    file.unlink()
    assert "model.onnx.vocabulary.json exists already" in complaint(capsys, *export)
    output(capsys, *export, "--overwrite")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before

    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("mixdim.runs.export.export", stopped)
    output(capsys, "export", runs / "mf", "--out", tmp_path / "second.onnx", code=130)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.usefixtures("usual_signals")
def test_a_signal_in_the_middle_of_writing_leaves_nothing(capsys, tmp_path, runs, monkeypatch):
    def ended(*_):
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("went on")

    monkeypatch.setattr(onnx_file, "_tensor", ended)
    output(capsys, "export", runs / "mf", "--out", tmp_path / "model.onnx", code=143)
    assert list(tmp_path.iterdir()) == []


def test_predict_refuses_what_does_not_fit_with_one_line(capsys, tmp_path, runs):
    file, out = tmp_path / "model.onnx", tmp_path / "p.parquet"
    output(capsys, "export", runs / "mf", "--out", file)
    predict = ("predict", file, "--data")
    assert "has other features than" in complaint(capsys, *predict, clicks().path, "--out", out)
    told = complaint(capsys, *predict, ratings().path, "--out", out, "--split", "dev")
    assert "split must be one of train, validation, test, got 'dev'" in told
    file.write_bytes(file.read_bytes()[:-1000])
    told = complaint(capsys, *predict, ratings().path, "--out", out)
    assert f"{file} is damaged or no ONNX model" in told
    assert not out.exists()
    missing = tmp_path / "nowhere.onnx"
    told = complaint(capsys, "predict", missing, "--data", ratings().path, "--out", out)
    assert told == f"mixdim: there is no file {missing}\n"
    told = complaint(
        capsys, "predict", file.rename(tmp_path / "m.pt2"), "--data", ratings().path, "--out", out
    )
    assert "m.pt2 is not ONNX: load it with torch.export.load" in told


def test_bench_serving_times_every_way(capsys, runs, monkeypatch):
    def not_today(*_):
        raise RuntimeError("no such operator\nand more")

    monkeypatch.setattr(serving_times, "_by_torch", not_today)  # it takes seconds
    options = ("--data", ratings().path, "--batches", "1,7", "--seconds", "0.01")
    found = json.loads(output(capsys, "bench-serving", runs / "mf", *options, "--json").out)
    ways = ["eager", "32 bits", "8 bits", "4 bits"]
    assert [(row["batch"], row["name"]) for row in found] == [(n, w) for n in (1, 7) for w in ways]
    assert all(0 < row["low"] <= row["median"] <= row["high"] for row in found)
    assert [row["bytes"] is None for row in found[:4]] == [True, False, False, False]
    said = output(capsys, "bench-serving", runs / "dlrm", "--batches", "2", "--seconds", "0.01").out
    assert said.startswith("torch.onnx: not exported: no such operator\nbatch of 2 ")
    assert [re.split("  +", line)[0] for line in said.splitlines()[2:6]] == ways
    message = "--batches must be numbers such as 1,256, got 'many'"
    assert message in complaint(capsys, "bench-serving", runs / "mf", "--batches", "many")
