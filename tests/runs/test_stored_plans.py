"""Runs whose blocks are stored in several ways: trained, resumed, measured like any other."""

import json

import numpy as np
import pytest

import mixdim
from mixdim.runs.run import Run
from small_runs import DATA, told, trained
from training_data import raw_bytes

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::mixdim.FloorWarning"),
]
WIDTHS = dict.fromkeys(("temperature", "base_dim", "budget", "bands", "rounding", "min_dim"))


def hashed_plan(dataset, path):
    """The rarest band of each feature shares three rows."""
    plan = mixdim.plan(dataset, temperature=0.3, base_dim=4, bands=2)
    for name in plan:
        plan = plan.with_storage(name, mixdim.Hashed(2, buckets=3))
    plan.save(path)
    return plan


@pytest.mark.parametrize(
    ("model", "optimizer"), [("dlrm", "amsgrad"), ("mf", "adam"), ("ncf", "adagrad"), ("mf", "sgd")]
)
def test_it_is_trained_resumed_and_measured(model, optimizer, tmp_path):
    plan = hashed_plan(DATA[model](), tmp_path / "plan.json")
    options = {**WIDTHS, "plan": str(tmp_path / "plan.json"), "optimizer": optimizer, "lr": 0.01}
    whole = trained(told(model, **options), tmp_path / "whole")
    trained(told(model, **options, epochs=2), tmp_path / "parts")
    parts = trained(told(model, **options), tmp_path / "parts", resume=True)
    assert raw_bytes(parts.model()) == raw_bytes(whole.model())
    assert whole.summary["embedding_parameters"] == plan.num_parameters
    assert whole.summary["provenance"]["rule"] == "by_hand"
    assert whole.summary["temperature"] is None
    found = Run.open(tmp_path / "parts").evaluate(DATA[model]().path)
    loss = "log_loss" if model == "dlrm" else "mse"
    assert found[loss] == pytest.approx(whole.summary["test"]["best"][loss], rel=1e-6)


@pytest.mark.parametrize(("model", "num_bytes"), [("dlrm", 3000), ("mf", 1144)])
@pytest.mark.parametrize(
    "widths",
    [
        {"temperature": 0.5, "base_dim": 4, "bands": "octaves", "min_dim": 0},
        {"method": "cut", "base_dim": 4},
    ],
)
def test_rows_that_share_one_are_trained_resumed_and_measured(model, num_bytes, widths, tmp_path):
    options = {**WIDTHS, **widths, "budget": f"{num_bytes}B"}
    whole = trained(told(model, **options), tmp_path / "whole")
    assert 0 in {width for of_feature in whole.summary["widths"].values() for width in of_feature}
    assert whole.summary["embedding_bytes"] <= num_bytes
    trained(told(model, **options, epochs=2), tmp_path / "parts")
    parts = trained(told(model, **options), tmp_path / "parts", resume=True)
    assert raw_bytes(parts.model()) == raw_bytes(whole.model())


def test_a_run_keeps_the_large_orders_of_its_plan(tmp_path):
    """A plan of somebody's own ids; with many of them their order lies beside the plan."""
    dataset = DATA["mf"]()
    counts = {name: np.arange(rows) for name, rows in dataset.cardinalities.items()}
    plan = mixdim.plan(dataset, counts=counts, temperature=0.3, base_dim=4, bands=2)
    assert plan.id_map_bytes > 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mixdim.planning.plan_file.MOST_IDS_IN_JSON", 1)
        plan.save(tmp_path / "plan.json")
        options = {**WIDTHS, "plan": str(tmp_path / "plan.json")}
        trained(told("mf", **options, epochs=1), tmp_path / "run")
        assert len(list((tmp_path / "run").glob("plan.json.orders-*.safetensors"))) == 1
        trained(told("mf", **options, epochs=2), tmp_path / "run", resume=True)
    assert len(list((tmp_path / "run").glob("plan.json.orders-*.safetensors"))) == 1
    assert mixdim.Plan.load(tmp_path / "run" / "plan.json") == plan
    assert Run.open(tmp_path / "run").plan == plan
    assert json.loads((tmp_path / "run" / "plan.json").read_text())["orders"] == {}
