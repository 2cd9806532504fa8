"""One thread for all tests; hypothesis without deadlines, and in CI always with the same examples."""

import gc
import os
import tempfile
import zlib
from pathlib import Path

# Before numpy is imported: its threads spin while they wait, most of the time for small matrices.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Before torch is: as commands do (mixdim/_util/startup.py), for the tests that compare 1 thread with 2.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

import pytest
import torch
from hypothesis import HealthCheck, settings

import unsynced  # noqa: F401
import usual_signals as usual

settings.register_profile("mixdim", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("mixdim"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "mixdim")


gc.disable()  # it would look through torch again and again while tests are collected


def pytest_collection_finish(session):
    gc.freeze()
    gc.set_threshold(700, 10, 100)  # all that is not frozen is looked through a tenth as often
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """All models are tiny here: threads would wait for each other. `both_paths.py` compares 1 with 2."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def own_seed(request):
    """Each test draws the same numbers wherever it runs. MIXDIM_TEST_SEED=1 tries others."""
    torch.manual_seed(
        zlib.crc32(f"{os.environ.get('MIXDIM_TEST_SEED', 0)} {request.node.nodeid}".encode())
    )


@pytest.fixture(scope="session")
def commands():
    """Starts commands as processes, in milliseconds."""
    from forked_commands import Commands

    with Commands() as started:
        yield started


@pytest.fixture
def short_folder():
    """For the sockets of sweeps: Linux takes paths of 107 bytes, and those of `tmp_path` are long."""
    with tempfile.TemporaryDirectory(prefix="mixdim-") as folder:
        yield Path(folder)


@pytest.fixture
def usual_signals():
    """Signals work as in a terminal, here and in processes that the test starts.

    Only for tests that send some: all others go on as they were started, also when the terminal closes.
    """
    before = usual.handle()
    yield
    usual.handle(before)
