"""docs/own-data.md runs as it stands, from top to bottom, and prints what it says."""

import re
import shlex
from pathlib import Path

import polars as pl

from mixdim.cli.main import run

PAGE = Path(__file__).parent.parent / "docs" / "own-data.md"


def test_the_commands_of_the_page_lead_from_a_csv_to_predictions(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names, commands, printed, pages = {}, [], "", 0
    for language, block in re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
        if language == "python":
            exec(compile(block, str(PAGE), "exec"), names)
        elif language == "sh":
            (line,) = block.splitlines()
            program, *arguments = shlex.split(line)
            assert program == "mixdim"
            commands.append(line)
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
    assert names["served"].height == 50
