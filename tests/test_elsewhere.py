"""mixdim on a machine that lacks what some commands need, in a process of its own."""

import subprocess
import sys

import mixdim
from mixdim.runs.report.page import report_page
from mixdim.runs.sweeps.records import append_record
from report_records import finished

OF_UNIX = ("resource", "fcntl", "pwd", "grp", "termios")  # or not of all of it
OF_EXTRAS = ("polars", "matplotlib")


def test_it_plans_without_extras_and_reports_without_the_modules_of_unix_and_matplotlib(tmp_path):
    append_record(tmp_path / "records.jsonl", finished())
    report = ["--records", str(tmp_path / "records.jsonl"), "--out", str(tmp_path / "page.html")]
    program = f"""
import sys
sys.modules.update(dict.fromkeys({OF_UNIX + OF_EXTRAS}))
import mixdim
from mixdim.cli.main import run
assert run(["plan", "--cardinalities", "5,6", "--temperature", "0", "--base-dim", "2"]) == 0
assert run(["report", *{report}]) == 2
del sys.modules["polars"]
import mixdim.lab.paper.claims
assert run(["report", *{report}]) == 0
assert run(["--help"]) == 0
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(mixdim.plan([5, 6], temperature=0, base_dim=2)))
    assert "Usage: mixdim" in done.stdout
    assert done.stderr == "mixdim: this command needs polars: pip install 'mixdim[all]'\n"
    assert (tmp_path / "page.html").read_text() == report_page([finished()])
