"""The commands about training, as a user types them."""

import itertools
import json
import re

import polars as pl
import pytest

from commands import complaint, output
from mixdim.cli.main import run
from mixdim.data.table import prepare_table
from mixdim.lab.synthetic.generate import generate_movielens_like
from mixdim.runs import train as training_run
from mixdim.training import Checkpoints, checkpoint
from training_data import clicks, ratings


def train(out, *more, data=None, model="mf"):
    return (
        *("train", "--data", data or ratings().path, "--model", model, "--out", out),
        *("--temperature", "0.3", "--base-dim", "8", "--batch-size", "100", "--epochs", "2", *more),
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("cli") / "run"
    assert run([str(argument) for argument in train(out)]) == 0
    return out


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_train_evaluate_and_predict_work_one_after_the_other(capsys, tmp_path):
    out, data = tmp_path / "run", clicks().path
    printed = output(
        capsys, *train(out, "--bottom", "8", "--top", "8,4", data=data, model="dlrm"), "--seed", 3
    ).out
    assert {path.name for path in out.iterdir()} == {
        *("config.toml", "plan.json", "metrics.jsonl", "summary.json", "checkpoint")
    }
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["seed"], summary["top"]) == (3, [8, 4])
    assert f"dlrm: {summary['num_parameters']:,} parameters" in printed
    assert f"{summary['test']['best']['log_loss']:.4f}" in printed
    assert f"next: mixdim evaluate {out} --data {data}" in printed

    found = json.loads(output(capsys, "evaluate", out, "--data", data, "--json").out)
    assert found["split"] == "test"
    for name in ("log_loss", "accuracy", "auc", "slices"):
        assert found[name] == summary["test"]["best"][name]
    table = output(capsys, "evaluate", out, "--data", data, "--weights", "last").out
    assert table.splitlines()[0].split()[:3] == ["rows", "log_loss", "accuracy"]
    assert [line.split()[0] for line in table.splitlines()[2:]] == ["popular", "middle", "rare"]
    assert f"{summary['test']['last']['auc']:.4f}" in table.splitlines()[1]

    file = tmp_path / "predictions.parquet"
    file.symlink_to("elsewhere.parquet")
    rows = summary["test"]["best"]["rows"]
    printed = output(capsys, "predict", out, "--data", data, "--out", file).out
    assert printed == f"{file}: {rows} predictions\n"
    table = pl.read_parquet(tmp_path / "elsewhere.parquet")
    assert table.columns == ["row", "prediction", "target"]
    guessed_right = (table["prediction"] > 0.5) == (table["target"] == 1)
    assert guessed_right.mean() == pytest.approx(summary["test"]["best"]["accuracy"])


@pytest.fixture
def strangers(tmp_path):
    """A table whose users in validation and test are all new."""
    users = [*(f"u{n % 7}" for n in range(80)), *(f"v{n}" for n in range(20))]
    rows = [f"{n % 5},{user},i{n % 3}" for n, user in enumerate(users)]
    (tmp_path / "t.csv").write_text("\n".join(["y,user,item", *rows]) + "\n")
    columns = {"target": "y", "categorical": ["user", "item"], "task": "rating", "split": "position"}
    prepare_table([tmp_path / "t.csv"], tmp_path / "data", **columns)
    return tmp_path / "data"


def test_a_run_says_what_it_costs_to_quantize_its_embeddings(capsys, tmp_path):
    printed = output(capsys, *train(tmp_path / "run", "--bits", "8")).out
    assert "test, best before quantizing" in printed
    assert " in 8 bits\n" in printed
    assert "once trained, embeddings are quantized to 8 bits: " in printed
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    found = output(capsys, "evaluate", tmp_path / "run", "--data", ratings().path, "--json").out
    assert json.loads(found)["mse"] == pytest.approx(summary["test"]["best"]["mse"], rel=1e-6)
    assert "bits must be 1, 2, 3, 4, 5, 6, 8 or 32, got 7" in complaint(
        capsys, *train(tmp_path / "other", "--bits", "7")
    )


def test_the_end_says_how_many_lookups_were_of_rows_never_trained(capsys, tmp_path, strangers):
    printed = output(capsys, *train(tmp_path / "run", "--no-unknown-dropout", data=strangers)).out
    assert (
        "unknown values: training never saw those of 100.0% of the lookups in test of user,\n" in printed
    )
    assert "never trained: mixdim train --unknown-dropout trains it on rare values,\n" in printed
    assert "and so does mixdim prepare ... --min-count 2\n" in printed
    path = tmp_path / "run" / "summary.json"
    summary = json.loads(path.read_text())
    assert summary.pop("unknown_lookups") == {"user": {"validation": 1.0, "test": 1.0, "trained": False}}
    path.write_text(json.dumps(summary))  # as an earlier version wrote it
    assert "unknown values" not in output(capsys, "train", "--resume", "--out", tmp_path / "run").out


def test_unknown_dropout_trains_the_row_and_there_is_nothing_to_complain_of(capsys, tmp_path, strangers):
    out = tmp_path / "run"
    printed = output(capsys, *train(out, "--unknown-dropout", data=strangers)).out
    assert (
        "unknown dropout: ids become unknown with probability 1/(1 + count), "
        "since no row to train on has an unknown user, item\n" in printed
    )
    assert "unknown values" not in printed
    summary = json.loads((out / "summary.json").read_text())
    assert summary["unknown_dropout"] is True
    assert summary["unknown_lookups"]["user"]["trained"] is True


def test_resume_goes_on_with_more_epochs_and_says_when_there_is_nothing_to_do(capsys, tmp_path):
    output(capsys, *train(tmp_path / "run"))
    output(capsys, "train", "--resume", "--out", tmp_path / "run", "--epochs", "3")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["epochs_run"] == 3
    again = output(capsys, "train", "--resume", "--out", tmp_path / "run")
    assert again.out.startswith(f"{tmp_path / 'run'} is finished already\n")


def test_a_damaged_checkpoint_is_told_and_the_older_one_used(capsys, caplog, tmp_path):
    output(capsys, *train(tmp_path / "run", "--checkpoint-every", "3"))
    expected = json.loads((tmp_path / "run" / "summary.json").read_text())
    (tmp_path / "run" / "summary.json").unlink()
    newest = Checkpoints(tmp_path / "run" / "checkpoint").newest_path()
    (newest / "state.json").write_text("{")
    output(capsys, "train", "--resume", "--out", tmp_path / "run")
    assert f"{newest} is damaged: state.json cannot be read; trying the checkpoint before" in caplog.text
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["test"] == expected["test"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--model", "gbdt"], "model must be one of dcn, deepfm, dlrm, mf, ncf, got 'gbdt'"),
        (["--data", "/nowhere"], "/nowhere is not a prepared folder"),
        (["--config", "/nowhere.toml"], "/nowhere.toml: No such file or directory"),
        (["--lr", "-1"], "lr must be above 0, got -1.0"),
        (["--lr", "fast"], "--lr"),
        (["--optimizer", "adamw"], "optimizer must be one of amsgrad, adam, adagrad, sgd"),
        (["--epochs", "0"], "epochs must be at least 1, got 0"),
        (["--budget", "20"], "budget of 20 parameters is too small: the smallest feasible budget is"),
        (["--bands", "deciles"], "--bands must be a whole number or octaves, got 'deciles'"),
        (["--min-dim", "2"], "min_dim must be 0 or 1, got 2"),
        (["--method", "cut"], "give method or temperature, not both: a method chooses its widths"),
        (["--temperature", "2"], "temperature must be in [0, 1], got 2.0"),
        (["--rounding", "up"], "rounding must be"),
        (["--slice-by", "movie"], "slice_by must be a single-valued feature (user, item)"),
        (["--init", "zeros"], "init must be one of"),
        (["--hidden", "8"], "hidden is no option of model 'mf'"),
        (["--hidden", "8,x"], "--hidden must be a list of whole numbers such as 64,32, got '8,x'"),
        (["--resume", "--overwrite"], "give --resume or --overwrite, not both"),
    ],
)
def test_wrong_training_is_one_clear_line_and_exit_code_2(capsys, tmp_path, more, message):
    assert message in complaint(capsys, *train(tmp_path / "run", *more))
    assert not (tmp_path / "run").exists()


def test_what_a_command_needs_is_said(capsys, tmp_path):
    assert "data is missing" in output(capsys, "train", "--out", tmp_path / "run", code=2).err
    nothing = output(capsys, "train", "--resume", "--out", tmp_path / "run", code=2).err
    assert nothing == f"mixdim: {tmp_path / 'run'} holds no run to resume\n"
    (tmp_path / "bad.toml").write_text("epochs = ")
    bad = output(capsys, *train(tmp_path / "run", "--config", tmp_path / "bad.toml"), code=2).err
    assert bad.startswith(f"mixdim: {tmp_path / 'bad.toml'} is not TOML: ")


def test_matrix_factorisation_refuses_26_features(capsys, tmp_path):
    printed = output(capsys, *train(tmp_path / "run", data=clicks().path), code=2)
    assert "model 'mf' takes two features of one id each" in printed.err
    assert "use --model dcn or deepfm or dlrm" in printed.err


def test_a_run_that_exists_is_kept_and_so_is_a_folder_that_is_none(capsys, trained, tmp_path):
    before = content(trained)
    message = output(capsys, *train(trained), code=2).err
    assert "exists already; --resume continues it, --overwrite replaces it" in message
    message = output(capsys, "train", "--resume", "--out", trained, "--lr", "0.7", code=2).err
    assert "was started with lr=0.001, not 0.7" in message
    assert content(trained) == before
    (tmp_path / "thesis.tex").write_text("years")
    message = output(capsys, *train(tmp_path, "--overwrite"), code=2).err
    assert "exists and is no run, so nothing is written there" in message
    assert (tmp_path / "thesis.tex").read_text() == "years"


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_runs_and_data_that_do_not_fit_are_one_line(capsys, trained, tmp_path, command):
    more = ("--out", tmp_path / "p.parquet") if command == "predict" else ()
    generate_movielens_like(tmp_path / "other", rows=2_000, scale=0.001)
    (tmp_path / "empty").mkdir()
    for place, data, options, message in [
        (tmp_path / "empty", ratings().path, (), "empty is not a run: it has no config.toml"),
        (trained, tmp_path / "nowhere", (), "nowhere is not a prepared folder"),
        (trained, tmp_path / "other", (), "has other features than"),
        (trained, clicks().path, (), "has other features than"),
        (trained, ratings().path, ("--split", "dev"), "split must be one of train, validation, test"),
        (trained, ratings().path, ("--weights", "first"), "weights must be best or last, got 'first'"),
    ]:
        assert message in complaint(capsys, command, place, "--data", data, *more, *options)
    assert not (tmp_path / "p.parquet").exists()


def test_divergence_is_one_line_and_exit_code_1(capsys, tmp_path, monkeypatch):
    build, steps = training_run.build_model, itertools.count(1)

    def turn(model, inputs, output):
        return output + float("nan") if model.training and next(steps) == 6 else output

    def turning(*told, **options):
        model = build(*told, **options)
        model.register_forward_hook(turn)
        return model

    monkeypatch.setattr(training_run, "build_model", turning)
    printed = output(capsys, *train(tmp_path / "run", "--checkpoint-every", "2"), code=1)
    last = printed.err.splitlines()[-1]
    assert last.startswith("mixdim: training diverged after step 5: the loss is nan; the last good")
    assert "step-00000004. A smaller lr than 0.001, or table_lr than 0.01, may help" in last
    assert "Traceback" not in printed.err


def test_too_little_memory_is_one_line_with_a_budget(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(training_run, "available_memory", lambda: 350_100_000)
    printed = output(capsys, *train(tmp_path / "run", "--base-dim", "64"), code=2)
    assert printed.err.startswith("mixdim: training needs about 35")
    assert "this machine has 350.1 MB free: " in printed.err
    assert not (tmp_path / "run").exists()


def test_the_share_of_the_memory_is_told_and_most_of_it_warned_of(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(training_run, "available_memory", lambda: 10**10)
    printed = output(capsys, *train(tmp_path / "plenty"))
    assert "% of the 10.0 GB free\n" in printed.out
    assert "warning" not in printed.err
    monkeypatch.setattr(training_run, "available_memory", lambda: 400_000_000)
    printed = output(capsys, *train(tmp_path / "little"))
    assert "runtime 350.0 MB), 88% of the 400.0 MB free\n" in printed.out
    assert re.search(r"warning: training will take about 35\d\.\d MB, 88% of the 400.0 MB", printed.err)


def test_a_full_disk_is_one_line(capsys, tmp_path, monkeypatch):
    def full(tensors, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_tensors", full)
    last = output(capsys, *train(tmp_path / "run"), code=2).err.splitlines()[-1]
    assert last.startswith("mixdim: cannot write the checkpoint ")
    assert last.endswith(": No space left on device")


@pytest.mark.parametrize("command", ["train", "evaluate", "predict"])
def test_help_carries_an_example(capsys, command):
    assert f"mixdim {command} " in output(capsys, command, "--help").out.split("xample")[-1]


def test_torchrun_without_distributed_is_refused(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "2")
    line = complaint(capsys, "train", "--resume", "--out", str(tmp_path / "run"))
    assert "torchrun started 2 processes: add --distributed" in line
