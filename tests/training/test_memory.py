import json
import os
import subprocess
import sys

import pytest
import torch

from mixdim.data import Dataset
from mixdim.lab.synthetic.generate import generate_movielens_like
from mixdim.runs.config import read_config
from mixdim.runs.memory import forecast_of
from mixdim.runs.plans import plan_of
from mixdim.training import memory
from mixdim.training.memory import MemoryForecast, available_memory, forecast_memory, peak_memory
from mixdim.training.optimizers import OPTIMIZERS, NamedOptimizer, sparse_parameters
from small_runs import DATA
from training_data import clicks, small_config, small_model


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", DATA)
def test_parameters_and_optimizer_state_are_forecast_to_the_byte(name, optimizer):
    dataset = DATA[name]()
    model = small_model(name, dataset)
    config = small_config(name, dataset, optimizer=optimizer, batch_size=64)
    forecast = forecast_of(config, plan_of(config, dataset), dataset)
    steps = NamedOptimizer(optimizer, model, lr=0.01)
    model(dataset.rows(slice(0, 64))).sum().backward()
    steps.step()
    tensors, _ = steps.state()
    held = [tensor for place, tensor in tensors.items() if not place.endswith("/step")]
    of_model = (*model.parameters(), *model.buffers())
    assert forecast.parameters == sum(tensor.nbytes for tensor in of_model)
    assert forecast.optimizer_state == sum(tensor.nbytes for tensor in held)
    gradients = sum(
        p.grad._values().nbytes if p.grad.is_sparse else p.grad.nbytes for p in model.parameters()
    )
    assert gradients <= forecast.gradients


@pytest.mark.parametrize("name", DATA)
def test_without_weights_the_forecast_is_the_same(name):
    dataset = DATA[name]()
    sizes = {"batch_size": 64, "num_ids": 26, "num_dense": 13, "train_rows": 9, "evaluation_rows": 7}
    with torch.device("meta"):
        without = small_model(name, dataset)
    tables = sparse_parameters(without)
    assert all(parameter.is_meta for table, parameter in without.named_parameters() if table in tables)
    with_weights = small_model(name, dataset)
    forecasts = [forecast_memory(m, optimizer="adam", **sizes) for m in (without, with_weights)]
    assert forecasts[0] == forecasts[1]


def test_unknown_dropout_holds_four_bytes_for_each_id():
    dataset = clicks()
    without, with_it = (
        forecast_of(config, plan_of(config, dataset), dataset)
        for config in (small_config("dlrm", dataset, unknown_dropout=on) for on in (False, True))
    )
    assert with_it.data - without.data == 4 * sum(dataset.cardinalities.values())
    assert with_it.data - without.data == dataset.unknown_dropout._thresholds.nbytes


def test_a_forecast_is_the_sum_of_its_parts_and_names_them():
    forecast = MemoryForecast(1_000, 3_000, 2_000, 500, 400, runtime=100)
    assert forecast.total == 7_000
    assert str(forecast) == (
        "7.0 kB (parameters 1.0 kB, optimizer state 3.0 kB, gradients 2.0 kB, activations 500 B, "
        "data 400 B, runtime 100 B)"
    )


def test_the_share_of_memory_is_told():
    forecast = MemoryForecast(16_200_000_000, 0, 0, 0, 0, runtime=0)
    assert forecast.share_of(23_000_000_000) == "70% of the 23.0 GB free"
    assert forecast.share_of(0).endswith("of the 0 B free")


def write(folder, **files):
    for name, text in files.items():
        (folder / name.replace("memory_", "memory.")).write_text(text)


@pytest.mark.parametrize(
    ("limit", "free"),
    [("max\n", 5_000), ("3000\n", 3000 - 1000 + 600), ("300\n", 0), ("9223372036854771712\n", 5_000)],
)
def test_available_memory_is_that_of_the_machine_within_the_container(
    tmp_path, monkeypatch, limit, free
):
    write(tmp_path, meminfo="MemTotal: 9 kB\nMemAvailable:    5 kB\n", memory_max=limit)
    used = "1000\n" if limit != "300\n" else "1000000\n"
    write(tmp_path, memory_current=used, memory_stat="anon 400\ninactive_file 500\nactive_file 100\n")
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "CGROUPS", ((tmp_path / "memory.max", tmp_path / "memory.current"),))
    assert available_memory() == (5 * 1024 if free == 5_000 else free)


def test_peak_memory_rises_with_what_is_taken():
    before = peak_memory()
    taken = torch.ones(75_000_000)  # 300 MB, more than any test before has left free
    assert peak_memory() >= min(before, 300_000_000)
    assert peak_memory() >= taken.nbytes
    assert available_memory() > 0


def test_a_system_that_does_not_tell_is_said_and_stops_nobody(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "STATUS", tmp_path / "none")
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "none")
    monkeypatch.setattr(memory, "CGROUPS", ())
    assert peak_memory() > 10**6
    assert 10**6 < available_memory() < sys.maxsize
    monkeypatch.setitem(sys.modules, "resource", None)
    monkeypatch.delattr(os, "sysconf")
    with pytest.warns(RuntimeWarning, match="as 0: this system has neither /proc nor the module"):
        assert peak_memory() == 0
    with pytest.warns(RuntimeWarning, match=r"checked: this system has neither /proc nor os\.sysconf"):
        assert available_memory() == sys.maxsize


def test_the_forecast_is_near_the_measured_peak_of_a_real_run(tmp_path):
    """115 MB of weights and moments; when measured, the forecast was 0.91 to 0.98 of the peak."""
    generate_movielens_like(tmp_path / "data", rows=6_000, scale=0.7)
    command = (
        *(
            sys.executable,
            "-m",
            "mixdim",
            "train",
            "--data",
            tmp_path / "data",
            "--out",
            tmp_path / "run",
        ),
        *("--model", "mf", "--temperature", "0", "--base-dim", "1024", "--bands", "1"),
        *("--epochs", "1", "--batch-size", "1024"),
    )
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    config, dataset = read_config(tmp_path / "run" / "config.toml"), Dataset(tmp_path / "data")
    forecast = forecast_of(config, plan_of(config, dataset), dataset)
    assert forecast.parameters + forecast.optimizer_state > 100_000_000
    assert 1 / 1.35 < forecast.total / summary["peak_memory_bytes"] < 1.35
