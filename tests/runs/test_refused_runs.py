"""What a run refuses: other data, folders that are none of its own, and what is missing."""

import json
import shutil

import numpy as np
import pytest
from small_folder import change_page, sign_again, write_small_folder

from commands import complaint
from mixdim.data import Dataset
from mixdim.lab.synthetic.generate import generate_movielens_like
from mixdim.runs.config import RunConfig, read_config
from mixdim.runs.memory import NotEnoughMemoryError
from mixdim.runs.run import Run
from mixdim.training import CheckpointError, Group
from mixdim.training.group import ALONE
from small_runs import FEW_STEPS, content, told, trained
from training_data import clicks, ratings, raw_bytes, small_config

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(ratings().path, tmp_path / "data")


def test_data_that_end_before_their_page_says_so_are_refused_at_once(folder, tmp_path):
    config = told("mf", data=str(folder))
    change_page(folder, lambda page: page["splits"].update(train=[0, 1_000_000_000]))
    with pytest.raises(ValueError, match=r"meta\.json is malformed: split 'validation' must begin at"):
        trained(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["mf", "ncf", "dlrm"])
@pytest.mark.parametrize("wrong", [100_000, -1])
def test_an_id_beyond_the_rows_of_its_feature_is_named(folder, tmp_path, name, wrong):
    config = small_config(name, ratings(), **FEW_STEPS, data=str(folder))
    ids = np.load(folder / "ids.npy")
    ids[5, 1] = wrong
    np.save(folder / "ids.npy", ids)
    sign_again(folder, "ids.npy")
    with pytest.raises(IndexError, match=f"id {wrong} of feature 'item' is out of range"):
        trained(config, tmp_path / "run")


@pytest.mark.parametrize(
    "files", [{"thesis.tex": "x"}, {"config.toml": 'baseURL = "/"'}, {"config.toml": ""}]
)
@pytest.mark.parametrize("how", [{}, {"resume": True}, {"overwrite": True}])
def test_a_folder_that_is_no_run_is_never_touched(tmp_path, files, how):
    for name, text in {**files, "metrics.jsonl": "mine"}.items():
        (tmp_path / name).write_text(text)
    before = content(tmp_path)
    with pytest.raises((FileExistsError, ValueError)):
        trained(told("mf"), tmp_path, **how)
    assert content(tmp_path) == before
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileExistsError, match="is not a folder"):
        trained(told("mf"), tmp_path / "file", **how)


def test_a_link_in_the_place_of_the_folder_stays(tmp_path):
    (tmp_path / "link").symlink_to("far/run")
    trained(told("mf", epochs=1), tmp_path / "link")
    (tmp_path / "far" / "run" / "old").write_text("x")
    trained(told("mf", epochs=1, seed=2), tmp_path / "link", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert not (tmp_path / "far" / "run" / "old").exists()
    assert read_config(tmp_path / "far" / "run" / "config.toml").seed == 2


def test_a_run_is_replaced_only_if_asked(mf_run):
    (mf_run / "checkpoint" / "old").write_text("x")
    with pytest.raises(FileExistsError, match="--resume continues it, --overwrite replaces it"):
        trained(told("mf", epochs=1), mf_run)
    trained(told("mf", epochs=1, seed=2), mf_run, overwrite=True)
    assert not (mf_run / "checkpoint" / "old").exists()
    assert read_config(mf_run / "config.toml").seed == 2


def resumed(**options):
    return lambda path: trained(RunConfig(**options), path, resume=True)


def new(*, group=ALONE, **options):
    return lambda path: Run.create(path.with_name("new"), told("mf", **options)).train(group=group)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (resumed(lr=0.3), "was started with lr=0.1, not 0.3"),
        (resumed(model="ncf"), "was started with model='mf', not 'ncf'"),
        (resumed(seed=4), "was started with seed=0, not 4"),
        (resumed(base_dim=16), "was started with base_dim=8, not 16"),
        (resumed(data="/elsewhere"), "was started with data=.*, not '/elsewhere'"),
        (resumed(distributed=True), r"run has the option distributed: train\(group=\.\.\.\) takes"),
        (lambda path: resumed()(path.with_name("nowhere")), "nowhere holds no run to resume"),
        (lambda path: Run.open(path).train(), "run exists already; --resume continues it"),
        (lambda path: Run.create(path, told("mf")), "run exists already; --resume continues it"),
        (
            lambda path: Run.create(path, resume=True, overwrite=True),
            "--resume or --overwrite, not both",
        ),
        (Run.create, "data is missing: give --data"),
        (lambda path: Run.create(path, {"learning_rate": 1}), "there is no option 'learning_rate'"),
        (lambda path: Run.create(path, epochs="many"), "epochs must be a whole number, got 'many'"),
        (new(group=Group(0, 2)), "new is of one process: many need the option distributed"),
        (new(lr=-1.0), "lr must be above 0, got -1.0"),
        (lambda path: Run.open(path.parent), "is not a run: it has no config.toml"),
        (lambda path: Run.open(path).model("first"), "weights must be best or last, got 'first'"),
        (lambda path: Run.open(path).evaluate("/nowhere"), "/nowhere is not a prepared folder"),
        (lambda path: Run.open(path).evaluate(split="dev"), "split must be one of train, validation"),
        (
            lambda path: Run.create(path.with_name("new"), told("mf")).evaluate(),
            r"new is not trained yet: call train\(\) first",
        ),
    ],
)
def test_what_cannot_be_is_an_exception_and_the_run_stays(mf_run, call, message):
    before = content(mf_run)
    with pytest.raises((ValueError, OSError), match=message) as error:
        call(mf_run)
    assert "\n" not in str(error.value)
    assert [path.name for path in mf_run.parent.iterdir()] == ["run"]
    assert content(mf_run) == before


def change_config(run, **changes):
    """Edit the file by hand: another value, or none."""
    lines = (run / "config.toml").read_text().splitlines()
    lines = [line for line in lines if line.split(" = ")[0] not in changes]
    lines += [f"{name} = {json.dumps(value)}" for name, value in changes.items() if value is not None]
    (run / "config.toml").write_text("\n".join(lines) + "\n")


def test_data_that_is_gone_is_named_and_other_data_taken(mf_run, tmp_path):
    change_config(mf_run, data=str(tmp_path / "gone"))
    run = Run.open(mf_run)
    for call in (run.evaluate, run.model, lambda: run.export(tmp_path / "model.onnx")):
        with pytest.raises(
            FileNotFoundError, match=r"was trained with is not at .*gone: say where with"
        ):
            call()
    assert run.evaluate(ratings())["rows"] == 100
    assert raw_bytes(run.model(data=ratings().path)) == raw_bytes(run.model(data=ratings()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": None}, "lacks batch_size: a run is started with a value of each"),
        ({"seed": None, "mean": None}, "lacks seed, mean: a run is started with a value of each"),
        ({"model": None}, "lacks model"),
        ({"model": "gbdt"}, "model must be one of dcn, "),
        ({"model": "ncf"}, "biases is no option of model 'ncf'"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"lr": "fast"}, "lr must be a number, got 'fast'"),
        ({"optimizer": "magic"}, "optimizer must be one of amsgrad, "),
        ({"quantise": "int8"}, "there is no option 'quantise'"),  # of an older version
    ],
)
def test_a_config_that_was_edited_by_hand_is_one_line(mf_run, capsys, changes, message):
    change_config(mf_run, **changes)
    for words in (
        ("evaluate", mf_run, "--data", ratings().path),
        ("train", "--resume", "--out", mf_run),
    ):
        assert f"{mf_run}/config.toml: {message}" in complaint(capsys, *words)


def test_a_run_of_an_older_format_is_one_line(mf_run, capsys):
    for path in (mf_run / "checkpoint").rglob("state.json"):
        path.write_text(path.read_text().replace('"version": 2', '"version": 1'))
    words = ("evaluate", mf_run, "--data", ratings().path)
    assert "was written by another version of mixdim" in complaint(capsys, *words)
    page = json.loads((mf_run / "plan.json").read_text())
    (mf_run / "plan.json").write_text(json.dumps({**page, "version": 1}))
    assert f"{mf_run}/plan.json: " in complaint(capsys, *words)


def test_a_run_that_does_not_fit_into_memory_can_be_trained_later(tmp_path, monkeypatch):
    run = Run.create(tmp_path / "run", told("mf", epochs=1))
    with monkeypatch.context() as patch:
        patch.setattr("mixdim.runs.train.available_memory", lambda: 1000)
        with pytest.raises(NotEnoughMemoryError, match=r"this machine has 1\.0 kB free"):
            run.train()
    assert not run.path.exists()
    assert run.train()["epochs_run"] == 1


def test_a_run_killed_before_it_wrote_its_plan_can_be_resumed(mf_run):
    for path in mf_run.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "config.toml":
            path.unlink()
    with pytest.raises(FileNotFoundError, match=r"is not a run: it has no plan\.json"):
        Run.open(mf_run)
    assert trained(RunConfig(), mf_run, resume=True).summary["epochs_run"] == 1


@pytest.mark.parametrize("resume", [True, False])
def test_a_run_killed_before_it_wrote_anything_can_begin_again(tmp_path, resume):
    (tmp_path / ".config.toml.k1l3d").write_text("da")
    assert trained(told("mf", epochs=1), tmp_path, resume=resume).summary["epochs_run"] == 1


def test_other_cardinalities_and_other_vocabularies_are_refused(mf_run, tmp_path):
    generate_movielens_like(tmp_path / "more", rows=2_000, scale=0.001)
    with pytest.raises(ValueError, match=r"has other features .*: 'user' has \d+ rows instead of \d+"):
        Run.open(mf_run).evaluate(tmp_path / "more")
    with pytest.raises(ValueError, match=r"has other features than|of another model"):
        Run.open(mf_run).evaluate(clicks().path)


def test_ids_of_another_vocabulary_or_order_are_refused(tmp_path):
    write_small_folder(tmp_path / "one", seed=0)
    write_small_folder(tmp_path / "two", seed=1)
    config = small_config("dlrm", Dataset(tmp_path / "one"), batch_size=10, epochs=1)
    trained(config, tmp_path / "run")
    with pytest.raises(ValueError, match="come from another vocabulary than those"):
        Run.open(tmp_path / "run").evaluate(tmp_path / "two")
    (tmp_path / "run" / "summary.json").unlink()
    meta = tmp_path / "two" / "meta.json"
    document = json.loads(meta.read_text())
    document["features"].reverse()
    meta.write_text(json.dumps(document))
    with pytest.raises(ValueError, match="their order differs"):
        Run.open(tmp_path / "run").evaluate(tmp_path / "two")


def test_what_is_missing_of_a_run_is_said(mf_run):
    for path in (mf_run / "checkpoint").iterdir():
        (path / "state.json").unlink()
    with pytest.raises(CheckpointError, match="is whole"):
        Run.open(mf_run).evaluate(ratings().path)
    (mf_run / "plan.json").write_text("{}")
    with pytest.raises(ValueError, match=r"plan.json: not a plan"):
        Run.open(mf_run).evaluate(ratings().path)
