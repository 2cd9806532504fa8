import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from small_folder import write_small_folder

from mixdim.data.folder import PIECES, SAMPLE, FolderWriter, fingerprint, read_meta


def test_a_finished_folder_says_what_it_holds(tmp_path):
    meta = read_meta(write_small_folder(tmp_path / "data"))
    assert [feature.name for feature in meta.features] == ["user", "item"]
    assert meta.splits == {"train": (0, 70), "validation": (70, 85), "test": (85, 100)}
    assert meta.num_rows == 100
    assert list(tmp_path.iterdir()) == [tmp_path / "data"]


def test_an_unfinished_folder_never_appears(tmp_path):
    with FolderWriter(tmp_path / "data") as writer:
        writer.array("ids.npy", (10, 2), np.int32)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_names_the_folder_that_it_was_for(tmp_path):
    full = OSError(28, "No space left on device")
    message = f"cannot write {tmp_path / 'data'}: No space left on device"
    with pytest.raises(OSError, match=message), FolderWriter(tmp_path / "data"):
        raise full
    assert list(tmp_path.iterdir()) == []


def test_a_run_killed_just_before_the_end_leaves_nothing_that_opens(tmp_path, monkeypatch):
    """Killed between the last file and the rename: all is written, but not under its name."""
    kept = tmp_path / "kept"
    monkeypatch.setattr(Path, "rename", lambda path, _: shutil.copytree(path, kept / path.name))
    write_small_folder(tmp_path / "data")
    (left,) = kept.iterdir()
    assert (left / "meta.json").is_file()
    with pytest.raises(ValueError, match="what an interrupted run left"):
        read_meta(left)


def test_an_existing_folder_is_replaced_only_when_asked(tmp_path):
    folder = write_small_folder(tmp_path / "data", seed=0)
    before = (folder / "ids.npy").read_bytes()
    with pytest.raises(FileExistsError, match="exists already; --overwrite replaces it"):
        write_small_folder(folder, seed=1)
    assert (folder / "ids.npy").read_bytes() == before
    write_small_folder(folder, seed=1, overwrite=True)
    assert (folder / "ids.npy").read_bytes() != before
    assert list(tmp_path.iterdir()) == [folder]


def test_a_link_in_the_place_of_the_folder_stays(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "data").symlink_to("far/data")
    write_small_folder(tmp_path / "data", seed=0)
    before = (tmp_path / "far" / "data" / "ids.npy").read_bytes()
    write_small_folder(tmp_path / "data", seed=1, overwrite=True)
    assert (tmp_path / "far" / "data" / "ids.npy").read_bytes() != before
    assert (tmp_path / "data").is_symlink()
    assert len(list(tmp_path.iterdir())) == 2
    assert len(list((tmp_path / "far").iterdir())) == 1


def test_a_folder_of_something_else_is_never_replaced(tmp_path):
    (tmp_path / "photos").mkdir()
    with pytest.raises(FileExistsError, match="is no prepared folder"):
        write_small_folder(tmp_path / "photos", overwrite=True)
    with pytest.raises(FileNotFoundError, match="there is no directory"):
        write_small_folder(tmp_path / "nowhere" / "data")


@pytest.mark.parametrize("name", ["ids.npy", "target.npy", "dense.npy", "vocabulary/0.parquet"])
def test_a_damaged_file_is_named(tmp_path, name):
    folder = write_small_folder(tmp_path / "data")
    good = (folder / name).read_bytes()
    (folder / name).write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(ValueError, match=f"{name} was changed after it was prepared"):
        read_meta(folder)
    (folder / name).write_bytes(good[:-1])
    with pytest.raises(ValueError, match=f"{name} has .* bytes instead of"):
        read_meta(folder)
    (folder / name).unlink()
    with pytest.raises(ValueError, match=f"{name} is missing"):
        read_meta(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format="other"), "'mixdim.data'"),
        (lambda d: d.update(version=2), "reads version 1, got 2"),
        (lambda d: d.pop("splits"), "'splits' is missing"),
        (lambda d: d["features"][0].pop("rows"), "malformed"),
        (lambda d: d.update(files=3), "malformed"),
    ],
)
def test_a_malformed_page_says_what_is_wrong(tmp_path, change, message):
    folder = write_small_folder(tmp_path / "data")
    document = json.loads((folder / "meta.json").read_text())
    change(document)
    (folder / "meta.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match=message):
        read_meta(folder)


def test_what_is_no_folder_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no such directory"):
        read_meta(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"it has no meta\.json"):
        read_meta(tmp_path)


def test_a_large_file_is_fingerprinted_by_pieces_from_end_to_end(tmp_path):
    path = tmp_path / "large"
    size = SAMPLE * PIECES + 5 * SAMPLE
    with path.open("wb") as file:
        file.truncate(size)
    before = fingerprint(path)
    for place in (0, size - 1):
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"x")
        assert fingerprint(path) != before
        before = fingerprint(path)
