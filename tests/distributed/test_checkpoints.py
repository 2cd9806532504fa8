"""Checkpoints between world sizes, shardings, and a plain model in one process."""

import shutil

import pytest
import torch
import two_ranks as two
from ranks import needs_torchrec

import mixdim
from mixdim.training import LocalLearner, TrainingOptions
from mixdim.training.checkpoint import CheckpointError, open_checkpoint, write_checkpoint

pytestmark = needs_torchrec
OPTIONS = TrainingOptions("adagrad", lr=0.05, batch_size=66, epochs=1)


def plain_learner():
    model = two.Linear(mixdim.FeatureEmbeddings(two.mixed_plan(), generator=two.generator(9)))
    return LocalLearner(model, OPTIONS)


def weights_of(learner):
    return two.plain_weights(learner.model.embeddings), learner.model.weight.detach().clone()


@pytest.fixture(scope="module")
def moved(ranks, tmp_path_factory):
    """A training on 3 ranks, then on one, on 2 and on none, each in another way of sharding."""
    folder = tmp_path_factory.mktemp("moved")

    def train(world, name, before, batches, *how):
        before = None if before is None else str(folder / before)
        told = (str(folder / name), before, batches, *how)
        return ranks.run(two.__file__, "saved_after", world, *told)[0]

    found = {
        "three": train(3, "three", None, (0, 2), "row_wise", 0),
        "one": train(1, "one", "three", (2, 4), "table_wise", 200),
        "two": train(2, "two", "one", (4, 6), "table_wise", 0),
    }
    for name, batches in (("three", (2, 4)), ("two", (6, 7))):
        learner, stored = plain_learner(), open_checkpoint(folder / name)
        learner.load(stored.tensors, stored.state["optimizer"])
        two.go_on(learner, *batches)
        found[f"plain after {name}"] = weights_of(learner)
    write_checkpoint(folder / "plain", learner.tensors(), {"optimizer": learner.numbers()})
    found["two again"] = train(2, "two again", "plain", (7, 8), "auto", 200)
    return folder, found


def test_a_training_that_moves_between_numbers_of_ranks_goes_on_as_if_it_had_not(moved):
    _, found = moved
    assert [found[name][0] for name in ("three", "one", "two")] == [None, {"step": 2}, {"step": 4}]
    straight, expected = plain_learner(), {}
    for step in range(8):
        two.go_on(straight, step, step + 1)
        expected[step + 1] = weights_of(straight)
    places = {"three": 2, "one": 4, "two": 6, "two again": 8}
    for name, step in places.items():
        for mine, others in zip(found[name][1:], expected[step], strict=True):
            torch.testing.assert_close(mine, others, rtol=1e-5, atol=1e-6)
    for name, step in (("three", 4), ("two", 7)):
        for mine, others in zip(found[f"plain after {name}"], expected[step], strict=True):
            torch.testing.assert_close(mine, others, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["three", "one", "two", "two again"])
def test_a_checkpoint_becomes_a_plain_layer_with_the_same_bits(moved, name):
    folder, found = moved
    layer = mixdim.distributed.to_layer(folder / name, two.mixed_plan())
    assert torch.equal(two.plain_weights(layer), found[name][1])


def test_tensors_are_called_as_those_of_the_plain_model_and_its_optimizer(moved):
    plain = open_checkpoint(moved[0] / "plain")
    for name in ("three", "two"):
        found = open_checkpoint(moved[0] / name)
        assert {n: (t.shape, t.dtype) for n, t in found.tensors.items()} == {
            n: (t.shape, t.dtype) for n, t in plain.tensors.items()
        }


def test_a_checkpoint_of_another_plan_is_refused(moved):
    plan = mixdim.plan({"one": 1}, temperature=0, base_dim=14)
    with pytest.raises(CheckpointError, match=r"of another plan: '.*' has shape .* there and None here"):
        mixdim.distributed.to_layer(moved[0] / "one", plan)


def test_learners_on_ranks_keep_the_contract(ranks, tmp_path):
    ranks.run(two.__file__, "keeps_the_contract", 2, str(tmp_path))


def test_a_save_that_is_killed_between_renames_loses_nothing(ranks, moved, tmp_path):
    path = tmp_path / "checkpoint"
    shutil.copytree(moved[0] / "three", path)
    group = ranks.start(two.__file__, "killed_while_saving", 2, str(path))
    codes = group.wait(30)
    assert codes[0] == -9
    assert codes[1] not in (0, None)
    assert "rank 1 has lost another process of the group" in group.printed(1)
    assert not path.exists()
    after = two.plain_weights(mixdim.distributed.to_layer(path, two.mixed_plan()))
    assert torch.equal(after, moved[1]["three"][1])
    ranks.run(two.__file__, "saved_after", 2, str(path), str(path), (1, 2), "row_wise", 0)
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint"]  # and nothing beside it
    assert open_checkpoint(path).state["state"] == {"step": 2}


def test_a_disk_that_refuses_one_rank_is_named_by_all_and_the_old_one_stays(ranks, moved, tmp_path):
    path = tmp_path / "checkpoint"
    shutil.copytree(moved[0] / "two", path)
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    lines = ranks.run(two.__file__, "refused_by_the_disk", 2, str(path))
    assert lines == [f"cannot write the checkpoint {path}: File too large"] * 2
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint"]
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before
