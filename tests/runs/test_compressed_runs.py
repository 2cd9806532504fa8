"""Runs made small: what they hold, what they say, and what is left when something goes wrong."""

import json
import shutil
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import polars as pl
import pytest
import torch

from mixdim.runs import compress
from mixdim.runs.config import RunConfig
from mixdim.runs.models import embedding_bytes, tables_of
from mixdim.runs.run import Run
from mixdim.tasks import task_of
from small_runs import DATA, content, told, trained
from training_data import raw_bytes

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::mixdim.FloorWarning"),
]
LOSS = {name: task_of(data().task).objective for name, data in DATA.items()}
WIDE = {"temperature": 0.0, "base_dim": 8}


@pytest.mark.parametrize(
    ("model", "options", "bits"),
    [
        ("dlrm", {"unknown_dropout": True, "epochs": 1, "first_order": True}, 32),
        ("mf", {}, 8),
        ("ncf", {"bits": 8}, 32),
        ("dcn", {"epochs": 1, "first_order": True}, 8),
        ("deepfm", {"epochs": 1}, 32),
    ],
)
def test_a_small_run_is_measured_as_it_says(model, options, bits, tmp_path):
    data = DATA[model]()
    trained(told(model, **WIDE, **options), tmp_path / "run")
    before = content(tmp_path / "run")
    found = Run.open(tmp_path / "run").compress(tmp_path / "small", budget="1/2", bits=bits)
    assert content(tmp_path / "run") == before

    run, small = (Run.open(tmp_path / name) for name in ("run", "small"))
    learned, fitted = run.model(served=False), small.model()
    assert found.bytes_before == embedding_bytes(run.model())
    assert found.bytes_after == embedding_bytes(fitted) <= found.bytes_before / 2
    assert small.plan == found.plan
    assert small.load(data).step == run.load(data).step
    assert (
        found.before[LOSS[model]]
        == Run.open(tmp_path / "run").evaluate(data.path, split="validation")[LOSS[model]]
    )
    summary = json.loads((tmp_path / "small" / "summary.json").read_text())
    assert summary["compressed_from"] == str(tmp_path / "run")
    assert summary["embedding_bytes"] == found.bytes_after
    assert summary["bits"] == small.plan.least_bits == bits
    assert small.config.bits is None  # the plan says it
    for split in ("validation", "test"):
        for which in ("best", "last"):
            measured = Run.open(tmp_path / "small").evaluate(data.path, split=split, weights=which)
            assert measured[LOSS[model]] == pytest.approx(summary[split][which][LOSS[model]], rel=1e-12)
    assert found.after[LOSS[model]] == pytest.approx(found.before[LOSS[model]], rel=0.1)
    layers = {id(module) for layer in fitted.embedding_layers() for module in layer.modules()}
    for name, parameter in fitted.named_parameters():
        if not any(name.startswith(own) for own in _layer_names(fitted, layers)):
            assert torch.equal(parameter, learned.get_parameter(name))
    assert Run.open(tmp_path / "small").predict(data.path, tmp_path / "p.parquet").rows == len(
        pl.read_parquet(tmp_path / "p.parquet")
    )


def _layer_names(model, layers):
    return [name for name, module in model.named_modules() if id(module) in layers]


def test_tables_are_the_nearest_by_popularity_within_their_bands(tmp_path):
    data = DATA["mf"]()
    trained(told("mf", **WIDE), tmp_path / "run")
    found = Run.open(tmp_path / "run").compress(tmp_path / "small", budget="1/2", by_loss=False)
    run, small = (tables_of(Run.open(tmp_path / name).model()) for name in ("run", "small"))
    for name, feature in zip(found.plan, found.plan.features, strict=True):
        for block in feature.blocks:
            here = slice(block.start, block.start + block.size)
            rows, weights = torch.tensor(run[name][here]), torch.tensor(data.counts[name][here])
            if not weights.any():
                continue
            weights = weights.double().sqrt()[:, None]
            if block.dim == 0:
                best = (weights**2 * rows).sum(0) / (weights**2).sum() + torch.zeros_like(rows)
            else:
                u, s, v = torch.linalg.svd(weights * rows, full_matrices=False)
                best = (u[:, : block.dim] * s[: block.dim]) @ v[: block.dim]
                best = best / weights.clamp(min=1e-9)
            error = (weights * (torch.tensor(small[name][here]) - rows)).square().sum()
            assert error <= (weights * (best - rows)).square().sum() + 1e-4


def test_a_run_that_has_not_come_to_its_end_is_told_how_to_go_on(tmp_path):
    trained(told("mf", **WIDE, epochs=1), tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    with pytest.raises(ValueError, match=r"not come to its end: mixdim train --resume --out .*run"):
        Run.open(tmp_path / "run").compress(tmp_path / "small", budget="1/2")
    assert not (tmp_path / "small").exists()


def test_a_run_that_was_compressed_is_compressed_again_and_not_trained_on(tmp_path):
    trained(told("mf", **WIDE), tmp_path / "run")
    Run.open(tmp_path / "run").compress(tmp_path / "small", budget="1/2")
    again = Run.open(tmp_path / "small").compress(tmp_path / "smaller", budget="1/2")
    assert again.bytes_after <= again.bytes_before / 2
    with pytest.raises(ValueError, match=r"was made by mixdim compress and is not trained on: .*--plan"):
        trained(RunConfig(), tmp_path / "small", resume=True)


def test_a_folder_is_replaced_only_if_asked_and_only_if_it_is_a_run(tmp_path):
    trained(told("mf", **WIDE, epochs=1), tmp_path / "run")
    out = tmp_path / "small"
    Run.open(tmp_path / "run").compress(out, budget="1/2")
    before = content(out)
    with pytest.raises(FileExistsError, match="small exists already; --overwrite replaces it"):
        Run.open(tmp_path / "run").compress(out, budget="1/4")
    assert content(out) == before
    Run.open(tmp_path / "run").compress(out, budget="1/4", overwrite=True)
    assert content(out) != before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine").write_text("x")
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match="other exists and is no run, so nothing is written"):
            Run.open(tmp_path / "run").compress(tmp_path / "other", budget="1/4", overwrite=overwrite)
    with pytest.raises(ValueError, match="--out must be another folder than the run"):
        Run.open(tmp_path / "run").compress(tmp_path / "run", budget="1/4", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "run", "small"]


def test_an_interrupted_compression_leaves_what_was_there(tmp_path, monkeypatch):
    trained(told("mf", **WIDE, epochs=1), tmp_path / "run")
    Run.open(tmp_path / "run").compress(tmp_path / "small", budget="1/2")
    before = content(tmp_path)
    for out, error in (("small", KeyboardInterrupt("by hand")), ("new", OSError("the disk is full"))):
        monkeypatch.setattr(compress, "_save_weights", Mock(side_effect=error))
        with pytest.raises(type(error), match=str(error)):
            Run.open(tmp_path / "run").compress(tmp_path / out, budget="1/4", overwrite=True)
    assert content(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "small"]


def relative(files, folder):
    return {path.relative_to(folder): data for path, data in files.items()}


def test_a_run_whose_replacement_was_killed_comes_back_at_the_next_command(tmp_path, monkeypatch):
    work, killed, rename = tmp_path / "work", tmp_path / "killed", Path.rename
    trained(told("mf", **WIDE, epochs=1), work / "run")
    Run.open(work / "run").compress(work / "small", budget="1/2")
    before = relative(content(work / "small"), work)

    def as_a_kill_leaves_it(path, target):
        rename(path, target)
        if path == work / "small":
            shutil.copytree(work, killed)

    monkeypatch.setattr(Path, "rename", as_a_kill_leaves_it)
    Run.open(work / "run").compress(work / "small", budget="1/4", overwrite=True)
    for number, (next_command, left) in enumerate((
        (lambda folder: Run.open(folder / "small"), 1),
        (lambda folder: Run.open(folder / "run").compress(folder / "small", budget="1/4"), 0),
        (lambda folder: Run.create(folder / "small", told("mf", **WIDE)), 0),
    )):  # fmt: skip
        folder = tmp_path / str(number)
        shutil.copytree(killed, folder)
        assert not (folder / "small").exists()
        with suppress(FileExistsError):  # without --overwrite
            next_command(folder)
        assert relative(content(folder / "small"), folder) == before
        assert len(list(folder.iterdir())) == 2 + left  # who only reads removes nothing


def test_the_same_is_fitted_every_time(tmp_path):
    trained(told("mf", **WIDE, epochs=1), tmp_path / "run")
    for name in ("one", "two"):
        Run.open(tmp_path / "run").compress(tmp_path / name, budget="1/3", bands="octaves")
    models = [Run.open(tmp_path / name).model() for name in ("one", "two")]
    assert raw_bytes(models[0]) == raw_bytes(models[1])
