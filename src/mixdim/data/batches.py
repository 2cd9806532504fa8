"""The batches of a split: their order, the part of one process, ids made unknown, and a thread ahead.

Knows nothing about files: a data set reads the rows that it is given the numbers of.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np

from mixdim._util.arguments import WrongTypeError, whole_number
from mixdim._util.lazy import import_later
from mixdim.data.folder import FeatureMeta

if TYPE_CHECKING:
    import torch
    from torch import Tensor

import_later(globals(), torch="torch")  # only batches need it

Item = TypeVar("Item")
Part = tuple[int, int]  # which process, of how many

THREAD = "mixdim batches"
PATIENCE = 0.1  # seconds between two looks at whether the other side is still there
FAREWELL = 5.0  # seconds that a thread has to end once nobody wants more of it


class Batch(NamedTuple):
    """Some rows: ids of the single-valued features, dense numbers, targets, and bags by feature.

    A bag is (values, offsets): of row i it holds `values[offsets[i] : offsets[i + 1]]`. In a part of a
    batch, `weight` is 0 for rows that only fill it up, which must not count, and 1 for others.
    """

    ids: Tensor  # int32 (batch, features)
    dense: Tensor  # float32 (batch, dense columns)
    target: Tensor  # float32 (batch,)
    bags: dict[str, tuple[Tensor, Tensor]]
    weight: Tensor | None = None  # float32 (batch,)


@dataclass(frozen=True)
class BatchOrder:
    """Which batches come, in which order, and which of them is next."""

    split: str
    batch_size: int
    shuffle: bool
    seed: int
    epoch: int
    position: int
    unknown_dropout: bool = False
    part: Part | None = None


class RowSource(Protocol):
    """What batches are read from, such as a `mixdim.data.Dataset`."""

    @property
    def splits(self) -> dict[str, tuple[int, int]]:
        """First row of each split, and the row after its last."""

    @property
    def unknown_dropout(self) -> UnknownDropout:
        """Makes ids of training batches unknown."""

    def rows(self, rows: slice | np.ndarray) -> Batch:
        """Read rows by a slice or by their numbers."""


class BatchStream:
    """An iterator over batches that knows its place: `state()` says how to go on after the last one."""

    def __init__(self, dataset: RowSource, order: BatchOrder, *, prefetch: int) -> None:
        self._dataset, self.order, self._prefetch = dataset, order, prefetch
        self._iterator: Iterator[Batch] | None = None

    def __len__(self) -> int:
        """Batches of the whole epoch."""
        start, stop = self._dataset.splits[self.order.split]
        return -(-(stop - start) // self.order.batch_size)

    def state(self) -> dict[str, Any]:
        """The arguments of `Dataset.batches` that continue after the last batch handed out."""
        return vars(self.order).copy()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._iterator is None:
            read = _read(self._dataset, self.order)
            self._iterator = prefetch(read, self._prefetch) if self._prefetch else read
        try:
            batch = next(self._iterator)
        except StopIteration:
            raise
        except BaseException:
            self._iterator = None  # it has ended: the next call reads the same batch anew
            raise
        self.order = replace(self.order, position=self.order.position + 1)
        return batch


def _read(dataset: RowSource, order: BatchOrder) -> Iterator[Batch]:
    """The batches of a split in their order, from its position on."""
    start, stop = dataset.splits[order.split]
    permutation = None
    if order.shuffle:
        generator = np.random.Generator(np.random.Philox(key=[order.seed, order.epoch]))
        permutation = np.arange(start, stop, dtype=np.int32 if stop < 2**31 else np.int64)
        generator.shuffle(permutation)
    for position in range(order.position, -(-(stop - start) // order.batch_size)):
        first = position * order.batch_size
        last = min(first + order.batch_size, stop - start)
        rows: slice | np.ndarray = slice(start + first, start + last)
        if permutation is not None:
            rows = permutation[first:last]
        positions, weight = (
            (None, None) if order.part is None else positions_of(last - first, order.part)
        )
        if positions is not None and not order.unknown_dropout:
            rows = start + first + positions if permutation is None else permutation[first + positions]
        batch = dataset.rows(rows)
        if order.unknown_dropout:
            bags = {name: values.numpy() for name, (values, _) in batch.bags.items()}
            place = {"seed": order.seed, "epoch": order.epoch, "position": position}
            dataset.unknown_dropout.apply(batch.ids.numpy(), bags, **place)
            batch = batch if positions is None else _part_of(batch, positions)
        yield batch if weight is None else batch._replace(weight=torch.from_numpy(weight))


def _part_of(batch: Batch, positions: np.ndarray) -> Batch:
    """Some rows of a batch, by their positions in it."""
    bags = {
        name: take_bags(values.numpy(), offsets.numpy(), positions)
        for name, (values, offsets) in batch.bags.items()
    }
    return Batch(batch.ids[positions], batch.dense[positions], batch.target[positions], bags)


def take_bags(
    values: np.ndarray, offsets: np.ndarray, rows: slice | np.ndarray
) -> tuple[Tensor, Tensor]:
    """The bags of some rows, one after the other, with offsets of their own."""
    numbers = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
    starts, lengths = offsets[numbers], offsets[numbers + 1] - offsets[numbers]
    new_offsets = np.concatenate([[0], np.cumsum(lengths)])
    within = np.arange(new_offsets[-1]) - np.repeat(new_offsets[:-1], lengths)
    taken = values[np.repeat(starts, lengths) + within]
    return torch.from_numpy(np.array(taken)), torch.from_numpy(new_offsets)


def checked_part(part: Any) -> Part | None:
    """The part as two whole numbers, if there is one.

    >>> checked_part([2, 2])
    Traceback (most recent call last):
    ValueError: part must be (rank, world) with rank below world, got (2, 2)
    """
    if part is None:
        return None
    if not isinstance(part, tuple | list) or len(part) != 2:
        raise WrongTypeError(f"part must be (rank, world), such as (0, 2), got {part!r}")
    rank, world = whole_number(part[0], "rank", at_least=0), whole_number(part[1], "world")
    if rank >= world:
        raise ValueError(f"part must be (rank, world) with rank below world, got ({rank}, {world})")
    return rank, world


def positions_of(samples: int, part: Part) -> tuple[np.ndarray, np.ndarray]:
    """The positions in a batch that are a process's share, and the weight of each, as float32.

    All shares are of one size, ceil(samples / world): where there are not enough samples, the last one
    is repeated with a weight of 0.

    >>> [positions_of(5, (rank, 2)) for rank in (0, 1)][1]
    (array([3, 4, 4]), array([1., 1., 0.], dtype=float32))
    """
    rank, world = part
    share = -(-samples // world)
    positions = np.arange(rank * share, (rank + 1) * share)
    return np.minimum(positions, samples - 1), (positions < samples).astype(np.float32)


class UnknownDropout:
    """Makes ids of training batches unknown, so that the row of unknown values learns something.

    An id becomes its feature's unknown id with probability 1 / (1 + its training count), each on its
    own: a value that occurs once is treated as a new one half of the time. Seed, epoch and the batch's
    number alone decide it.
    """

    def __init__(self, features: Sequence[FeatureMeta], counts: Mapping[str, np.ndarray]) -> None:
        """Make it for some features and how often training rows have each of their ids."""
        self._features = {feature.name: feature for feature in features}
        sizes = [feature.rows for feature in features]
        starts = np.concatenate([[0], np.cumsum(sizes[:-1], dtype=np.int64)])
        self._starts = dict(zip(self._features, starts.tolist(), strict=True))
        self._thresholds = np.concatenate([thresholds(counts[name]) for name in self._features])
        single = [feature for feature in features if not feature.bag]
        self._single_starts = np.array([self._starts[f.name] for f in single], dtype=np.int64)
        self._single_unknown = np.array([f.out_of_vocabulary for f in single], dtype=np.int32)

    def apply(
        self, ids: np.ndarray, bags: Mapping[str, np.ndarray], *, seed: int, epoch: int, position: int
    ) -> None:
        """Change ids, (batch, single-valued features), and the values of bags, in their place."""
        draws = _draws(ids.size + sum(map(len, bags.values())), seed, epoch, position)
        self._drop(ids, self._single_starts, self._single_unknown, draws[: ids.size].reshape(ids.shape))
        first = ids.size
        for name, values in bags.items():
            own = draws[first : first + len(values)]
            self._drop(values, self._starts[name], self._features[name].out_of_vocabulary, own)
            first += len(values)

    def _drop(
        self, ids: np.ndarray, starts: np.ndarray | int, unknown: np.ndarray | int, draws: np.ndarray
    ) -> None:
        # An id that is none of its feature's stays in bounds here, and the layer refuses it.
        limits = self._thresholds.take(ids + starts, mode="clip")
        np.copyto(ids, unknown, where=draws <= limits, casting="same_kind")


def thresholds(counts: np.ndarray) -> np.ndarray:
    """The largest of 2^32 equally likely numbers at which an id becomes unknown, as uint32.

    >>> (thresholds(np.array([0, 1, 3])) + 1.0) / 2**32
    array([1.  , 0.5 , 0.25])
    """
    # Rounded up, so that no id is safe: 2^32 / (1 + count) numbers of 0, 1, 2, ...
    return (-(-(2**32) // (1 + counts.astype(np.int64))) - 1).astype(np.uint32)


def _draws(size: int, seed: int, epoch: int, position: int) -> np.ndarray:
    """So many uint32 of a batch. The order of an epoch's rows is drawn where its counter ends in 0."""
    generator = np.random.Philox(key=[seed, epoch], counter=[0, 0, 0, 1 + position])
    return generator.random_raw(-(-size // 2)).view(np.uint32)[:size]


def prefetch(items: Iterator[Item], count: int) -> Iterator[Item]:
    """Yield items while a thread makes up to `count` more; an error of the thread is raised here.

    Neither side waits for ever: not for a thread that died without an error, nor for one that is busy
    when no more items are wanted.
    """
    made: queue.Queue[tuple[bool, Any]] = queue.Queue(maxsize=count)  # whether it is the last, and it
    unwanted = threading.Event()

    def put(is_last: bool, item: Any) -> bool:
        while not unwanted.is_set():
            try:
                made.put((is_last, item), timeout=PATIENCE)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for item in items:
                if not put(False, item):
                    return
            put(True, None)
        except BaseException as error:
            put(True, error)

    thread = threading.Thread(target=work, daemon=True, name=THREAD)
    thread.start()
    try:
        while True:
            is_last, item = _next_of(made, thread)
            if not is_last:
                yield item
            elif item is None:
                return
            else:
                raise item
    finally:
        item = None  # the traceback of an error holds this frame, which would hold the error
        unwanted.set()
        if thread is not threading.current_thread():  # the garbage collector may run this there
            thread.join(FAREWELL)


def _next_of(made: queue.Queue[tuple[bool, Any]], thread: threading.Thread) -> tuple[bool, Any]:
    while True:
        try:
            return made.get(timeout=PATIENCE)
        except queue.Empty:
            if not thread.is_alive() and made.empty():
                raise RuntimeError("the thread that reads data ended without an error") from None
