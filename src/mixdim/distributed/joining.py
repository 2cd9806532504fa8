"""How a process finds the others that torchrun started with it. Knows nothing about what they do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.distributed as dist

TOLD = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


class LostRankError(OSError):
    """Another process of the group has ended, or cannot be reached."""


class Group(NamedTuple):
    """The processes that work together: which one this is, how many there are, and its device."""

    rank: int
    world: int
    device: torch.device


@contextmanager
def joined(device: str = "cpu") -> Iterator[Group]:
    """Be one of the processes that torchrun started: a process group of gloo, or of nccl on "cuda".

    If another of them ends while this one waits for it, that is a `LostRankError`.
    """
    missing = [name for name in TOLD if name not in os.environ]
    if missing:
        raise ValueError(
            f"{missing[0]} is not set: start with torchrun, such as torchrun --nproc-per-node 2 "
            "-m mixdim train --distributed ..."
        )
    place = torch.device(device)
    if place.type == "cuda":
        place = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(place)
    with said_if_lost():
        dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
        try:
            yield Group(dist.get_rank(), dist.get_world_size(), place)
        finally:
            dist.destroy_process_group()


@contextmanager
def said_if_lost() -> Iterator[None]:
    """Say in one line that another process has ended, where PyTorch has a page about a connection."""
    try:
        yield
    except RuntimeError as error:
        if not _is_lost(error):
            raise
        raise LostRankError(
            f"rank {os.environ.get('RANK', '?')} has lost another process of the group, which ended or "
            "cannot be reached"
        ) from None


def _is_lost(error: RuntimeError) -> bool:
    words = (
        "Connection closed by peer",
        "Connection reset by peer",
        "Connection refused",
        "Broken pipe",
    )
    told = str(error)
    return isinstance(error, dist.DistError) or any(word in told for word in words) or "gloo" in told
