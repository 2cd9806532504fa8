"""The examples, and the one in docs/training.md, run as they stand, on small data."""

import re
import runpy
from pathlib import Path

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


def test_every_example_has_a_test():
    assert {path.name for path in EXAMPLES.glob("*.py")} == {"swap_embedding.py"}


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
