"""The processes that torchrun started: how one finds the others, and what they tell each other.

Knows nothing about what it is for. Every rank must call these functions in the same order.
"""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from mixdim.training.group import Group

T = TypeVar("T")
TOLD = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")

# TorchRec, and PyTorch's own code for it, warn of what mixdim cannot change. This one is about the
# lookup of tables that every rank has, in the backward pass, which is the user's to call. Its gradients
# are right: tests/distributed compares them with those of the plain layer.
NO_AUTOGRAD_KERNEL = "fbgemm::.*an autograd kernel was not registered"

logging.getLogger("torchrec").setLevel(logging.ERROR)
logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", NO_AUTOGRAD_KERNEL)
warnings.filterwarnings("ignore", "`torch.distributed.*is deprecated", FutureWarning)


class LostRankError(OSError):
    """Another process of the group has ended, or cannot be reached."""


class ProcessGroup(Group):
    """The processes of torch.distributed's default group."""

    @classmethod
    def current(cls, device: torch.device | str = "cpu") -> ProcessGroup:
        """The group that there is."""
        return cls(dist.get_rank(), dist.get_world_size(), torch.device(device))

    def any(self, *flags: bool) -> list[bool]:
        """Whether any rank has it set, of each flag."""
        return any_rank(*flags)

    def sum(self, tensor: Tensor) -> Tensor:
        """Add up the tensors of all ranks."""
        return all_reduce_sum(tensor)

    def gather(self, tensor: Tensor) -> Tensor:
        """Put the tensors of all ranks, which are of one shape, one below the other."""
        return torch.cat(_all_gather(tensor))

    def broadcast(self, value: T) -> T:
        """Return what rank 0 has; anything that JSON can hold."""
        sent = json.dumps(value).encode()
        length = int(broadcast(torch.tensor([len(sent)])))
        padded = torch.tensor(list(sent[:length].ljust(length, b"\0")), dtype=torch.uint8)
        found: T = json.loads(bytes(broadcast(padded).tolist()))
        return found

    def collect(self, value: T) -> list[T]:
        """Return what each rank has; anything that JSON can hold."""
        sent = json.dumps(value).encode()
        lengths = [int(length) for length in _all_gather(torch.tensor([len(sent)]))]
        padded = torch.tensor(list(sent.ljust(max(lengths), b"\0")), dtype=torch.uint8)
        parts = zip(_all_gather(padded), lengths, strict=True)
        return [json.loads(bytes(part.tolist()[:length])) for part, length in parts]

    def barrier(self) -> None:
        """Return when all ranks have called this."""
        dist.barrier()


def any_rank(*flags: bool) -> list[bool]:
    """Whether any rank has it set, of each flag."""
    found = torch.tensor([float(flag) for flag in flags], device=_device())
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return [bool(flag) for flag in found.tolist()]


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """Add up the tensors of all ranks."""
    total = tensor.detach().clone()
    dist.all_reduce(total)
    return total


def broadcast(tensor: Tensor) -> Tensor:
    """Return the tensor of rank 0, which is of the same shape on every rank."""
    sent = tensor.to(_device(), copy=True)
    dist.broadcast(sent, src=0)
    return sent.to(tensor.device)


def concatenate(numbers: Tensor) -> Tensor:
    """Put the numbers of all ranks, of which each may have another count, one after the other."""
    lengths = [int(length) for length in _all_gather(torch.tensor([len(numbers)]))]
    padded = numbers.new_zeros(max(lengths))
    padded[: len(numbers)] = numbers
    parts = zip(_all_gather(padded), lengths, strict=True)
    return torch.cat([part[:length] for part, length in parts]).to(numbers.device)


def _all_gather(tensor: Tensor) -> list[Tensor]:
    """Return the tensors of all ranks, which are of one shape."""
    sent = tensor.detach().to(_device()).contiguous()
    found = [torch.empty_like(sent) for _ in range(dist.get_world_size())]
    dist.all_gather(found, sent)
    return found


def _device() -> torch.device:
    on_gpu = dist.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


@contextmanager
def init(device: str = "cpu") -> Iterator[ProcessGroup]:
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
    with lost_rank_in_one_line():
        dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
        try:
            yield ProcessGroup.current(place)
        finally:
            dist.destroy_process_group()


@contextmanager
def lost_rank_in_one_line() -> Iterator[None]:
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
    text = str(error)
    return isinstance(error, dist.DistError) or any(word in text for word in words) or "gloo" in text


@contextmanager
def torchrec_warnings() -> Iterator[None]:
    """Within it, deprecations inside of torch and torchrec are not shown."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.filterwarnings("ignore", NO_AUTOGRAD_KERNEL)
        warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
        yield
