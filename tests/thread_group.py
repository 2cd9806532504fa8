"""Ranks as threads of the test's process: a group in which tensors and words go through memory."""

import json
import threading

import torch

from mixdim.training import Group


class Meeting:
    """Where the threads of a group meet; when one of them fails, the others end too."""

    def __init__(self, world):
        self.barrier, self.slots = threading.Barrier(world, timeout=30), [None] * world

    def exchange(self, rank, value):
        self.slots[rank] = value
        self.barrier.wait()
        found = list(self.slots)
        self.barrier.wait()
        return found


class ThreadGroup(Group):
    """One of several threads that act as ranks."""

    def __init__(self, meeting, rank):
        super().__init__(rank, len(meeting.slots))
        object.__setattr__(self, "meeting", meeting)

    def any(self, *flags):
        return [any(of_all) for of_all in zip(*self.collect(list(flags)), strict=True)]

    def sum(self, tensor):
        return torch.stack(self.meeting.exchange(self.rank, tensor)).sum(0)

    def gather(self, tensor):
        return torch.cat(self.meeting.exchange(self.rank, tensor))

    def broadcast(self, value):
        return self.collect(value)[0]

    def collect(self, value):
        return [json.loads(text) for text in self.meeting.exchange(self.rank, json.dumps(value))]


def as_ranks(world, work):
    """What `work(group)` returns, or the error that it raises, in each of so many ranks."""
    meeting, found = Meeting(world), [None] * world

    def run(rank):
        try:
            found[rank] = work(ThreadGroup(meeting, rank))
        except BaseException as error:
            found[rank] = error
            if not isinstance(error, Exception):
                meeting.barrier.abort()  # a kill: the others are left alone

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
