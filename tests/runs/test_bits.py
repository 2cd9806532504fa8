"""Runs whose embeddings are quantized once they are trained: their plan says so, nothing else."""

import numpy as np
import polars as pl
import pytest

import mixdim
from mixdim.models import MatrixFactorization
from mixdim.models.tables import number_plan
from mixdim.planning.plan import Plan
from mixdim.runs.config import read_config
from mixdim.runs.models import embedding_bytes
from mixdim.runs.run import Run
from mixdim.training import fit
from mixdim.training.options import preset
from small_runs import DATA, told, trained
from training_data import raw_bytes

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::mixdim.FloorWarning"),
]
LOSS = {"dlrm": "log_loss", "mf": "mse", "ncf": "mse"}


WIDTHS = dict.fromkeys(("temperature", "base_dim", "budget", "bands", "rounding"))  # a plan has them


@pytest.mark.parametrize(("model", "bits"), [("dlrm", 8), ("mf", 4), ("ncf", 8)])
def test_it_is_trained_as_without_and_measured_as_it_is_served(model, bits, tmp_path):
    plain = trained(told(model), tmp_path / "plain")
    run = trained(told(model, bits=bits), tmp_path / "run")
    best = {name: Run.open(tmp_path / name) for name in ("plain", "run")}
    model_of = {name: one.model() for name, one in best.items()}
    served = run.model()
    assert raw_bytes(model_of["run"]) == raw_bytes(served)
    assert raw_bytes(mixdim.quantize(model_of["plain"], bits)) == raw_bytes(served)
    assert best["run"].plan == best["plain"].plan.quantized(bits)
    assert best["run"].plan.trainable() == best["plain"].plan
    as_trained = Run.open(tmp_path / "run").model(served=False)
    assert raw_bytes(as_trained) == raw_bytes(model_of["plain"])
    assert not any(
        b.storage.is_trained for layer in served.embedding_layers() for b in layer.plan.blocks
    )

    loss = LOSS[model]
    for split in ("validation", "test"):
        for which in ("best", "last"):
            assert run.summary["before_quantizing"][split][which] == plain.summary[split][which]
            measured = run.summary[split][which]
            assert measured["step"] == plain.summary[split][which]["step"]
            assert 0 < abs(measured[loss] - plain.summary[split][which][loss]) < 0.1
            found = Run.open(tmp_path / "run").evaluate(DATA[model]().path, split=split, weights=which)
            assert found[loss] == pytest.approx(measured[loss], rel=1e-12)
            assert found["slices"].keys() == measured["slices"].keys()
    same = ("num_parameters", "embedding_parameters", "widths", "provenance", "steps")
    assert {n: run.summary[n] for n in same} == {n: plain.summary[n] for n in same}
    assert (run.summary["bits"], plain.summary["bits"]) == (bits, 32)
    assert "before_quantizing" not in plain.summary


@pytest.mark.parametrize(("model", "more"), [("dlrm", {"first_order": True}), ("mf", {}), ("ncf", {})])
def test_its_bytes_are_those_of_all_that_is_stored(model, more, tmp_path):
    for bits in (None, 32, 8, 4):
        run = trained(told(model, epochs=1, bits=bits, **more), tmp_path / str(bits))
        plan = Run.open(tmp_path / str(bits)).plan
        assert plan.least_bits == (bits or 32)
        plans = [plan] if model == "dlrm" else [plan[name] for name in plan]
        numbers = [] if model == "ncf" else [number_plan(one).quantized(bits or 32) for one in plans]
        parts = [sum(one.nbytes() for one in of_part) for of_part in (plans, numbers) if of_part]
        assert [*run.summary["bytes_by_part"].values()] == parts
        assert run.summary["embedding_bytes"] == sum(parts) == embedding_bytes(run.model())
        state = run.model().state_dict()
        assert run.summary["model_bytes"] == sum(tensor.nbytes for tensor in state.values())


def test_every_layer_has_its_own_shared_array(tmp_path):
    dataset = DATA["mf"]()
    plan = mixdim.plan(dataset, temperature=0, base_dim=4)
    for name in plan:
        plan = plan.with_storage(name, mixdim.Robe(4, length=30))
    plan.save(tmp_path / "plan.json")
    run = trained(told("mf", **WIDTHS, plan=str(tmp_path / "plan.json"), epochs=1), tmp_path / "run")
    assert run.summary["embedding_parameters"] == 60
    assert run.summary["bytes_by_part"]["embeddings"] == 240


def test_predictions_are_the_served_model_s(tmp_path):
    run = trained(told("mf", bits=4), tmp_path / "run")
    Run.open(tmp_path / "run").predict(DATA["mf"]().path, tmp_path / "out.parquet")
    table = pl.read_parquet(tmp_path / "out.parquet")
    mse = ((table["prediction"] - table["target"]).to_numpy().astype(np.float64) ** 2).mean()
    assert mse == pytest.approx(run.summary["test"]["best"]["mse"], rel=1e-6)
    assert mse != pytest.approx(run.summary["before_quantizing"]["test"]["best"]["mse"], rel=1e-6)


def test_it_is_resumed_and_found_finished(tmp_path):
    whole = trained(told("mf", bits=8), tmp_path / "whole")
    trained(told("mf", bits=8, epochs=2), tmp_path / "parts")
    parts = trained(told("mf", bits=8), tmp_path / "parts", resume=True)
    assert raw_bytes(parts.model()) == raw_bytes(whole.model())
    for key in ("validation", "test", "before_quantizing"):
        assert parts.summary[key] == whole.summary[key]
    lines = []
    again = trained(told("mf", bits=8), tmp_path / "parts", resume=True, echo=lines.append)
    assert lines == [f"{tmp_path / 'parts'} is finished already"]
    assert raw_bytes(again.model()) == raw_bytes(whole.model())
    with pytest.raises(ValueError, match="was started with bits=8, not 4"):
        trained(told("mf", bits=4), tmp_path / "parts", resume=True)


@pytest.mark.parametrize(
    ("bits", "message"),
    [(7, "bits must be 1, 2, 3, 4, 5, 6, 8 or 32, got 7"), (0, "bits must be at least 1, got 0")],
)
def test_other_numbers_of_bits_are_refused(bits, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        trained(told("mf", bits=bits), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("model", ["dlrm", "mf"])
def test_a_quantized_plan_is_trained_in_32_bits_and_served_as_it_says(model, tmp_path):
    plan = mixdim.plan(DATA[model](), temperature=0.3, base_dim=8)
    plan.save(tmp_path / "trained.json")
    plan.quantized(4).save(tmp_path / "served.json")

    def of_plan(name, file, **more):
        options = told(model, **WIDTHS, plan=str(tmp_path / file), **more)
        return trained(options, tmp_path / name)

    run, same = of_plan("one", "served.json"), of_plan("two", "trained.json", bits=4)
    assert raw_bytes(run.model()) == raw_bytes(same.model())
    for name in ("one", "two"):
        assert Run.open(tmp_path / name).plan == plan.quantized(4)
    what = ("validation", "test", "before_quantizing", "bits", "provenance", "embedding_bytes", "widths")
    assert {key: run.summary[key] for key in what} == {key: same.summary[key] for key in what}
    assert run.summary["bits"] == 4
    again = trained(
        told(model, **WIDTHS, plan=str(tmp_path / "served.json")), tmp_path / "one", resume=True
    )
    assert raw_bytes(again.model()) == raw_bytes(run.model())
    with pytest.raises(ValueError, match="is quantized already: leave out bits=8"):
        of_plan("three", "served.json", bits=8)
    assert not (tmp_path / "three").exists()


def test_a_plan_whose_blocks_have_different_bits_is_not_trained(tmp_path):
    plan = mixdim.plan(DATA["mf"](), temperature=0, base_dim=4)
    plan.with_storage(next(iter(plan)), mixdim.Rows(4, bits=8)).save(tmp_path / "plan.json")
    with pytest.raises(ValueError, match="must have one number of bits for all rows, and has some in 8"):
        trained(told("mf", **WIDTHS, plan=str(tmp_path / "plan.json")), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_layer_of_a_quantized_plan_is_not_trained():
    dataset = DATA["mf"]()
    plan = mixdim.plan(dataset, temperature=0, base_dim=4).quantized()
    users, items = (mixdim.MixedDimEmbedding(plan[name], sparse=True) for name in plan)
    with pytest.raises(
        ValueError, match=r"which is not trained: train plan.trainable\(\), then quantize"
    ):
        fit(MatrixFactorization(users, items), dataset, options=preset("paper-cf"))


def test_only_the_plan_of_a_run_decides_how_it_is_served(tmp_path):
    run = trained(told("mf", epochs=1), tmp_path / "run")
    Plan.load(tmp_path / "run" / "plan.json").quantized(8).save(tmp_path / "run" / "plan.json")
    opened = Run.open(tmp_path / "run")
    assert opened.config.bits == 32
    assert raw_bytes(opened.model()) == raw_bytes(mixdim.quantize(run.model(), 8))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('quantize = "int8"', "there is no option 'quantize'; the options are .* bits, "),
        ('method = "int8:mixed"\nbudget = "9kB"', r"\(bits are an option of their own\)"),
        ('bits = "int8"', "bits must be a whole number, got 'int8'"),
    ],
)
def test_an_older_file_of_options_gets_one_clear_line(line, message, tmp_path):
    (tmp_path / "run.toml").write_text(f'data = "{DATA["mf"]().path}"\n{line}\n')
    with pytest.raises(ValueError, match=message) as error:
        trained(read_config(tmp_path / "run.toml"), tmp_path / "run")
    assert "\n" not in str(error.value)
