"""Files that earlier versions wrote still load, mean the same, and can be gone on with.

tests/earlier_files/README.md says how they were made.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import mixdim
from mixdim.experiments.runs.config import RunConfig
from mixdim.experiments.runs.train import train_run
from mixdim.experiments.runs.trained import evaluate_run

FILES = Path(__file__).parent / "earlier_files"
RUNS = {"mf": ("ratings", 5), "dlrm": ("clicks", 4)}  # the data, and the epochs it was continued to


@pytest.fixture
def runs(tmp_path):
    """The runs, as if they had been made here: a run knows where its data lies."""
    place = tmp_path / "earlier"
    shutil.copytree(FILES, place)
    for name, (data, _) in RUNS.items():
        config = place / name / "config.toml"
        config.write_text(config.read_text().replace(f"/tmp/fix/v1/{data}", str(place / data)))
    return place


@pytest.mark.parametrize("name", RUNS)
def test_a_run_evaluates_to_the_numbers_it_had(runs, name):
    expected = json.loads((FILES / f"{name}-test.json").read_text())
    found = evaluate_run(runs / name, runs / RUNS[name][0])
    assert found.keys() == expected.keys()
    assert _numbers(found) == pytest.approx(_numbers(expected), rel=1e-6)


def _numbers(metrics, prefix=""):
    flat = {}
    for name, value in metrics.items():
        if isinstance(value, dict):
            flat |= _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float):
            flat[prefix + name] = value
    return flat


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_resumed_as_the_version_that_began_it_would_have(runs, name):
    _, epochs = RUNS[name]
    train_run(RunConfig(epochs=epochs), runs / name, resume=True)
    newest = max((runs / name / "checkpoint").glob("step-*"))
    found, expected = (
        load_file(path)
        for path in (newest / "tensors.safetensors", FILES / f"{name}-resumed.safetensors")
    )
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        torch.testing.assert_close(found[key], tensor, rtol=1e-4, atol=1e-6, msg=key)


def test_a_finished_run_is_finished(runs):
    said = []
    train_run(RunConfig(), runs / "mf", resume=True, echo=said.append)
    assert said == [f"{runs / 'mf'} is finished already"]


def test_plans_of_version_1_load():
    text = (FILES / "plan-power-law.json").read_text()
    plan = mixdim.Plan.from_json(text)
    assert (plan.base_dim, plan.num_parameters) == (129, 223_746)
    assert [block.dim for block in plan.blocks] == [16, 32, 129]
    assert plan == mixdim.plan({"user": 6040, "item": 3706, "genre": 18}, temperature=0.3, budget="1MB")
