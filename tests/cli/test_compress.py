"""The command that makes a run small, as a user types it."""

import pytest

from commands import complaint, output
from mixdim.cli.main import run
from training_data import ratings


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("cli") / "run"
    widths = ("--temperature", "0", "--base-dim", "16", "--batch-size", "100", "--epochs", "1")
    options = ("train", "--data", ratings().path, "--model", "mf", "--out", out, *widths)
    assert run([str(option) for option in options]) == 0
    return out


def test_compress_evaluate_and_predict_work_one_after_the_other(capsys, trained, tmp_path):
    out, data = tmp_path / "small", ratings().path
    printed = output(capsys, "compress", trained, "--budget", "1/8", "--out", out).out
    assert "chosen from trained tables" in printed
    before, after = (line.split() for line in printed.splitlines() if line[:6] in ("before", "after "))
    assert (before[0], after[0]) == ("before", "after")
    assert abs(float(before[1]) - float(after[1])) < 0.3
    assert "x smaller" in printed
    assert f"next: mixdim evaluate {out} --data {data}" in printed
    found = output(capsys, "evaluate", out, "--data", data, "--split", "validation").out
    assert after[1] in found
    output(capsys, "predict", out, "--data", data, "--out", tmp_path / "p.parquet")
    output(capsys, "compress", trained, "--budget", "2kB", "--bits", "8", "--out", out, "--overwrite")


def test_what_is_wrong_is_one_line(capsys, trained, tmp_path):
    out = tmp_path / "small"

    def told(*options, of=trained):
        return complaint(capsys, "compress", of, "--out", out, *options)

    assert "the smallest for these 2 tables is" in told("--budget", "653B")
    assert "a size must be a number of bytes" in told("--budget", "much")
    assert "bits must be 1, 2, 3, 4, 5, 6, 8 or 32, got 7" in told("--budget", "1/8", "--bits", "7")
    assert "is not a run: it has no config.toml" in told("--budget", "1/8", of=tmp_path)
    assert not out.exists()
