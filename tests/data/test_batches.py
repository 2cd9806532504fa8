"""Batches ahead of their use, and the parts that several processes take of each."""

import threading
import time
from itertools import count

import pytest
import torch
from small_folder import write_small_folder

import mixdim.data
from mixdim.data import batches
from mixdim.data.batches import THREAD, prefetch


def threads():
    return [thread for thread in threading.enumerate() if thread.name == THREAD]


@pytest.mark.parametrize("ahead", [1, 3, 100])
def test_items_come_in_their_order(ahead):
    assert list(prefetch(iter(range(50)), ahead)) == list(range(50))
    assert not threads()


def test_no_more_is_made_than_asked_for():
    made, enough = [], threading.Event()

    def making():
        for number in count():
            made.append(number)
            if number == 3:
                enough.set()
            yield number

    items = prefetch(making(), 2)
    assert next(items) == 0
    assert enough.wait(10)
    assert len(made) == 1 + 2 + 1  # taken, waiting, and the one that finds no place
    items.close()


@pytest.mark.parametrize("kind", [OSError, MemoryError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_whatever_the_thread_raises_comes_out_after_what_it_made(kind):
    def failing():
        yield "first"
        raise kind("the disk is gone")

    items = prefetch(failing(), 4)
    assert next(items) == "first"
    with pytest.raises(kind, match="the disk is gone"):
        next(items)
    assert not threads()


def test_nobody_waits_for_a_thread_that_died_without_an_error(monkeypatch):
    """As when there is not even memory to hand the error over."""

    def put(*_, **__):
        raise MemoryError

    monkeypatch.setattr(batches.queue.Queue, "put", put)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    with pytest.raises(RuntimeError, match="the thread that reads data ended without an error"):
        next(prefetch(iter("abc"), 2))


def test_nobody_waits_long_for_a_thread_that_is_busy_when_no_more_is_wanted(monkeypatch):
    monkeypatch.setattr(batches, "FAREWELL", 0.05)
    busy = threading.Event()

    def slow():
        yield "first"
        busy.wait(20)
        yield "second"

    items = prefetch(slow(), 1)
    assert next(items) == "first"
    start = time.monotonic()
    items.close()
    assert time.monotonic() - start < 10
    assert all(thread.daemon for thread in threads())  # so it does not keep the program alive either
    busy.set()


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
