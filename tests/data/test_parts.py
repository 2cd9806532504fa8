"""The shares that several processes take of each batch."""

import pytest
import torch
from small_folder import write_small_folder

import mixdim.data


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return mixdim.data.open(write_small_folder(tmp_path_factory.mktemp("parts") / "data", bags=True))


def bag(batch, row):
    values, offsets = batch.bags["tags"]
    return values[offsets[row] : offsets[row + 1]].tolist()


@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_parts_of_a_batch_are_the_batch(dataset, world, dropout, shuffle):
    options = {"batch_size": 23, "shuffle": shuffle, "seed": 5, "unknown_dropout": dropout}
    whole = list(dataset.batches("train", **options))
    parts = [list(dataset.batches("train", **options, part=(rank, world))) for rank in range(world)]
    for batch, *shares in zip(whole, *parts, strict=True):
        assert batch.weight is None
        assert {len(share.target) for share in shares} == {-(-len(batch.target) // world)}
        for name in ("ids", "dense", "target"):
            counted = [getattr(share, name)[share.weight > 0] for share in shares]
            assert torch.equal(torch.cat(counted), getattr(batch, name))
        counted = [
            bag(share, row)
            for share in shares
            for row, weight in enumerate(share.weight.tolist())
            if weight
        ]
        assert counted == [bag(batch, row) for row in range(len(batch.target))]


def test_a_part_goes_on_after_a_stop(dataset):
    stream = dataset.batches("train", batch_size=10, shuffle=True, part=(1, 2))
    next(stream)
    expected = next(dataset.resume(stream.state()))
    assert torch.equal(next(stream).ids, expected.ids)
    assert len(expected.ids) == 5


@pytest.mark.parametrize(
    ("part", "line"),
    [
        ((2, 2), r"part must be \(rank, world\) with rank below world, got \(2, 2\)"),
        ((-1, 2), "rank must be"),
        ((0, 0), "world must be"),
        (1, r"part must be \(rank, world\), such as \(0, 2\), got 1"),
    ],
)
def test_a_part_that_cannot_be_is_refused(dataset, part, line):
    with pytest.raises(ValueError, match=line):
        dataset.batches("train", batch_size=10, part=part)
