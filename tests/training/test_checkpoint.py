import errno
import json
import logging
import os
import pickle
import stat
from pathlib import Path

import pytest
import torch

from mixdim.training import CheckpointError, Checkpoints, checkpoint
from mixdim.training.checkpoint import open_checkpoint

TENSORS = {
    "model/table": torch.arange(12.0).reshape(4, 3),
    "optimizer/step": torch.tensor(7.0),
    "random/torch": torch.arange(16, dtype=torch.uint8),
    "model/empty": torch.empty(0, 3),
}
STATE = {"best": {"step": 4, "mse": 0.1 + 0.2}, "losses": [1e-300, 3.0], "note": "größer"}


@pytest.fixture
def store(tmp_path):
    return Checkpoints(tmp_path / "checkpoint")


def names(store):
    return sorted(path.name for path in store.folder.iterdir())


def save(store, *steps, kind="step", best=None):
    for step in steps:
        tensors = {"model/table": torch.full((300,), float(step))}
        store.save(kind, step, tensors, {"best": None if best is None else {"step": best}})


def test_what_was_saved_comes_back_exactly(store):
    path = store.save("step", 12, TENSORS, STATE)
    found = store.newest()
    assert (found.path, found.step) == (path, 12)
    assert found.tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert (found.tensors[name].dtype, found.tensors[name].shape) == (tensor.dtype, tensor.shape)
        assert found.tensors[name].read().dtype == tensor.dtype
        assert torch.equal(found.tensors[name].read(), tensor)
    assert {name: found.state[name] for name in STATE} == STATE


def test_the_same_content_is_the_same_bytes(tmp_path):
    first, second = (Checkpoints(tmp_path / name).save("step", 1, TENSORS, STATE) for name in "ab")
    for file in first.iterdir():
        assert file.read_bytes() == (second / file.name).read_bytes()


def test_a_folder_without_checkpoints_has_no_newest(store):
    assert store.newest() is None
    assert store.newest_path() is None
    with pytest.raises(CheckpointError, match="has no weights yet"):
        store.best()


def test_tensors_that_share_memory_or_are_views_come_back_each_for_itself(store):
    table = torch.arange(20.0).reshape(4, 5)
    tensors = {"a": table, "same": table, "rows": table[1:3], "columns": table.t(), "one": table[0, 1]}
    store.save("step", 1, tensors, {})
    found = store.newest().tensors
    assert all(torch.equal(found[name].read(), tensor) for name, tensor in tensors.items())


def test_nothing_is_pickled(store, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("pickle")

    for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    for name in ("save", "load"):
        monkeypatch.setattr(torch, name, refuse)
    path = store.save("step", 1, TENSORS, STATE)
    assert store.newest().step == 1
    header = (path / "rank-00000.safetensors").read_bytes()[8:]
    json.loads((path / "state.json").read_bytes())
    assert header.startswith(b"{")


def flip_a_byte(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def truncate(file):
    file.write_bytes(file.read_bytes()[:-10])


def edit(file):
    file.write_text(file.read_text().replace('"step": 6', '"step": 7'))


DAMAGES = [
    (flip_a_byte, "rank-00000.safetensors", "rank-00000.safetensors does not match its checksum"),
    (truncate, "rank-00000.safetensors", "rank-00000.safetensors does not match its checksum"),
    (Path.unlink, "rank-00000.safetensors", "rank-00000.safetensors is missing"),
    (edit, "state.json", "state.json does not match its checksum"),
    (truncate, "state.json", "state.json cannot be read"),
    (Path.unlink, "state.json", "state.json is missing"),
    (lambda file: file.write_text("[]"), "state.json", "state.json cannot be read"),
    (lambda file: file.write_bytes(b""), "state.json", "state.json cannot be read"),
    (lambda file: file.write_bytes(b"\xff\xfe"), "state.json", "state.json cannot be read"),
]


@pytest.mark.parametrize(("damage", "file", "message"), DAMAGES)
def test_a_damaged_checkpoint_is_reported_and_the_older_one_used(store, caplog, damage, file, message):
    save(store, 3, 6)
    damage(store.folder / "step-00000006" / file)
    with caplog.at_level(logging.WARNING):
        found = store.newest()
    assert found.step == 3
    assert found.tensors["model/table"].read()[0] == 3
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "step-00000006 is damaged" in caplog.text
    assert message in caplog.text


def test_every_single_flipped_byte_is_noticed_or_changes_nothing(store):
    path = store.save("step", 6, {"w": torch.arange(3.0)}, {"best": None})
    whole = open_checkpoint(path)
    for file in path.iterdir():
        content = file.read_bytes()
        for place in range(len(content)):
            file.write_bytes(content[:place] + bytes([content[place] ^ 3]) + content[place + 1 :])
            try:
                found = open_checkpoint(path)
            except CheckpointError:
                continue
            assert file.name == "state.json"  # a blank for another blank
            assert found.state == whole.state
        file.write_bytes(content)


def test_if_all_are_damaged_that_is_an_error_which_names_them(store):
    save(store, 3, 6)
    for path in store.folder.iterdir():
        truncate(path / "rank-00000.safetensors")
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is whole: .*00000006.*00000003"):
        store.newest()


def test_a_checkpoint_of_a_later_version_is_refused_as_such(store):
    path = store.save("step", 1, TENSORS, STATE)
    document = json.loads((path / "state.json").read_bytes())
    (path / "state.json").write_text(json.dumps({**document, "version": 3}))
    with pytest.raises(
        CheckpointError, match=r"of mixdim \(mixdim.checkpoint 3\): this one reads .* 2 only"
    ):
        store.newest()


@pytest.mark.parametrize(
    "document",
    [
        {"format": "mixdim.checkpoint", "version": 1, "blake2b": "", "body": {"tensors_blake2b": ""}},
        {"format": "mixdim.distributed", "version": 1, "ranks": 2, "files": {}, "state": {}},
    ],
)
def test_a_checkpoint_of_an_older_mixdim_is_refused_in_a_line(store, caplog, document):
    for step in (3, 6):
        folder = store.folder / f"step-{step:08d}"
        folder.mkdir(parents=True)
        (folder / "state.json").write_text(json.dumps(document))
    with pytest.raises(
        CheckpointError, match=f"6 was written by another .*{document['format']} 1.*again"
    ):
        store.newest()
    assert not caplog.records


class Kill(BaseException):
    """Nothing is cleaned up after a real kill: here the cleaning is switched off instead."""


@pytest.mark.parametrize("where", ["write_tensors", "_index", "_commit", "_digest_of", "sync"])
def test_a_kill_while_writing_leaves_the_old_checkpoints_and_no_new_one(store, monkeypatch, where):
    save(store, 3, 6)
    before = {path: path.read_bytes() for path in store.folder.rglob("*") if path.is_file()}

    def killed(*args, **kwargs):
        raise Kill

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, where, killed)
        patch.setattr(checkpoint.shutil, "rmtree", lambda *args, **kwargs: None)
        with pytest.raises(Kill):
            save(store, 9)
    left = [name for name in names(store) if name.startswith(".partial-")]
    assert len(left) == 1
    assert store.newest().step == 6
    assert {path: path.read_bytes() for path in before} == before
    save(store, 9)
    assert names(store) == ["step-00000003", "step-00000006", "step-00000009"]


@pytest.mark.parametrize("renames_done", [0, 1])
def test_a_kill_while_replacing_a_checkpoint_leaves_no_damaged_one(store, monkeypatch, renames_done):
    save(store, 3, 6)
    rename, done = Path.rename, []

    def killed(self, target):
        if len(done) == renames_done:
            raise Kill
        done.append(target)
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        patch.setattr(checkpoint.shutil, "rmtree", lambda *args, **kwargs: None)
        with pytest.raises(Kill):
            save(store, 6)
    assert store.newest().step == 6  # also where it waits to be replaced
    save(store, 6)
    assert names(store) == ["step-00000003", "step-00000006"]


def test_the_same_step_is_replaced_by_the_newer_content(store):
    store.save("step", 6, {"w": torch.zeros(2)}, {})
    store.save("step", 6, {"w": torch.ones(2)}, {})
    assert store.newest().tensors["w"].read().tolist() == [1, 1]
    assert names(store) == ["step-00000006"]


def test_a_full_disk_is_one_clear_error_and_the_old_checkpoint_stays(store, monkeypatch):
    save(store, 3)

    def full(path, tensors):
        Path(path).write_bytes(b"half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_tensors", full)
        with pytest.raises(OSError, match=r"cannot write the checkpoint .*step-00000006: No space"):
            save(store, 6)
    assert names(store) == ["step-00000003"]
    assert store.newest().step == 3


def test_a_checkpoint_has_the_permissions_of_any_new_folder(store):
    before = os.umask(0o027)
    try:
        path = store.save("step", 1, TENSORS, STATE)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o750
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()} == {0o640}


def test_the_newest_two_are_kept_and_the_best_ones_they_speak_of(store):
    save(store, 2, 4, 8, kind="best")
    save(store, 3, best=2)
    save(store, 6, 9, best=4)
    store.prune()
    assert names(store) == ["best-00000004", "step-00000006", "step-00000009"]


def test_best_weights_just_written_are_kept_though_none_speaks_of_them_yet(store):
    save(store, 2, 4, 6, 9, kind="best")  # that of step 9 is of a run killed before it wrote step 9
    save(store, 3, best=2)
    store.prune(best_step=6)
    assert names(store) == ["best-00000002", "best-00000006", "step-00000003"]


def test_other_folders_beside_the_checkpoints_are_left_alone(store):
    save(store, 3, 6, best=3)
    for name in ("step-00000009.bak", "best-old", "notes", ".partial-left"):
        (store.folder / name).mkdir()
    assert store.newest_path().name == "step-00000006"
    store.prune()
    assert store.newest().step == 6
    assert {"step-00000009.bak", "best-old", "notes"} <= set(names(store))


def test_best_weights_are_read_by_step_or_the_newest(store):
    save(store, 2, 4, kind="best")
    assert store.best().step == 4
    assert store.best(2).tensors["model/table"].read()[0] == 2
    with pytest.raises(CheckpointError, match=r"best-00000003 is damaged: state.json is missing"):
        store.best(3)
