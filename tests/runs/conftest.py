import tempfile
from multiprocessing import active_children
from multiprocessing.util import get_temp_dir

import pytest

from mixdim.runs.report.findings import Finding
from mixdim.runs.sweeps import worker
from report_pages import PIXEL, SQUARE
from small_runs import told, trained

worker.PRELOAD.append("unsynced")


@pytest.fixture
def mf_run(tmp_path):
    trained(told("mf", epochs=1), tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def finding(tmp_path):
    (tmp_path / "fig2b.svg").write_text(SQUARE)
    (tmp_path / "fig2b.png").write_bytes(PIXEL)
    pictures = (tmp_path / "fig2b.png", tmp_path / "fig2b.svg")
    return Finding("fig2b", "Fig. 2b", "16 times fewer", "7.3 times fewer", pictures, "clicks, 3 seeds")


@pytest.fixture
def file(tmp_path):
    """Where a sweep records its runs."""
    return tmp_path / "records.jsonl"


@pytest.fixture
def temporary(short_folder, tmp_path, monkeypatch):
    """Where sweeps put what is temporary; nothing of it, and none of their processes, may stay."""
    get_temp_dir()  # with the socket of the forkserver of this process, which serves later tests too
    monkeypatch.setattr(tempfile, "tempdir", str(short_folder))
    yield short_folder
    assert list(short_folder.glob("mixdim-sweep-*")) == []
    assert list(tmp_path.glob(".*.locks")) == []
    assert active_children() == []
