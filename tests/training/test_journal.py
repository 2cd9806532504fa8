import json
import sys
from pathlib import Path

import pytest

from mixdim.training.journal import Journal


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_records_are_json_lines_in_their_order(tmp_path):
    journal = Journal(tmp_path / "metrics.jsonl")
    records = [{"step": 1, "loss": 0.1 + 0.2}, {"step": 2, "validation": {"mse": None}}]
    for record in records:
        journal.write(record)
    assert lines(journal.path) == records


def test_rewinding_takes_back_later_lines_and_half_ones(tmp_path):
    journal = Journal(tmp_path / "metrics.jsonl")
    assert journal.length == 0
    journal.write({"step": 1})
    length = journal.length
    journal.write({"step": 2})
    with journal.path.open("a") as file:
        file.write('{"step": 3, "lo')  # killed while it wrote
    journal.rewind(length, step=1)
    journal.write({"step": 2, "again": True})
    assert lines(journal.path) == [{"step": 1}, {"step": 2, "again": True}]


def test_rewinding_never_makes_a_file_longer(tmp_path):
    journal = Journal(tmp_path / "metrics.jsonl")
    journal.rewind(100, step=1)
    assert not journal.path.exists()
    journal.write({"step": 1})
    length = journal.length
    journal.rewind(10**6, step=1)
    assert journal.length == length


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_names_the_file():
    with pytest.raises(OSError, match="cannot write /dev/full: No space left on device"):
        Journal(Path("/dev/full")).write({"step": 1})


def test_without_a_path_it_is_silent(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    journal = Journal(None)
    journal.write({"step": 1})
    journal.rewind(5, step=1)
    journal.close()
    assert journal.length == 0
    assert list(tmp_path.iterdir()) == []


class FakeWriter:
    def __init__(self, folder, purge_step):
        self.folder, self.purge_step, self.scalars, self.closed = folder, purge_step, [], False
        made.append(self)

    def add_scalar(self, name, number, step):
        self.scalars.append((name, number, step))

    def close(self):
        self.closed = True


made: list[FakeWriter] = []


def test_tensorboard_gets_every_number_over_its_step_and_forgets_on_rewind(tmp_path, monkeypatch):
    made.clear()
    fake = type(sys)("torch.utils.tensorboard")
    fake.SummaryWriter = FakeWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    journal = Journal(None, tensorboard=tmp_path)
    journal.write({"step": 5, "epoch": 1, "kind": "v", "loss": 1, "v": {"auc": None, "s": {"mse": 2.0}}})
    assert made[0].scalars == [("loss", 1.0, 5), ("v/s/mse", 2.0, 5)]
    journal.close()
    assert made[0].closed
    resumed = Journal(None, tensorboard=tmp_path)
    resumed.rewind(0, step=3)
    assert made[1].purge_step == 4


def test_a_missing_tensorboard_is_answered_with_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'mixdim\[tensorboard\]'"):
        Journal(None, tensorboard=tmp_path).write({"step": 1, "loss": 1.0})
