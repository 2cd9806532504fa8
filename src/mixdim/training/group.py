"""The processes that train together: what they tell each other between steps.

Knows nothing about what it is for, nor how processes are connected: `mixdim.distributed` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Group:
    """Which process this is, how many there are, and its device. All of them call the same methods.

    This one stands alone: its methods return what they are given.
    """

    rank: int = 0
    world: int = 1
    device: torch.device = CPU

    @staticmethod
    def alone() -> Group:
        """The group of a process that trains by itself."""
        return ALONE

    @property
    def part(self) -> dict[str, Any]:
        """The option of `batches` for the share of this process; none if it is the only one."""
        return {} if self.world == 1 else {"part": (self.rank, self.world)}

    def any(self, *flags: bool) -> list[bool]:
        """Whether any process has it set, of each flag."""
        return list(flags)

    def sum(self, tensor: Tensor) -> Tensor:
        """Add up the tensors of all processes."""
        return tensor

    def gather(self, tensor: Tensor) -> Tensor:
        """Put the tensors of all processes, which are of one shape, one below the other."""
        return tensor

    def broadcast(self, value: T) -> T:
        """Return what process 0 has; anything that JSON can hold."""
        return value

    def collect(self, value: T) -> list[T]:
        """Return what each process has; anything that JSON can hold."""
        return [value]

    def barrier(self) -> None:
        """Return when all processes have called this."""
        self.collect(None)

    def together(self, work: Callable[[], T], *kinds: type[Exception]) -> T:
        """Do some work in every process; if it raises an error of these kinds in one, all raise it."""
        error: Exception | None = None
        results: list[T] = []
        try:
            results = [work()]
        except kinds as raised:
            error = raised
        lines = self.collect(None if error is None else str(error))
        if error is not None:
            raise error
        for line in lines:
            if line is not None:
                raise kinds[0](line)
        return results[0]

    def first(self, work: Callable[[], T], *kinds: type[Exception]) -> T:
        """Return what some work returns in process 0, which alone does it, or raise what it raises."""
        found = self.together(lambda: [work()] if self.rank == 0 else [], *kinds)
        return self.broadcast(found)[0]


ALONE = Group()
