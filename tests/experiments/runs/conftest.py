import pytest

from mixdim.experiments.runs.train import train_run
from small_runs import told


@pytest.fixture
def mf_run(tmp_path):
    train_run(told("mf", epochs=1), tmp_path / "run")
    return tmp_path / "run"
