"""The examples, and the one in docs/training.md, run as they stand, on small data."""

import re
import runpy
import zipfile
from pathlib import Path

import pytest
import torch

import mixdim

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_swapping_the_embedding_saves_parameters_and_is_two_lines(capsys):
    path = EXAMPLES / "swap_embedding.py"
    swapped = [
        line for line in path.read_text().splitlines() if line.endswith(("<-- before", "<-- after"))
    ]
    assert ["nn.Embedding" in line for line in swapped] == [True, False]
    assert ["MixedDimEmbedding" in line for line in swapped] == [False, True]

    runpy.run_path(str(path))["main"](rows=2000)
    pattern = r"(.+): ([\d,]+) parameters, test MSE (\d\.\d+)"
    before, after = (re.fullmatch(pattern, line) for line in capsys.readouterr().out.splitlines())
    assert (before[1], after[1]) == ("nn.Embedding", "mixed dimensions")
    assert int(after[2].replace(",", "")) < int(before[2].replace(",", ""))
    assert all(0.3 < float(found[3]) < 3 for found in (before, after))


def _no_network(*_, **__):
    raise OSError("tests have no network")


@pytest.mark.parametrize(
    ("library", "package", "stale"),
    [
        ("deepctr", "deepctr_torch", "model.regularization_weight[0][0][0] is the old weight of"),
        ("rechub", "torch_rechub", "model.deep_features[0].embed is the old table of"),
    ],
)
def test_a_model_of_another_library_is_compressed(library, package, stale, capsys, monkeypatch):
    requests = pytest.importorskip("requests", reason="pip install 'mixdim[compress-tests]'")
    monkeypatch.setattr(requests, "get", _no_network)  # which deepctr-torch asks for its newest version
    pytest.importorskip(package, reason="pip install 'mixdim[compress-tests]'")
    monkeypatch.syspath_prepend(EXAMPLES)
    runpy.run_path(str(EXAMPLES / f"compress_{library}.py"))["main"](rows=3000, epochs=1)
    printed = capsys.readouterr().out
    pattern = r"^(.+): log loss (\d\.\d+), AUC (0\.\d+), ([\d,]+) bytes"
    before, *small = re.findall(pattern, printed, flags=re.MULTILINE)
    assert [name for name, *_ in (before, *small)] == [
        *("before", "1/8, float32", "1/8, int8", "1/32, float32", "1/32, int8")
    ]
    for name, loss, _, num_bytes in small:
        share = int(num_bytes.replace(",", "")) / int(before[3].replace(",", ""))
        assert share <= 1 / int(re.search(r"1/(\d+)", name)[1])
        assert float(loss) == pytest.approx(float(before[1]), abs=0.05)
    assert stale in printed


def test_clicks_are_read_from_movielens(tmp_path, monkeypatch):
    pytest.importorskip("pandas", reason="pip install 'mixdim[compress-tests]'")
    with zipfile.ZipFile(tmp_path / "ml-1m.zip", "w") as archive:
        archive.writestr("ml-1m/ratings.dat", "7::1193::5::978300760\n7::661::3::97\n9::661::4::98\n")
    ids, liked = runpy.run_path(str(EXAMPLES / "clicks.py"))["read_clicks"](tmp_path / "ml-1m.zip", 0)
    found = {(*map(int, row), float(label)) for row, label in zip(ids, liked, strict=True)}
    assert found == {(0, 1, 1.0), (0, 0, 0.0), (1, 0, 1.0)}


def test_every_example_has_a_test():
    named = {"swap_embedding.py", "clicks.py", "compress_deepctr.py", "compress_rechub.py"}
    assert {path.name for path in EXAMPLES.glob("*.py")} == named


def test_the_python_examples_of_the_page_on_compression_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page, names = (EXAMPLES.parent / "docs" / "compress.md").read_text(), {}
    for example in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL):
        exec(compile(example, "docs/compress.md", "exec"), names)
    assert names["result"].bytes_after <= names["result"].bytes_before / 8
    assert "compressed 8." in capsys.readouterr().out
    ids = names["batches"][0]
    assert torch.equal(names["model"](*ids), names["other"](*ids))


def test_the_python_examples_of_the_page_on_plans_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page, names = (EXAMPLES.parent / "docs" / "plans.md").read_text(), {}
    for example in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL):
        exec(compile(example, "docs/plans.md", "exec"), names)
    assert [block.storage.kind for block in names["small"].blocks] == ["narrow", "hashed"]
    assert mixdim.Plan.load("small.json") == names["small"]


def test_the_python_example_of_the_training_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (EXAMPLES.parent / "docs" / "training.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(compile(example, "docs/training.md", "exec"), {})
    assert (tmp_path / "ratings-run" / "metrics.jsonl").is_file()
