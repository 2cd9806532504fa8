import threading

import numpy as np
import pytest
import torch
from small_folder import write_small_folder

import mixdim
import mixdim.data
from mixdim.data.table import prepare_table


@pytest.fixture
def dataset(tmp_path):
    return mixdim.data.open(write_small_folder(tmp_path / "data", bags=True))


def everything(stream):
    batches = list(stream)
    return [
        torch.cat([getattr(batch, part) for batch in batches]) for part in ("ids", "dense", "target")
    ]


def test_it_tells_what_it_holds(dataset):
    assert dataset.feature_names == ["user", "item", "tags"]
    assert dataset.cardinalities == {"user": 9, "item": 5, "tags": 6}
    assert (dataset.num_dense, dataset.task) == (2, "binary")
    ids = np.load(dataset.path / "ids.npy")
    assert dataset.counts["user"].tolist() == np.bincount(ids[:70, 0], minlength=9).tolist()
    assert "3 features, train 70, validation 15, test 15 rows" in repr(dataset)


@pytest.mark.parametrize("prefetch", [0, 1, 4])
@pytest.mark.parametrize("batch_size", [1, 16, 70, 1000])
def test_batches_in_order_are_the_rows_of_the_split(dataset, batch_size, prefetch):
    stream = dataset.batches("train", batch_size=batch_size, prefetch=prefetch)
    assert len(stream) == -(-70 // batch_size)
    ids, dense, target = everything(stream)
    for found, name in ((ids, "ids"), (dense, "dense"), (target, "target")):
        assert np.array_equal(found.numpy(), np.load(dataset.path / f"{name}.npy")[:70])
    assert (ids.dtype, dense.dtype, target.dtype) == (torch.int32, torch.float32, torch.float32)


def test_other_splits_have_their_own_rows(dataset):
    target = everything(dataset.batches("test", batch_size=4))[2]
    assert np.array_equal(target.numpy(), np.load(dataset.path / "target.npy")[85:])


def test_a_shuffled_epoch_has_every_row_once_in_an_order_of_its_own(dataset):
    dense = np.load(dataset.path / "dense.npy")[:70]
    orders = []
    for seed, epoch in ((0, 0), (0, 1), (1, 0), (0, 0)):
        stream = dataset.batches("train", batch_size=16, shuffle=True, seed=seed, epoch=epoch)
        found = everything(stream)[1].numpy()
        orders.append([int(np.flatnonzero((dense == row).all(1))[0]) for row in found])
    assert all(sorted(order) == list(range(70)) for order in orders)
    assert orders[0] == orders[3]
    assert orders[0] != orders[1] != orders[2] != orders[0]
    assert orders[0] != sorted(orders[0])


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_stream_resumes_exactly_where_it_was(dataset, shuffle):
    stream = dataset.batches("train", batch_size=8, shuffle=shuffle, seed=3, epoch=2)
    first = [next(stream) for _ in range(4)]
    rest = everything(dataset.resume(stream.state()))
    whole = everything(dataset.batches("train", batch_size=8, shuffle=shuffle, seed=3, epoch=2))
    assert stream.state()["position"] == 4
    for part, (tail, full) in enumerate(zip(rest, whole, strict=True)):
        assert torch.equal(torch.cat([*(batch[part] for batch in first), tail]), full)


def test_bags_come_with_offsets_of_their_own(dataset):
    values = np.load(dataset.path / "bags" / "tags.values.npy")
    offsets = np.load(dataset.path / "bags" / "tags.offsets.npy")
    dense = np.load(dataset.path / "dense.npy")
    for batch in dataset.batches("train", batch_size=16, shuffle=True):
        taken, own = batch.bags["tags"]
        for n, numbers in enumerate(batch.dense.numpy()):
            row = int(np.flatnonzero((dense == numbers).all(1))[0])
            assert (
                taken[own[n] : own[n + 1]].tolist() == values[offsets[row] : offsets[row + 1]].tolist()
            )


def test_a_table_of_nothing_but_empty_bags_opens(tmp_path):
    raw = tmp_path / "bags.csv"
    raw.write_text("y,tags\n" + "1,\n0,\n" * 20)
    prepare_table([raw], tmp_path / "bags", target="y", categorical=[], bags={"tags": "|"})
    dataset = mixdim.data.open(tmp_path / "bags")
    (batch,) = dataset.batches("train", batch_size=100)
    assert batch.ids.shape == (32, 0)
    assert len(batch.bags["tags"][0]) == 0


def test_a_plan_comes_directly_from_a_dataset(dataset):
    plan = mixdim.plan(dataset, temperature=0.3, base_dim=8, bands={"user": 3})
    assert {feature.name: feature.rows for feature in plan.features} == dataset.cardinalities
    assert len(plan.features[0].blocks) == 3
    assert plan["tags"].blocks[0].row_prob == pytest.approx(dataset.ids_per_sample["tags"] / 6)
    layer = mixdim.FeatureEmbeddings(plan)
    assert layer.num_parameters == plan.num_parameters


def test_a_stream_that_is_dropped_leaves_no_thread(dataset):
    stream = dataset.batches("train", batch_size=1)
    next(stream)
    assert [thread for thread in threading.enumerate() if thread.name == "mixdim batches"]
    del stream
    assert not [thread for thread in threading.enumerate() if thread.name == "mixdim batches"]


def test_an_error_while_reading_ahead_comes_out(dataset, monkeypatch):
    def broken(_):
        raise OSError("the disk is gone")

    monkeypatch.setattr(dataset, "rows", broken)
    with pytest.raises(OSError, match="the disk is gone"):
        next(dataset.batches("train", batch_size=4))


@pytest.mark.parametrize("prefetch", [0, 4])
def test_a_stream_that_failed_goes_on_with_the_same_batch(dataset, monkeypatch, prefetch):
    stream = dataset.batches("train", batch_size=16, prefetch=prefetch)
    with monkeypatch.context() as patch:
        patch.setattr(dataset, "rows", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            next(stream)
    assert np.array_equal(everything(stream)[0].numpy(), np.load(dataset.path / "ids.npy")[:70])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "training"}, "split must be one of train, validation, test, got 'training'"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"position": -1}, "position must be at least 0"),
    ],
)
def test_bad_arguments_are_named(dataset, arguments, message):
    with pytest.raises(ValueError, match=message):
        dataset.batches(**{"split": "train", "batch_size": 4, **arguments})
