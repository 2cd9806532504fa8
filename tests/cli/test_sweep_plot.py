"""`mixdim sweep --methods ... --plot`, as a user types it."""

import pytest

from commands import complaint
from mixdim.cli.main import run
from training_data import ratings


def sweep(folder, *more):
    (folder / "run.toml").write_text("batch-size = 100\nepochs = 1\n")
    return [
        *("sweep", "--data", str(ratings().path), "--model", "mf", "--seeds", "1"),
        *("--config", str(folder / "run.toml"), "--records", str(folder / "records.jsonl"), *more),
    ]


def methods(folder, *more):
    sizes = ("--bytes", "1/2,1/8", "--widths", "4", "--reference-width", "8")
    return sweep(folder, "--methods", "cut", "--bits", "32,8", *sizes, *more)


def test_a_sweep_of_methods_draws_what_it_found(tmp_path):
    for name in ("methods.svg", "methods.png"):  # the second time nothing is left to train
        assert run(methods(tmp_path, "--plot", str(tmp_path / name))) == 0
    drawn = (tmp_path / "methods.svg").read_text()
    assert "<!-- cut, 8 bits -->" in drawn
    assert "<!-- 1/8 -->" in drawn
    assert (tmp_path / "methods.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        ("methods.gif", "a picture's name must end in .png, .svg, .pdf, got "),
        ("nowhere/methods.png", "there is no directory "),
    ],
)
def test_a_picture_that_cannot_be_written_is_refused_before_anything_is_trained(
    capsys, tmp_path, picture, message
):
    assert message in complaint(capsys, *methods(tmp_path, "--plot", str(tmp_path / picture)))
    assert not (tmp_path / "records.jsonl").exists()


def test_temperatures_are_not_drawn(capsys, tmp_path):
    command = sweep(tmp_path, "--budgets", "1000", "--plot", str(tmp_path / "a.png"))
    assert "--plot needs --methods; temperatures are drawn by `mixdim report`" in complaint(
        capsys, *command
    )


def test_where_every_run_failed_there_is_no_picture(capsys, tmp_path):
    command = methods(tmp_path, "--plot", str(tmp_path / "a.png"))
    (tmp_path / "run.toml").write_text("batch-size = 100\nepochs = 1\ntable-lr = 1e30\n")
    assert run(command) == 1
    assert "failed: mf, cut" in capsys.readouterr().err
    assert not (tmp_path / "a.png").exists()
