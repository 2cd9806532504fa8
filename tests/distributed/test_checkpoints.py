"""Checkpoints between world sizes, shardings and the plain layer."""

import json
import shutil

import pytest
import torch
import two_ranks as two
from ranks import needs_torchrec

import mixdim
from mixdim.training.checkpoint import CheckpointError

pytestmark = needs_torchrec


@pytest.fixture(scope="module")
def moved(ranks, tmp_path_factory):
    """A training of 2 ranks, 1, then 2, each in another way of sharding; and one of 2 all along."""
    folder = tmp_path_factory.mktemp("moved")

    def train(world, name, before, batches, *how):
        before = None if before is None else str(folder / before)
        return ranks.run(two.__file__, "saved_after", world, str(folder / name), before, batches, *how)[
            0
        ]

    train(2, "first", None, (0, 2), "table_wise", 0)
    alone = train(1, "alone", "first", (2, 4), "table_wise", 200)
    again = train(2, "again", "alone", (4, 6), "row_wise", 0)
    straight = train(2, "straight", None, (0, 6), "table_wise", 0)
    return folder, alone, again, straight


def test_a_training_that_moves_from_2_ranks_to_1_and_back_goes_on_as_if_it_had_not(moved):
    _, alone, again, straight = moved
    assert (alone[0], again[0], straight[0]) == ({"step": 2}, {"step": 4}, None)
    for mine, others in zip(again[1:], straight[1:], strict=True):
        torch.testing.assert_close(mine, others, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["alone", "again"])
def test_a_checkpoint_becomes_a_plain_layer_with_the_same_bits(moved, name):
    folder, alone, again, _ = moved
    vectors = {"alone": alone, "again": again}[name][1]
    layer = mixdim.distributed.to_layer(folder / name, two.mixed_plan())
    assert torch.equal(two.plain_weights(layer), vectors)


def test_a_checkpoint_of_another_plan_is_refused(moved):
    plan = mixdim.plan({"one": 1}, temperature=0, base_dim=14)
    with pytest.raises(CheckpointError, match=r"another plan: it has 10 blocks there and 1 here"):
        mixdim.distributed.to_layer(moved[0] / "alone", plan)


def test_a_checkpoint_that_is_cut_short_is_refused(moved, tmp_path):
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for path in (moved[0] / "again").iterdir():
        content = path.read_bytes()
        (damaged / path.name).write_bytes(content if path.suffix == ".json" else content[:-1])
    with pytest.raises(CheckpointError, match=r"is damaged: .* is missing or cut short"):
        mixdim.distributed.to_layer(damaged, two.mixed_plan())
    for path in damaged.glob("*.safetensors"):  # of the right length, but no longer the same
        path.write_bytes(b"\1" + bytes(len((moved[0] / "again" / path.name).read_bytes()) - 1))
    with pytest.raises(CheckpointError, match="is damaged: "):
        mixdim.distributed.to_layer(damaged, two.mixed_plan())


@pytest.mark.parametrize("moment", ["before the page", "between renames"])
def test_a_save_that_is_killed_leaves_the_old_one(ranks, moved, tmp_path, moment):
    path = tmp_path / "checkpoint"
    shutil.copytree(moved[0] / "first", path)
    before = two.plain_weights(mixdim.distributed.to_layer(path, two.mixed_plan()))
    group = ranks.start(two.__file__, "killed_while_saving", 2, str(path), moment)
    codes = group.wait(30)
    assert codes[0] == -9
    assert codes[1] not in (0, None)
    assert "rank 1 has lost another process of the group" in group.printed(1)
    assert path.exists() == (moment == "before the page")
    after = two.plain_weights(mixdim.distributed.to_layer(path, two.mixed_plan()))
    assert torch.equal(before, after)
    ranks.run(two.__file__, "saved_after", 2, str(path), str(path), (1, 2), "row_wise", 0)
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint"]  # and nothing beside it
    assert json.loads((path / "state.json").read_text())["body"]["state"]["state"] == {"step": 2}


def test_a_disk_that_refuses_one_rank_is_named_by_all_and_the_old_one_stays(ranks, moved, tmp_path):
    path = tmp_path / "checkpoint"
    shutil.copytree(moved[0] / "first", path)
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    said = ranks.run(two.__file__, "refused_by_the_disk", 2, str(path))
    assert said == [f"cannot write the checkpoint {path}: File too large"] * 2
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint"]
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before
