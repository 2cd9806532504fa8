"""What a run refuses: other data, folders that are none of its own, and what is missing."""

import json
import shutil

import numpy as np
import pytest
from small_folder import change_page, sign_again, write_small_folder

from mixdim.data import Dataset
from mixdim.lab.synthetic.generate import generate_movielens_like
from mixdim.runs.config import read_config
from mixdim.runs.run import Run
from mixdim.training import CheckpointError
from small_runs import FEW_STEPS, content, told, trained
from training_data import clicks, ratings, small_config

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


def test_what_is_missing_of_a_run_is_said(mf_run, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"is not a run: it has no config.toml"):
        Run.open(tmp_path).evaluate(ratings().path)
    with pytest.raises(ValueError, match="weights must be best or last, got 'first'"):
        Run.open(mf_run).evaluate(ratings().path, weights="first")
    for path in (mf_run / "checkpoint").iterdir():
        (path / "state.json").unlink()
    with pytest.raises(CheckpointError, match="is whole"):
        Run.open(mf_run).evaluate(ratings().path)
    (mf_run / "plan.json").write_text("{}")
    with pytest.raises(ValueError, match=r"plan.json: not a plan"):
        Run.open(mf_run).evaluate(ratings().path)
