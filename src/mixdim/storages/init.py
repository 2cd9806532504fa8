"""How weights are drawn at first: each number by its place, so any rows of any block can be drawn alone.

Knows nothing about what they are for. Number i of a tensor is a half of word i // 2 of SplitMix64
(Steele, Lea, Flood 2014): a hash of a counter. The counter starts at a hash of the layer's seed, the
feature, the block and the tensor. Of two tensors with 2^32 numbers each, one in 2^32 pairs has words in
common.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from mixdim._util.lazy import import_later

if TYPE_CHECKING:
    import torch
    from torch import Tensor

import_later(globals(), torch="torch")

Init = Literal["xavier", "he_fan_in", "he_fan_out", "aligned"]
ALIGNED_DEVIATION = 0.1  # of each number of a vector, whatever the width and the size of its block

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LAST_SHIFT = 31
_GOLDEN, _LAST_SHIFT = np.uint64(GOLDEN), np.uint64(LAST_SHIFT)
_ROUNDS = [(np.uint64(shift), np.uint64(factor)) for shift, factor in ROUNDS]
AT_ONCE = 2**15  # numbers: what is being computed stays in the cache
ROWS, PROJECTION = 0, 1  # the tensors of a block


def check_init(init: str) -> None:
    """Say which ways there are, if `init` is not one of them."""
    if init not in get_args(Init):
        raise ValueError(f"init must be one of {', '.join(get_args(Init))}, got {init!r}")


def uniform_bound(init: Init, *, fan_in: int, fan_out: int) -> float:
    """The bound of the uniform distribution: sqrt(6 / (fan_in + fan_out)), or sqrt(6 / fan) for He.

    That of "aligned" does not depend on the shape: the standard deviation is 0.1.

    >>> uniform_bound("xavier", fan_in=2, fan_out=4)
    1.0
    """
    if init == "aligned":
        return math.sqrt(3) * ALIGNED_DEVIATION
    fan = {"xavier": fan_in + fan_out, "he_fan_in": fan_in, "he_fan_out": fan_out}[init]
    return math.sqrt(6 / fan)


def seed_from(generator: torch.Generator | None) -> int:
    """Take the seed of a layer from a generator, or from PyTorch's own: each time another one."""
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(2**63 - 1, (1,), generator=generator, device=device))


@dataclass(frozen=True)
class BlockInit:
    """How the weights of one block are drawn: uniformly, by its shape.

    `seed` is the layer's, `block` the number of the block within its feature.
    """

    init: Init
    seed: int
    feature: int
    block: int

    def rows(self, dim: int, size: int) -> Uniform:
        """The stored rows, of `dim` numbers each, of a block of `size` rows."""
        # torch.nn.init, too, takes an embedding's width as its fan-in and its rows as its fan-out.
        return self._uniform(ROWS, dim, size)

    def projection(self, dim: int, base_dim: int) -> Uniform | Identity:
        """The projection, (dim, base_dim)."""
        if self.init == "aligned":
            return Identity()
        return self._uniform(PROJECTION, dim, base_dim)

    def _uniform(self, tensor: int, fan_in: int, fan_out: int) -> Uniform:
        key = self.seed
        for number in (self.feature, self.block, tensor):
            key = _hash(key) + number
        return Uniform(_hash(key), uniform_bound(self.init, fan_in=fan_in, fan_out=fan_out))


class Identity:
    """The first rows of the identity.

    So vectors of all blocks begin with their first numbers in common; projections that were drawn have
    to turn to each other in training.
    """

    def fill(self, tensor: Tensor) -> None:
        """Write it into a matrix."""
        tensor.zero_().diagonal().fill_(1.0)


@dataclass(frozen=True)
class Uniform:
    """Numbers drawn uniformly within `bound`, in float32: each by its place alone.

    >>> drawn = Uniform(key=1, bound=0.5)
    >>> some, others = torch.empty(4, 3), torch.empty(2, 3)
    >>> drawn.fill(some)
    >>> drawn.fill(others, first=3)
    >>> torch.equal(others, some[1:3])
    True
    >>> torch.equal(drawn.rows(torch.tensor([2, 0]), width=3), some[[2, 0]])
    True
    """

    key: int
    bound: float

    def scaled(self, factor: float) -> Uniform:
        """The same with all numbers multiplied."""
        return replace(self, bound=self.bound * factor)

    def fill(self, tensor: Tensor, first: int = 0) -> None:
        """Write the numbers from place `first` on into a tensor, in its order."""
        if tensor.is_meta or not tensor.numel():
            return
        flat = tensor.view(-1)
        for start, numbers in self._chunks(first, first + len(flat)):
            flat[start - first : start - first + len(numbers)].copy_(torch.from_numpy(numbers))

    def rows(self, rows: Tensor, width: int) -> Tensor:
        """The rows of these numbers in a tensor whose rows have `width` numbers: (n,) -> (n, width)."""
        first = rows.numpy()[:, None] * width
        words = (first // 2 + np.arange(width // 2 + width % 2)).astype(np.uint64)
        words *= _GOLDEN
        numbers = self._numbers(words, np.empty_like(words))
        if width % 2:  # every other row begins with the second half of a word
            numbers = np.where(first % 2, numbers[:, 1:], numbers[:, :-1])
        return torch.from_numpy(numbers)

    def _chunks(self, first: int, end: int) -> Iterator[tuple[int, np.ndarray]]:
        """The numbers of places from `first` to `end`, some at a time, with the place of the first."""
        begin = first - first % 2
        at_once = min(-(-(end - begin) // 2), AT_ONCE // 2)  # words
        counters = np.arange(at_once, dtype=np.uint64) * _GOLDEN
        words, spare = np.empty_like(counters), np.empty_like(counters)
        for start in range(begin, end, 2 * at_once):
            np.add(counters, np.uint64((start // 2 * GOLDEN) & MASK), out=words)
            numbers = self._numbers(words, spare)
            skipped = max(first - start, 0)
            yield start + skipped, numbers[skipped : end - start]

    def _numbers(self, words: np.ndarray, spare: np.ndarray) -> np.ndarray:
        """The numbers of both halves of words, whose numbers times GOLDEN are given: (..., 2 n)."""
        words += np.uint64((self.key + GOLDEN) & MASK)
        numbers = _mix(words, spare).view(np.int32).astype(np.float32)
        numbers *= np.float32(self.bound / 2**31)
        return numbers


def _mix(words: np.ndarray, spare: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64, in place."""
    for shift, factor in _ROUNDS:
        np.right_shift(words, shift, out=spare)
        np.bitwise_xor(words, spare, out=words)
        np.multiply(words, factor, out=words)
    np.right_shift(words, _LAST_SHIFT, out=spare)
    return np.bitwise_xor(words, spare, out=words)


def _hash(number: int) -> int:
    """The first word of SplitMix64 from a seed: one number takes numpy longer."""
    word = (number + GOLDEN) & MASK
    for shift, factor in ROUNDS:
        word = ((word ^ word >> shift) * factor) & MASK
    return word ^ word >> LAST_SHIFT
