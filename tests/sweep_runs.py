"""Runs of a sweep that take moments, and what may be compared of their records."""

import time

import pytest

from mixdim.runs.config import RunConfig
from mixdim.runs.sweeps.sweep import RunRequest
from training_data import ratings

# For tests of sweeps: their own directory for temporary files, and no advice on widths.
ALONE = [
    pytest.mark.usefixtures("one_thread", "temporary", "usual_signals"),
    pytest.mark.filterwarnings("ignore::mixdim.FloorWarning"),
]
TIMES = {"seconds", "train_seconds", "samples_per_second", "peak_memory_bytes"}


def told(dataset=None, **options):
    dataset = dataset or ratings()
    few = {"model": "mf", "temperature": 0.3, "batch_size": 100, "epochs": 2}
    return RunConfig.of(**{"data": str(dataset.path), **few, **options})


def endless():
    return RunRequest(told(base_dim=4, epochs=100_000, patience=0))


def runs_of(temperatures=(0.0, 0.3), seeds=(0, 1), model_budget=1_500, **options):
    return [
        RunRequest(told(temperature=temperature, seed=seed, **options), model_budget)
        for seed in seeds
        for temperature in temperatures
    ]


def timeless(value):
    """What does not depend on how fast it went."""
    if isinstance(value, dict):
        return {name: timeless(inner) for name, inner in value.items() if name not in TIMES}
    return [timeless(inner) for inner in value] if isinstance(value, list | tuple) else value


def results(records):
    """Keys with everything measured, but for the time."""
    return {one.key: timeless([one.status, one.summary, one.curve, one.train]) for one in records}


def wait_for(condition, seconds=30.0):
    """Wait until a condition holds, and return what it said."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)
    return found
