"""Exported files: whole or not there, not overwritten unasked, with weights beside them if large."""

import pytest
import torch

import mixdim
from mixdim.serving import onnx_file
from mixdim.serving.session import ServedModel
from small_layers import banded_plan, generator_of
from strategies import random_ids

pytest.importorskip("onnxruntime", reason="pip install 'mixdim[serve]'")


def layer(seed=0):
    return mixdim.FeatureEmbeddings(banded_plan(), generator=generator_of(seed))


def assert_answers(path, of):
    ids = random_ids(of.plan, 6, generator_of(1))
    found = torch.from_numpy(ServedModel(path).run({"ids": ids.numpy()}))
    torch.testing.assert_close(found, of(ids).detach(), rtol=1e-5, atol=1e-6)


def test_large_weights_go_into_a_file_beside_the_model(tmp_path):
    path = mixdim.export(layer(), tmp_path / "model.onnx", largest=2000)
    model, data = sorted(tmp_path.iterdir())
    assert model == path
    assert data.name.endswith(".data")
    assert data.stat().st_size >= 4 * (3 + 10 + 90) * 16  # all is folded, so of full width
    assert path.stat().st_size < 4000
    assert_answers(path, layer())
    mixdim.export(layer(7), path, largest=2000, overwrite=True)  # and nothing of the first stays
    assert len(list(tmp_path.iterdir())) == 2
    assert not data.exists()
    assert_answers(path, layer(7))
    next(tmp_path.glob("*.data")).write_bytes(b"")
    with pytest.raises(ValueError, match=r"model.onnx is damaged or no ONNX model: "):
        ServedModel(path)
    mixdim.export(layer(8), path, overwrite=True)
    assert list(tmp_path.iterdir()) == [path]
    assert_answers(path, layer(8))


def test_a_file_that_exists_is_kept(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_text("years of work")
    for format in ("onnx", "pt2"):
        with pytest.raises(FileExistsError, match=r"model.onnx exists already; overwrite=True replaces"):
            mixdim.export(layer(), path, format=format)
    assert path.read_text() == "years of work"


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, MemoryError])
@pytest.mark.parametrize("largest", [2000, 2**31])
def test_an_export_that_fails_leaves_nothing_or_what_was_there(tmp_path, monkeypatch, error, largest):
    path = mixdim.export(layer(), tmp_path / "old.onnx", largest=2000)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    real, calls = onnx_file._tensor, []

    def fails_late(*told):
        calls.append(told)
        if len(calls) > 2:
            raise error
        return real(*told)

    monkeypatch.setattr(onnx_file, "_tensor", fails_late)
    for target in (path, tmp_path / "new.onnx"):
        calls.clear()
        with pytest.raises(error):
            mixdim.export(layer(1), target, largest=largest, overwrite=True)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_disk_that_fails_at_the_end_leaves_nothing(tmp_path, monkeypatch):
    def full(path):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("mixdim._util.files.sync", full)
    for options in ({}, {"largest": 2000}):
        with pytest.raises(OSError, match=r"No space left on device: '.*/model.onnx"):
            mixdim.export(layer(), tmp_path / "model.onnx", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_truncated_or_foreign_model_is_one_line(tmp_path):
    path = mixdim.export(layer(), tmp_path / "model.onnx")
    content = path.read_bytes()
    for length in (0, 1, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"^\S+ is damaged or no ONNX model: .+$"):
            ServedModel(path)
    path.write_text("not a model")
    with pytest.raises(ValueError, match="is damaged or no ONNX model"):
        ServedModel(path)
    with pytest.raises(FileNotFoundError, match=r"nowhere.onnx is not a file"):
        ServedModel(tmp_path / "nowhere.onnx")
    with pytest.raises(ValueError, match=r"model.onnx cannot take these inputs|also reads 'ids'"):
        ServedModel(mixdim.export(layer(), path, overwrite=True)).run({})
