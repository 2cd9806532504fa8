"""docs/own-data.md runs as it stands, from top to bottom, and prints what it says."""

import re
import runpy
import shlex
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path

import polars as pl
import pytest

from mixdim.cli.main import run

REPOSITORY = Path(__file__).parent.parent
PAGE, SERVE = REPOSITORY / "docs" / "own-data.md", REPOSITORY / "examples" / "serve.py"


@contextmanager
def served(file):
    """What the command of the page starts, on a free port instead; gives that."""
    server = runpy.run_path(str(SERVE))["server_of"](file, port=0)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_commands_of_the_page_lead_from_a_csv_to_a_served_prediction(tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxruntime", reason="pip install 'mixdim[serve]'")
    monkeypatch.chdir(tmp_path)
    with ExitStack() as started:
        run_page(started, tmp_path, capsys)


def run_page(started, tmp_path, capsys):
    names, commands, printed, pages, port = {}, [], "", 0, None
    for language, block in re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
        if language == "python":
            exec(compile(block.replace(":8000/", f":{port}/"), str(PAGE), "exec"), names)
        elif language == "sh":
            (line,) = block.splitlines()
            program, *arguments = shlex.split(line)
            commands.append(line)
            if program == "python":
                assert line == "python examples/serve.py model.onnx --port 8000"
                port = started.enter_context(served(Path("model.onnx")))
                continue
            assert program == "mixdim"
            assert run(arguments) == 0, line
            printed = capsys.readouterr().out.replace(f"{tmp_path}/", "")
        else:
            assert block == printed, commands[-1]
            pages += 1
    assert (len(commands), pages) == (10, 2)
    # The proposal is the command that follows it.
    assert commands[1].endswith("--categorical user,city --dense age,amount --split time:day")
    assert run(shlex.split(commands[0])[1:]) == 0
    assert f"  {commands[1]}\n" in capsys.readouterr().out.replace(
        "--out clicks-prepared", "--out clicks"
    )
    found = pl.read_parquet("predictions.parquet")
    assert found.columns == ["row", "prediction"]
    assert found["row"].to_list() == list(range(50))
    assert found["prediction"].n_unique() > 25
    assert names["served"].height == len(names["answer"]["predictions"]) == 50
