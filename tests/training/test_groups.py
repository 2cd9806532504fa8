"""Several ranks that write, read and train together, as threads: all come to the same decisions.

How their gradients become those of one process is told in tests/distributed.
"""

import errno
import json
import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fitted_guesses import OPTIONS, Guess, journal, saved_steps
from mixdim.training import (
    CheckpointError,
    Checkpoints,
    DivergedError,
    LocalLearner,
    Stopped,
    Trainer,
    checkpoint,
    trainer,
)
from mixdim.training.evaluation import evaluate
from mixdim.training.packed_rows import PackedRows
from mixdim.training.shards import Shard
from resumed_runs import Kill
from thread_group import as_ranks
from training_data import OwnModel, Turning, ratings

WORLD = 3
TABLE = torch.arange(60.0).view(30, 2)


def held_by(rank, value):
    """A third of a packed table, and a tensor that all have."""
    packed = PackedRows(30, 2)
    stored = torch.zeros(packed.shape)
    packed.put(0, TABLE + value, stored, 0)
    rows = slice(5 * rank, 5 * rank + 5)
    return {"t": [Shard(stored[rows], (30, 2), 0, packed, 5 * rank)], "all": torch.tensor([value])}


def save(group, folder, step, best=None):
    store = Checkpoints(folder, group)
    store.save("step", step, held_by(group.rank, float(step)), {"best": best, "rank": group.rank})
    store.prune()


def open_all(folder):
    """What the newest checkpoint is to each of two ranks: the error, or its step."""
    found = as_ranks(2, lambda group: Checkpoints(folder, group).newest())
    return [one if isinstance(one, Exception) else one.step for one in found]


@pytest.fixture
def saved(tmp_path):
    for step in (3, 6):
        as_ranks(WORLD, lambda group, step=step: save(group, tmp_path, step))
    return tmp_path


def test_each_rank_writes_its_rows_and_the_state_is_that_of_the_first(saved):
    found = Checkpoints(saved).newest()
    assert torch.equal(found.tensors["t"].read(), TABLE + 6)
    assert found.state == {"best": None, "rank": 0}
    assert found.files == tuple(f"rank-{rank:05d}.safetensors" for rank in range(WORLD))
    assert [sum(s["rank"] == r for s in found.places["t"]["shards"]) for r in range(WORLD)] == [1, 1, 1]
    assert [shard["rank"] for shard in found.places["all"]["shards"]] == [0]


@pytest.mark.parametrize("rank", range(WORLD))
@pytest.mark.parametrize("damage", ["flipped", "short", "missing"])
def test_a_damaged_file_of_any_rank_is_noticed_by_all_and_the_older_one_used(
    saved, caplog, rank, damage
):
    for step in (6, 3):
        file = saved / f"step-{step:08d}" / f"rank-{rank:05d}.safetensors"
        content = bytearray(file.read_bytes())
        content[-5] ^= 1
        file.write_bytes(content if damage == "flipped" else content[:-1])
        if damage == "missing":
            file.unlink()
        words = "is missing" if damage == "missing" else "does not match its checksum"
        line = f"step-{step:08d} is damaged: {file.name} {words}"
        if step == 6:
            assert open_all(saved) == [3, 3]
            assert [line in record.getMessage() for record in caplog.records] == [True]  # said once
    errors = open_all(saved)
    assert {type(error) for error in errors} == {CheckpointError}
    assert len({str(error) for error in errors}) == 1
    assert line in str(errors[0])


@pytest.mark.parametrize("rank", range(WORLD))
def test_a_disk_that_is_full_for_one_rank_is_a_line_in_all_and_nothing_is_torn(saved, monkeypatch, rank):
    write = checkpoint.write_tensors

    def full(path, tensors):
        if path.name == f"rank-{rank:05d}.safetensors":
            path.write_bytes(b"half of it")
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, tensors)

    before = {path: path.read_bytes() for path in saved.rglob("*") if path.is_file()}
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_tensors", full)
        errors = as_ranks(WORLD, lambda group: save(group, saved, 9))
    line = f"cannot write the checkpoint {saved / 'step-00000009'}: No space left on device"
    assert [(type(error), str(error)) for error in errors] == [(OSError, line)] * WORLD
    assert {path: path.read_bytes() for path in saved.rglob("*") if path.is_file()} == before


CALLS = ["write_tensors", "_make_anew", "_commit", "_digest_of", "sync", "rename 1", "rename 2"]


@pytest.mark.parametrize("step", [6, 9])
@pytest.mark.parametrize(("where", "rank"), [*((c, 0) for c in CALLS), ("write_tensors", 2)])
def test_a_kill_of_any_rank_while_it_writes_loses_nothing(saved, monkeypatch, where, rank, step):
    renames, rename = [], Path.rename

    def die(*args):
        raise Kill

    def renamed(path, target):
        renames.append(path)
        return die() if len(renames) == int(where[-1]) else rename(path, target)

    def write(path, tensors, write=checkpoint.write_tensors):
        return die() if path.name == f"rank-{rank:05d}.safetensors" else write(path, tensors)

    with monkeypatch.context() as patch:
        if where.startswith("rename"):
            patch.setattr(Path, "rename", renamed)
        else:
            patch.setattr(checkpoint, where, write if where == "write_tensors" else die)
        patch.setattr(checkpoint.shutil, "rmtree", lambda *args, **kwargs: None)
        ended = as_ranks(WORLD, lambda group: save(group, saved, step))
    done = where == "rename 2" and step == 9  # there is only one to do
    assert done or isinstance(ended[rank], Kill)
    assert set(open_all(saved)) == {9 if done else 6}
    newest = Checkpoints(saved).newest().tensors["t"].read()
    assert torch.equal(newest, TABLE + (9 if done else 6))
    as_ranks(WORLD, lambda group: save(group, saved, step))
    left = sorted(path.name for path in saved.iterdir())
    assert left == (
        ["step-00000003", "step-00000006"] if step == 6 else ["step-00000006", "step-00000009"]
    )


# Training: each rank has a model of its own here, so gradients are not averaged.


def train(world, out, make=Guess, options=OPTIONS, prepare=lambda learner, rank: None, **more):
    """What `Trainer.run` returns or raises in each rank."""
    data = ratings()

    def work(group):
        torch.manual_seed(0)
        learner = LocalLearner(make(), options)
        prepare(learner, group.rank)
        return Trainer(learner, data, options, out=out, group=group, **more).run()

    return as_ranks(world, work)


@pytest.mark.parametrize("looks", [3, 8, 9, 10])
def test_a_signal_to_any_rank_stops_all_at_the_same_place_also_in_an_evaluation(
    tmp_path, monkeypatch, looks
):
    asked = []

    class Stops:
        """In place of signals: one comes to whichever rank is first, at its so many-th look."""

        def __init__(self):
            self.name, self.looks = None, 0
            asked.append(self)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def __call__(self):
            self.looks += 1
            if self is asked[0] and self.looks > looks:
                self.name = "SIGTERM"
            return self.name is not None

    monkeypatch.setattr(trainer, "StopRequests", Stops)
    stages = []
    options = replace(OPTIONS, batch_size=50)  # 16 steps an epoch, 2 batches of validation
    options = replace(options, evaluations_per_epoch=2)
    ended = train(2, tmp_path, options=options, progress=lambda stage, *told: stages.append(stage))
    assert [type(error) for error in ended] == [Stopped, Stopped]
    assert {(error.signal_name, error.step) for error in ended} == {("SIGTERM", min(looks, 8))}
    assert stages.count("training") == min(looks, 8)
    assert stages.count("measuring validation") == max(0, looks - 8)
    assert Checkpoints(tmp_path / "checkpoint").newest().step == min(looks, 8)


def test_a_checkpoint_by_time_is_written_when_the_clock_of_any_rank_says_so(tmp_path, monkeypatch):
    seen = {}

    def since_checkpoint(clock):
        own = seen.setdefault(threading.current_thread(), [])
        own.append(clock)
        is_late = len(own) == 5 and threading.current_thread() is next(iter(seen))
        return 1e9 if is_late else 0.0

    monkeypatch.setattr("mixdim.training.progress_log.Clock.since_checkpoint", since_checkpoint)
    results = train(2, tmp_path, options=replace(OPTIONS, epochs=1))
    assert [result.steps for result in results] == [8, 8]
    assert saved_steps(tmp_path) == [4, 8]


def test_all_ranks_return_the_same_and_the_first_alone_writes(tmp_path):
    told = []
    results = train(2, tmp_path, progress=lambda *words: told.append(threading.current_thread()))
    for name in ("validation", "test", "steps", "slice_feature"):
        assert len({json.dumps(getattr(result, name)) for result in results}) == 1
    assert len(set(told)) == 1
    assert [record["step"] for record in journal(tmp_path, "validation")] == [8, 16, 24]


def test_metrics_of_shares_are_those_of_the_whole_split():
    data, model = ratings(), OwnModel(ratings())
    expected = evaluate(model, data, "test", batch_size=33)
    model.eval()
    found = as_ranks(WORLD, lambda group: evaluate(model, data, "test", batch_size=33, group=group))
    slices = expected.pop("slices")
    for measured in found:
        of_slices = measured.pop("slices")
        assert measured == pytest.approx(expected, rel=1e-6)
        for name, metrics in slices.items():
            assert of_slices[name] == pytest.approx(metrics, rel=1e-6)


@pytest.mark.parametrize("out", [True, False])
def test_a_loss_that_diverges_in_one_rank_is_told_by_all_with_the_last_checkpoint(tmp_path, out):
    def one_turns(learner, rank):
        if rank == 1:
            learner.model = Turning(learner.model, step=7)

    options = replace(OPTIONS, checkpoint_every=2, table_lr=0.5)
    ended = train(2, tmp_path if out else None, options=options, prepare=one_turns)
    assert {type(error) for error in ended} == {DivergedError}
    (line,) = {str(error) for error in ended}
    good = "the last good checkpoint is .*step-00000006" if out else "there is no checkpoint before it"
    assert line.startswith("training diverged after step 6: the loss is nan; ")
    assert re.search(good, line)
    assert "A smaller lr than 0.05, or table_lr than 0.5, may help" in line


def test_weights_that_are_not_finite_in_one_rank_are_told_by_all(tmp_path):
    def one_is_wrong(learner, rank):
        if rank == 1:
            learner.not_finite = lambda: "table_4"

    ended = train(2, tmp_path, prepare=one_is_wrong, options=replace(OPTIONS, checkpoint_every=1))
    assert {str(error).partition(";")[0] for error in ended} == {
        "training diverged after step 0: parameter 'table_4' is not finite"
    }
    assert saved_steps(tmp_path) == []


def test_a_folder_that_holds_a_run_is_refused_by_all(tmp_path):
    train(1, tmp_path)
    ended = train(2, tmp_path)
    assert {str(error) for error in ended} == {
        f"{tmp_path} holds a run already; resume=True continues it"
    }
    assert isinstance(ended[0], FileExistsError)
