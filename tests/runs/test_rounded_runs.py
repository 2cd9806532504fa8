"""Runs whose embeddings are rounded once they are trained."""

import numpy as np
import polars as pl
import pytest

import mixdim
from mixdim.runs.rounded import embedding_bytes, embedding_layers, rounded
from mixdim.runs.train import train_run
from mixdim.runs.trained import evaluate_run, open_for, predict_run
from small_runs import DATA, told
from training_data import raw_bytes

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::mixdim.FloorWarning"),
]
LOSS = {"dlrm": "log_loss", "mf": "mse", "ncf": "mse"}


@pytest.mark.parametrize(("model", "quantize"), [("dlrm", "int8"), ("mf", "int4"), ("ncf", "int8")])
def test_it_is_trained_as_without_and_measured_rounded(model, quantize, tmp_path):
    plain = train_run(told(model), tmp_path / "plain")
    run = train_run(told(model, quantize=quantize), tmp_path / "run")
    best = {name: open_for(tmp_path / name, DATA[model]()) for name in ("plain", "run")}
    assert raw_bytes(best["run"].model) == raw_bytes(run.model)
    assert raw_bytes(rounded(best["plain"].model, quantize)) == raw_bytes(run.model)
    assert not any(
        b.storage.is_trained for layer in embedding_layers(run.model) for b in layer.plan.blocks
    )

    loss = LOSS[model]
    for split in ("validation", "test"):
        for which in ("best", "last"):
            assert run.summary["before_quantizing"][split][which] == plain.summary[split][which]
            measured = run.summary[split][which]
            assert measured["step"] == plain.summary[split][which]["step"]
            assert 0 < abs(measured[loss] - plain.summary[split][which][loss]) < 0.1
            found = evaluate_run(tmp_path / "run", DATA[model]().path, split=split, weights=which)
            assert found[loss] == pytest.approx(measured[loss], rel=1e-12)
            assert found["slices"].keys() == measured["slices"].keys()
    same = ("num_parameters", "embedding_parameters", "widths", "made_by", "steps")
    assert {n: run.summary[n] for n in same} == {n: plain.summary[n] for n in same}
    assert (run.summary["quantize"], plain.summary["quantize"]) == (quantize, None)
    assert "before_quantizing" not in plain.summary


@pytest.mark.parametrize("model", ["dlrm", "mf"])
def test_its_bytes_are_those_of_all_that_is_stored(model, tmp_path):
    for quantize, bits in ((None, None), ("int8", 8), ("int4", 4)):
        run = train_run(told(model, epochs=1, quantize=quantize), tmp_path / str(quantize))
        plan = open_for(tmp_path / str(quantize), DATA[model]()).plan
        plan = plan if bits is None else plan.quantized(bits)
        plans = [plan] if model == "dlrm" else [plan[name] for name in plan]
        assert run.summary["embedding_bytes"] == sum(one.nbytes() for one in plans)
        assert run.summary["embedding_bytes"] == embedding_bytes(run.model)


def test_every_layer_has_its_own_shared_array(tmp_path):
    dataset = DATA["mf"]()
    plan = mixdim.plan(dataset, temperature=0, base_dim=4)
    for name in plan:
        plan = plan.with_storage(name, mixdim.Robe(4, length=30))
    plan.save(tmp_path / "plan.json")
    widths = dict.fromkeys(("temperature", "base_dim", "budget", "bands", "rounding"))
    run = train_run(told("mf", **widths, plan=str(tmp_path / "plan.json"), epochs=1), tmp_path / "run")
    assert run.summary["embedding_parameters"] == 60
    assert run.summary["embedding_bytes"] == 240


def test_predictions_are_the_rounded_model_s(tmp_path):
    run = train_run(told("mf", quantize="int4"), tmp_path / "run")
    predict_run(tmp_path / "run", DATA["mf"]().path, tmp_path / "out.parquet")
    table = pl.read_parquet(tmp_path / "out.parquet")
    mse = ((table["prediction"] - table["target"]).to_numpy().astype(np.float64) ** 2).mean()
    assert mse == pytest.approx(run.summary["test"]["best"]["mse"], rel=1e-6)
    assert mse != pytest.approx(run.summary["before_quantizing"]["test"]["best"]["mse"], rel=1e-6)


def test_it_is_resumed_and_found_finished(tmp_path):
    whole = train_run(told("mf", quantize="int8"), tmp_path / "whole")
    train_run(told("mf", quantize="int8", epochs=2), tmp_path / "parts")
    parts = train_run(told("mf", quantize="int8"), tmp_path / "parts", resume=True)
    assert raw_bytes(parts.model) == raw_bytes(whole.model)
    for key in ("validation", "test", "before_quantizing"):
        assert parts.summary[key] == whole.summary[key]
    lines = []
    again = train_run(told("mf", quantize="int8"), tmp_path / "parts", resume=True, echo=lines.append)
    assert lines == [f"{tmp_path / 'parts'} is finished already"]
    assert raw_bytes(again.model) == raw_bytes(whole.model)
    with pytest.raises(ValueError, match="was started with quantize='int8', not 'int4'"):
        train_run(told("mf", quantize="int4"), tmp_path / "parts", resume=True)


def test_a_way_to_round_that_there_is_not_is_refused(tmp_path):
    with pytest.raises(ValueError, match="quantize must be one of int8, int4, got 'int2'"):
        train_run(told("mf", quantize="int2"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_plan_that_is_quantized_is_not_trained(tmp_path):
    mixdim.plan(DATA["mf"](), temperature=0, base_dim=4).quantized().save(tmp_path / "plan.json")
    widths = dict.fromkeys(("temperature", "base_dim", "budget", "bands", "rounding"))
    with pytest.raises(ValueError, match="which is not trained: train the plan before it was quantized"):
        train_run(told("mf", **widths, plan=str(tmp_path / "plan.json")), tmp_path / "run")
    assert not (tmp_path / "run").exists()
