"""The examples, and the one in docs/training.md, run as they stand, on small data."""

import http.client
import json
import re
import runpy
import threading
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

import mixdim
from commands import output
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
    thread = threading.Thread(target=server.serve_forever)
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


def test_a_bad_request_is_one_line_and_the_server_goes_on(ask):
    for body, message in [
        ("[{", "Expecting property name"),
        ({"user": 1}, "a request must be a list of objects, one a sample"),
        ([], "a request must have 1 to 10000 samples, got 0"),
        ([{"usr": 1}], "sample 0 has a column that the model lacks: 'usr'"),
        ([{"x": "many"}], "'x' must be a finite number, got 'many'"),
        ([{"tags": "a"}], "'tags' must be a list of values"),
        ([{"user": {}}], "'user' must be a string or a number, got {}"),
        ("[" * 100_000, "recursion"),
    ]:
        code, answer = ask(body)
        assert (code, answer.keys()) == (400, {"error"})
        assert message in answer["error"]
        assert "\n" not in answer["error"]
    assert ask([{}], path="/elsewhere")[0] == 404
    assert ask([{}])[0] == 200


def test_every_example_has_a_test():
    assert {path.name for path in EXAMPLES.glob("*.py")} == {"serve.py", "swap_embedding.py"}


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
