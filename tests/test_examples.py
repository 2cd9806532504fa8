"""The examples, and those in the docs, run as they stand, on small data."""

import http.client
import json
import re
import runpy
import threading
import zipfile
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
import torch

import mixdim
from commands import output
from mixdim.data.table import prepare_table
from mixdim.runs.run import Run
from odd_rows import ROLES, odd_rows, write_rows
from training_data import clicks_with_bags

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


@pytest.fixture
def ask(tmp_path, capsys):
    """Train, export and serve, then: a request in, code and answer out."""
    pytest.importorskip("onnxruntime", reason="pip install 'mixdim[serve]'")
    data, run, file = clicks_with_bags().path, tmp_path / "run", tmp_path / "model.onnx"
    small = ("--bottom", 4, "--top", 4, "--base-dim", 4, "--epochs", 1, "--temperature", 0.3)
    output(capsys, "train", "--data", data, "--model", "dlrm", "--out", run, *small)
    output(capsys, "export", run, "--out", file)
    server = runpy.run_path(str(EXAMPLES / "serve.py"))["server_of"](file, port=0)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()

    def post(body, path="/predict"):
        connection = http.client.HTTPConnection(*server.server_address, timeout=30)
        connection.request("POST", path, body if isinstance(body, str) else json.dumps(body))
        with closing(connection):
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    post.predictions = lambda: predictions_of(capsys, file, data, tmp_path / "p.parquet")
    yield post
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_server_answers_rows_of_a_file_as_they_are_predicted(tmp_path):
    pytest.importorskip("onnxruntime", reason="pip install 'mixdim[serve]'")
    prepare_table([write_rows(tmp_path / "t.csv", odd_rows(1, 300))], tmp_path / "data", **ROLES)
    small = {"bottom": (4,), "top": (4,), "base_dim": 4, "temperature": 0.3, "epochs": 1, "lr": 0.1}
    run = Run.create(tmp_path / "run", data=str(tmp_path / "data"), model="dlrm", **small)
    run.train()
    run.export(tmp_path / "model.onnx")
    new = odd_rows(2, 50)
    raw, out = write_rows(tmp_path / "new.csv", new), tmp_path / "predictions.parquet"
    run.predict(raw, out)
    expected = pl.read_parquet(out)["prediction"].to_list()
    model = runpy.run_path(str(EXAMPLES / "serve.py"))["Model"](tmp_path / "model.onnx")
    assert model.predict(json.loads(json.dumps(new))) == pytest.approx(expected, abs=1e-5)
    assert max(expected) - min(expected) > 0.01


def predictions_of(capsys, file, data, out):
    output(capsys, "predict", file, "--data", data, "--out", out, "--split", "test")
    return pl.read_parquet(out)["prediction"]


def test_the_server_answers_raw_values_as_the_file_predicts_rows(ask):
    dataset = clicks_with_bags()
    batch = dataset.rows(slice(*dataset.splits["test"]))
    values, offsets = batch.bags["tags"]
    raw = {"user": ["u8", "unseen"], "item": [None, "unseen"]}  # whose id is that of unknown values
    samples = []
    for n, ((user, item), (x, y)) in enumerate(
        zip(batch.ids.tolist(), batch.dense.tolist(), strict=True)
    ):
        tags = values[offsets[n] : offsets[n + 1]].tolist()
        samples.append({"user": user, "item": str(item), "x": x, "y": y, "tags": tags})
        if user == 8:
            samples[-1]["user"] = raw["user"][n % 2]
        if item == 4:
            samples[-1]["item"] = raw["item"][n % 2]
    code, answer = ask(samples)
    assert code == 200
    assert answer["predictions"] == pytest.approx(ask.predictions().to_list(), abs=1e-6)


@pytest.mark.parametrize("content", [None, b"", b"no model"])
def test_a_server_without_a_model_says_so_in_one_line(tmp_path, monkeypatch, content):
    pytest.importorskip("onnxruntime", reason="pip install 'mixdim[serve]'")
    file = tmp_path / "model.onnx"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setattr("sys.argv", ["serve.py", str(file), "--port", "0"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES / "serve.py"))["main"]()
    assert re.fullmatch(f"cannot serve {file}: .+", str(ended.value))


def test_a_bad_request_is_one_line_and_the_server_goes_on(ask):
    for body, message in [
        ("[{", "Expecting property name"),
        ({"user": 1}, "a request must be a list of objects, one a sample"),
        ([], "a request must have 1 to 10000 samples, got 0"),
        ([{"usr": 1}], "row 0 has none of the columns user, item, tags, x, y"),
        ([{}, {"x": "many"}], "row 1: x is not a number: 'many'"),
        ('[{"x": Infinity}]', "row 0: x is not a number: inf"),
        ([{"tags": {"a": 1}}], "'a bag' must be a string or a number, got {'a': 1}"),
        ([{"user": {}}], "'user' must be a string or a number, got {}"),
        ("[" * 100_000, "recursion"),
    ]:
        code, answer = ask(body)
        assert (code, answer.keys()) == (400, {"error"})
        assert message in answer["error"]
        assert "\n" not in answer["error"]
    assert ask([{}], path="/elsewhere")[0] == 404
    assert ask([{}])[0] == 200


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
    shares = ("1/8", "1/16", "1/32", "1/64")
    assert [name for name, *_ in small] == [f"{s}, {b} bits" for s in shares for b in ("auto", 32)]
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
    named = {"swap_embedding.py", "clicks.py", "compress_deepctr.py", "compress_rechub.py", "serve.py"}
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
    assert [block.storage.kind for block in names["small"].blocks] == ["rows", "hashed"]
    assert mixdim.Plan.load("small.json") == names["small"]


def test_the_python_examples_of_the_training_page_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (EXAMPLES.parent / "docs" / "training.md").read_text()
    of_runs, own = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    names = {}
    exec(compile(of_runs, "docs/training.md", "exec"), names)
    assert names["summary"]["epochs_run"] == 3
    assert names["small"].bytes_after <= names["small"].bytes_before / 4
    assert "preset auto: " in capsys.readouterr().out
    exec(compile(own, "docs/training.md", "exec"), {})
    assert (tmp_path / "ratings-run" / "metrics.jsonl").is_file()
