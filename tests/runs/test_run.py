"""Runs from Python: created, trained, resumed, opened, measured, and the same by the commands."""

import itertools
import json
import shutil
import signal
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

import mixdim
from commands import output
from mixdim._util.locks import alone_at_work
from mixdim.lab.synthetic.generate import (
    generate_criteo_like,
    generate_movielens_like,
    generate_realistic_clicks,
)
from mixdim.runs.config import RunConfig, read_config
from mixdim.runs.run import Run
from mixdim.tasks import task_of
from mixdim.training import CheckpointError, Stopped
from small_runs import DATA, FEW_STEPS, content, told, trained
from training_data import clicks_with_bags, ratings, raw_bytes, small_config

pytestmark = pytest.mark.usefixtures("one_thread")

OBJECTIVE = {name: task_of(data().task).objective for name, data in DATA.items()}


@pytest.fixture(scope="module", params=DATA)
def finished(request, tmp_path_factory):
    """The name, the folder and the summary of a finished run of each model."""
    out = tmp_path_factory.mktemp(request.param) / "run"
    return request.param, out, trained(told(request.param), out).summary


def test_the_summary_says_what_was_trained_at_what_cost_how_well(finished):
    name, out, summary = finished
    assert json.loads((out / "summary.json").read_text()) == summary
    assert {
        *("model", "temperature", "base_dim", "budget", "num_parameters", "embedding_parameters"),
        *("seed", "epochs_run", "seconds", "samples_per_second", "peak_memory_bytes", "test"),
        "validation",
    } <= summary.keys()
    metrics = {"mf": {"mse", "rmse", "mae"}, "ncf": {"mse", "rmse", "mae"}}.get(
        name, {"log_loss", "accuracy", "auc", "calibration"}
    )
    for split in ("validation", "test"):
        for which in ("best", "last"):
            found = summary[split][which]
            assert metrics | {"rows", "step", "epoch", "slices"} <= found.keys()
            assert all(
                metrics <= found["slices"][third].keys() for third in ("popular", "middle", "rare")
            )
    model = Run.open(out).model()
    assert summary["num_parameters"] == sum(p.numel() for p in model.parameters())
    tables = [module for key, module in model.named_children() if "embedding" in key]
    assert summary["embedding_parameters"] == sum(
        p.numel() for table in tables for p in table.parameters()
    )
    assert (summary["model"], summary["base_dim"], summary["temperature"]) == (name, 8, 0.3)
    assert (summary["epochs_run"], summary["budget"]) == (4, None)
    plan = mixdim.Plan.from_json((out / "plan.json").read_text())
    assert list(summary["widths"]) == list(plan)
    widths = [width for of_feature in summary["widths"].values() for width in of_feature]
    assert widths == [block.dim for block in plan.blocks]


@pytest.mark.parametrize(
    ("generate", "name"),
    [(generate_criteo_like, "criteo-like"), (generate_realistic_clicks, "criteo-like-realistic-1")],
)
def test_the_summary_says_which_generator_made_the_data(generate, name, tmp_path):
    generate(tmp_path / "data", rows=100, scale=0.0005)
    small = RunConfig.of(data=str(tmp_path / "data"), temperature=0, base_dim=2, bottom=(4,), top=(4,))
    assert trained(small, tmp_path / "run").summary["generator"] == name


def test_evaluating_a_run_gives_the_metrics_of_its_summary(finished):
    name, out, summary = finished
    for split, data in (("validation", DATA[name]().path), ("test", None)):
        for weights in ("best", "last"):
            found = Run.open(out).evaluate(data, split, weights=weights)
            assert found["step"] == summary[split][weights]["step"]
            expected = {key: value for key, value in summary[split][weights].items() if key != "epoch"}
            assert {**found, **expected} == found


def test_predictions_are_the_outputs_of_the_model_or_their_probabilities(finished, tmp_path):
    name, out, _ = finished
    dataset, file = DATA[name](), tmp_path / "predictions.parquet"
    start, stop = dataset.splits["validation"]
    assert Run.open(out).predict(dataset.path, file, split="validation").rows == stop - start
    table = pl.read_parquet(file)
    batch = dataset.rows(slice(start, stop))
    with torch.no_grad():
        outputs = Run.open(out).model()(batch).double().numpy()
    expected = 1 / (1 + np.exp(-outputs)) if dataset.task == "binary" else outputs
    np.testing.assert_allclose(table["prediction"].to_numpy(), expected, rtol=1e-5)
    assert table["row"].to_list() == list(range(start, stop))
    assert (table["target"].to_numpy() == batch.target.numpy()).all()
    if dataset.task == "binary":
        assert table["prediction"].is_between(0, 1).all()


def test_training_from_the_saved_config_gives_the_same_weights(finished, tmp_path):
    _, out, summary = finished
    torch.manual_seed(12345)  # what was drawn before does not matter
    again = trained(read_config(out / "config.toml"), tmp_path / "again").summary
    assert (tmp_path / "again" / "config.toml").read_text() == (out / "config.toml").read_text()
    assert (tmp_path / "again" / "plan.json").read_text() == (out / "plan.json").read_text()
    assert again["test"] == summary["test"]
    for first in (out / "checkpoint").glob("*/tensors.safetensors"):  # the random state is in them too
        second = tmp_path / "again" / first.relative_to(out)
        assert first.read_bytes() == second.read_bytes()
    for weights in ("best", "last"):
        first, second = (Run.open(folder).model(weights) for folder in (out, tmp_path / "again"))
        assert raw_bytes(first) == raw_bytes(second)


SMALL = {"model": "mf", "base_dim": 8, "temperature": 0.3, "preset": "paper-cf", **FEW_STEPS}


def test_a_dict_a_config_and_options_by_name_make_the_same_run_and_nothing_is_written(tmp_path):
    options = {**SMALL, "data": str(ratings().path)}
    runs = [
        Run.create(tmp_path / "run", options),
        Run.create(str(tmp_path / "run"), RunConfig.of(**options)),
        Run.create(tmp_path / "run", **options),
        Run.create(tmp_path / "run", {**options, "base_dim": 2, "epochs": None}, base_dim=8, epochs=4),
    ]
    assert len({run.config for run in runs}) == 1
    assert all(run.plan == mixdim.plan(ratings(), temperature=0.3, base_dim=8, bands=8) for run in runs)
    assert (runs[0].summary, runs[0].curve, list(tmp_path.iterdir())) == (None, (), [])
    assert repr(runs[0]) == f"Run('{tmp_path}/run')"
    runs[0].train()
    assert Run.open(tmp_path / "run").config == runs[1].config
    assert mixdim.Run is Run


def test_each_command_does_what_the_run_does(tmp_path, capsys):
    """The same files, byte for byte, and the same metrics and words."""
    pytest.importorskip("onnxruntime", reason="pip install 'mixdim[serve]'")
    data, lines = ratings().path, []
    run = trained(told("mf", epochs=2), tmp_path / "run", echo=lines.append)
    flags = ("--config", tmp_path / "run" / "config.toml", "--out", tmp_path / "command")
    printed = output(capsys, "train", *flags).out.splitlines()
    assert printed[0] == lines[0]
    assert lines[-1].startswith("memory: about ")
    for path in (tmp_path / "run").rglob("*"):
        if path.suffix in (".toml", ".safetensors") or path.name == "plan.json":
            twin = tmp_path / "command" / path.relative_to(tmp_path / "run")
            assert path.read_bytes() == twin.read_bytes(), path

    words = ("--data", data, "--weights", "last", "--split", "validation")
    found = json.loads(output(capsys, "evaluate", run.path, *words, "--slice-by", "user", "--json").out)
    assert found == run.evaluate(data, "validation", weights="last", slice_by="user")

    output(capsys, "predict", run.path, *words, "--out", tmp_path / "command.parquet")
    done = run.predict(data, tmp_path / "run.parquet", split="validation", weights="last")
    assert (done.rows, done.data) == (100, data)
    assert pl.read_parquet(tmp_path / "run.parquet").equals(
        pl.read_parquet(tmp_path / "command.parquet")
    )

    said = output(capsys, "export", run.path, "--out", tmp_path / "command.onnx", "--bits", "8").out
    lines.clear()
    run.export(tmp_path / "run.onnx", bits=8, echo=lines.append)
    run.export(tmp_path / "silent.onnx", bits=8)
    exported = [(tmp_path / f"{name}.onnx").read_bytes() for name in ("command", "run", "silent")]
    assert exported[0] == exported[1] == exported[2]
    assert said.splitlines()[2] == lines[2]

    flags = ("--budget", "1/2", "--bits", "8", "--by-counts", "--out", tmp_path / "small-command")
    printed = output(capsys, "compress", run.path, *flags).out
    small = run.compress(tmp_path / "small", "1/2", 8, by_loss=False)
    assert str(small.plan) in printed
    first, second = (Run.open(tmp_path / name) for name in ("small", "small-command"))
    assert raw_bytes(first.model()) == raw_bytes(second.model())


def test_progress_is_told_to_a_function_or_shown(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("mixdim.runs.progress.SECONDS_BETWEEN_LINES", 0.0)
    stages = set()

    def note(stage, done, total, words):
        stages.add(stage)

    run = trained(told("mf", epochs=1), tmp_path / "run", progress=note)
    assert stages == {"training", "measuring validation", "measuring test"}
    assert capsys.readouterr() == ("", "")
    stages.clear()
    run.evaluate(progress=note)
    run.predict(ratings(), tmp_path / "p.parquet", split="validation", progress=note)
    assert stages == {"measuring validation", "measuring test"}
    run.evaluate(progress=True)
    assert "measuring test: 100 of 100, " in capsys.readouterr().err


@pytest.mark.usefixtures("usual_signals")
def test_a_run_that_is_stopped_goes_on_with_the_same_bytes(tmp_path):
    whole = trained(told("mf", epochs=2), tmp_path / "whole")
    run, calls = Run.create(tmp_path / "run", told("mf", epochs=2)), itertools.count()

    def interrupt(*_):
        if next(calls) == 5:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Stopped, match="stopped by SIGINT after step 6; wrote ") as stopped:
        run.train(progress=interrupt)
    assert stopped.value.checkpoint.is_dir()
    assert run.summary is None
    with pytest.raises(FileExistsError, match="--resume continues it"):
        run.train()
    run.train(resume=True)
    assert raw_bytes(run.model()) == raw_bytes(whole.model())


def test_a_model_that_somebody_changes_is_not_the_run_s(tmp_path):
    run = trained(told("mf", epochs=1), tmp_path / "run")
    before, model = run.evaluate(), run.model()
    with torch.no_grad():
        model.user_embedding.table_8.zero_()
    assert run.evaluate() == before
    assert raw_bytes(run.model("last")) != raw_bytes(model)


def test_the_seed_decides_the_weights(mf_run, tmp_path):
    trained(told("mf", epochs=1, seed=1), tmp_path / "other")
    first, second = (Run.open(folder).model() for folder in (mf_run, tmp_path / "other"))
    assert raw_bytes(first) != raw_bytes(second)


def test_data_with_bags_is_trained_and_measured(tmp_path):
    dataset = clicks_with_bags()
    config = small_config("dlrm", dataset, batch_size=10, epochs=1)
    summary = trained(config, tmp_path / "run").summary
    assert Run.open(tmp_path / "run").evaluate(dataset.path)["auc"] == summary["test"]["best"]["auc"]


def test_more_epochs_go_on_from_the_end(mf_run, tmp_path):
    resumed = trained(RunConfig(epochs=3, data=str(ratings().path)), mf_run, resume=True).summary
    straight = trained(told("mf", epochs=3), tmp_path / "straight").summary
    assert resumed["epochs_run"] == 3
    assert resumed["test"] == straight["test"]
    assert read_config(mf_run / "config.toml").epochs == 3


def test_a_finished_run_is_not_trained_again(mf_run):
    before, lines = content(mf_run), []
    run = trained(RunConfig(), mf_run, resume=True, echo=lines.append)
    assert lines == [f"{mf_run} is finished already"]
    assert run.summary == json.loads((mf_run / "summary.json").read_text())
    assert content(mf_run) == before


@pytest.mark.parametrize("name", ["dlrm", "mf"])
def test_a_trained_run_has_its_best_model_and_all_validations_also_when_read_back(name, tmp_path):
    out = tmp_path / "run"
    made = trained(told(name, epochs=2), out)
    best = Run.open(out).model()
    assert raw_bytes(made.model()) == raw_bytes(best)
    lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    steps = [line["step"] for line in lines if line["kind"] == "validation"]
    curve = made.curve
    assert [point["step"] for point in curve] == steps
    read = trained(RunConfig(), out, resume=True)
    assert (read.summary, read.curve) == (made.summary, curve)
    assert raw_bytes(read.model()) == raw_bytes(best)
    longer = trained(RunConfig(epochs=3), out, resume=True)
    assert longer.curve[: len(steps)] == curve
    assert longer.curve[-1]["loss"] == longer.summary["validation"]["last"][OBJECTIVE[name]]


def test_a_finished_run_whose_weights_were_removed_still_says_how_it_ended(mf_run):
    shutil.rmtree(mf_run / "checkpoint")
    run = trained(RunConfig(), mf_run, resume=True)
    assert run.summary["epochs_run"] == 1
    with pytest.raises(CheckpointError, match="has no weights"):
        run.model()


def test_without_its_summary_a_run_is_finished_again(mf_run):
    expected = json.loads((mf_run / "summary.json").read_text())
    (mf_run / "summary.json").unlink()
    assert trained(RunConfig(), mf_run, resume=True).summary["test"] == expected["test"]


def test_what_a_kill_left_of_a_file_is_removed(mf_run):
    expected = sorted(path.name for path in mf_run.iterdir())
    (mf_run / "summary.json").rename(mf_run / ".summary.json.8charact")
    for name in ("config.toml", "plan.json", "plan.json.orders-0f.safetensors"):
        (mf_run / f".{name}.8charact").touch()
    trained(RunConfig(), mf_run, resume=True)
    assert sorted(path.name for path in mf_run.iterdir()) == expected


@pytest.mark.parametrize("seed", [0, 1])
def test_data_that_changed_since_the_run_began_are_refused_and_the_run_stays(tmp_path, seed):
    data, out = tmp_path / "data", tmp_path / "run"
    generate_movielens_like(data, rows=1_000, scale=0.0005)
    trained(replace(told("mf", epochs=1), data=str(data)), out)
    generate_movielens_like(data, rows=900, scale=0.0005, seed=seed, overwrite=True)
    before = content(out)
    with pytest.raises(ValueError, match="other data"):
        trained(RunConfig(epochs=2), out, resume=True)
    assert content(out) == before


def test_a_run_that_another_process_is_training_is_left_alone(mf_run, tmp_path):
    before = content(mf_run)
    with alone_at_work(mf_run):
        for how in ({"resume": True}, {"overwrite": True}):
            with pytest.raises(OSError, match=f"another process is at work in {mf_run}"):
                trained(told("mf", epochs=2), mf_run, **how)
    assert content(mf_run) == before
    trained(told("mf", epochs=2), mf_run, resume=True)


def test_a_run_is_replaced_through_a_link_to_it(mf_run, tmp_path):
    (tmp_path / "link").symlink_to(mf_run)
    (mf_run / "notes").symlink_to(tmp_path)
    trained(told("mf", epochs=2), tmp_path / "link", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert json.loads((mf_run / "summary.json").read_text())["epochs"] == 2
    assert not (mf_run / "notes").exists()
