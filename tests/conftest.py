"""How hypothesis runs: without deadlines, for noisy machines; in CI always with the same examples."""

import os

# Before numpy is imported: its threads spin while they wait, most of the time for small matrices.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile("mixdim", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("mixdim"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "mixdim")


@pytest.fixture(scope="module")
def one_thread():
    """For tiny models: on a busy machine threads wait for each other most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
