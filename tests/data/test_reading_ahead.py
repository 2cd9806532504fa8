import threading
import time
from itertools import count

import pytest

from mixdim.data import reading_ahead as module
from mixdim.data.reading_ahead import THREAD, read_ahead


def threads():
    return [thread for thread in threading.enumerate() if thread.name == THREAD]


@pytest.mark.parametrize("ahead", [1, 3, 100])
def test_things_come_in_their_order(ahead):
    assert list(read_ahead(iter(range(50)), ahead)) == list(range(50))
    assert not threads()


def test_no_more_is_made_than_asked_for():
    made = []

    def making():
        for number in count():
            made.append(number)
            yield number

    things = read_ahead(making(), 2)
    assert next(things) == 0
    time.sleep(0.05)
    assert len(made) <= 1 + 2 + 1  # taken, waiting, and the one that finds no place
    things.close()


@pytest.mark.parametrize("kind", [OSError, MemoryError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_whatever_the_thread_raises_comes_out_after_what_it_made(kind):
    def failing():
        yield "first"
        raise kind("the disk is gone")

    things = read_ahead(failing(), 4)
    assert next(things) == "first"
    with pytest.raises(kind, match="the disk is gone"):
        next(things)
    assert not threads()


def test_nobody_waits_for_a_thread_that_died_without_a_word(monkeypatch):
    """As when there is not even memory to hand the error over."""

    def put(*_, **__):
        raise MemoryError

    monkeypatch.setattr(module.queue.Queue, "put", put)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    with pytest.raises(RuntimeError, match="the thread that reads data ended without a word"):
        next(read_ahead(iter("abc"), 2))


def test_nobody_waits_long_for_a_thread_that_is_busy_when_no_more_is_wanted(monkeypatch):
    monkeypatch.setattr(module, "FAREWELL", 0.05)
    busy = threading.Event()

    def slow():
        yield "first"
        busy.wait(20)
        yield "second"

    things = read_ahead(slow(), 1)
    assert next(things) == "first"
    start = time.monotonic()
    things.close()
    assert time.monotonic() - start < 10
    assert all(thread.daemon for thread in threads())  # so it does not keep the program alive either
    busy.set()
