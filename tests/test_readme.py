"""The README's Python examples run as they stand, one after the other, as a reader would type them."""

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_the_python_examples_of_the_readme_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len(examples) >= 3
    names = {}
    for example in examples:
        exec(compile(example, str(README), "exec"), names)


def test_the_printed_plan_of_the_readme_is_the_true_one(capsys):
    text = README.read_text()
    first = re.search(r"```python\n(.*?)```", text, flags=re.DOTALL)[1]
    exec(compile(first, str(README), "exec"), {})
    assert f"```text\n{capsys.readouterr().out}```" in text


def test_the_commands_of_the_readme_exist():
    makefile = (README.parent / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README.read_text(), flags=re.MULTILINE):
        assert f"\n{target}:" in makefile
