"""Tensors of which each process may hold some rows: what they are, and how a file stores them.

Knows nothing about models or runs. A file is safetensors, and is written without a copy of its tensors.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from safetensors import safe_open
from torch import Tensor

from mixdim.training.packed_rows import PackedRows

ROWS_AT_ONCE = 2**18
DTYPES = {
    **{torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"},
    **{torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8"},
    **{torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8"},
    **{torch.bool: "BOOL", torch.complex64: "C64"},
    **{torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2"},
}


class Shard(NamedTuple):
    """Rows of a tensor of some shape, from `first_row` on.

    With `packed`, they are a block of `packed.size` rows from `first_row` on, and `tensor` holds the
    stored rows from `first_stored` on of the table that the block is packed into.
    """

    tensor: Tensor
    shape: tuple[int, ...]
    first_row: int = 0
    packed: PackedRows | None = None
    first_stored: int = 0


Held: TypeAlias = Tensor | Sequence[Shard]  # a whole tensor, or what one process has of it


def shards_of(held: Held) -> Sequence[Shard]:
    """A whole tensor is one shard."""
    return [Shard(held, tuple(held.shape))] if isinstance(held, Tensor) else held


@dataclass(frozen=True)
class StoredShard:
    """A shard that can be read; `read(first, last)` returns some of its own rows, or all."""

    read: Callable[..., Tensor]
    rows: int
    first_row: int = 0
    packed: PackedRows | None = None
    first_stored: int = 0


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """A tensor in files or in memory, of which a process reads what it needs."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    shards: Sequence[StoredShard]

    @property
    def is_packed(self) -> bool:
        """Whether rows must be brought into their order."""
        return any(shard.packed is not None for shard in self.shards)

    def read(self) -> Tensor:
        """Read the whole tensor."""
        if len(self.shards) == 1 and not self.is_packed:
            return self.shards[0].read()
        whole = torch.empty(self.shape, dtype=self.dtype)
        self.fill(Shard(whole, self.shape))
        return whole

    @torch.no_grad()
    def fill(self, target: Shard) -> None:
        """Copy those rows into a shard, in place, that it is meant to hold."""
        if target.tensor.dim() and not len(target.tensor):
            return
        for stored in self.shards:
            if target.packed is not None and stored.packed is not None:
                if (target.packed, target.first_row) == (stored.packed, stored.first_row):
                    _copy_overlap(stored, stored.first_stored, target, target.first_stored)
            elif target.packed is not None:
                _pack(stored, target, target.packed)
            elif stored.packed is not None:
                _unpack(stored, target, stored.packed)
            elif not self.shape:
                target.tensor.copy_(stored.read())
            else:
                _copy_overlap(stored, stored.first_row, target, target.first_row)

    def has_block(self, target: Shard) -> bool:
        """Whether a packed shard could be filled: no block may begin or end elsewhere."""
        blocks = {(shard.first_row, shard.packed) for shard in self.shards if shard.packed is not None}
        return not blocks or target.packed is None or (target.first_row, target.packed) in blocks


def in_memory(held: Held) -> StoredTensor:
    """A copy of what this process has of a tensor, to go back to."""
    shards = shards_of(held)
    kept = [StoredShard(_reader(s.tensor.detach().clone()), _rows(s.tensor), *s[2:]) for s in shards]
    shape, dtype = (shards[0].shape, shards[0].tensor.dtype) if shards else ((), torch.float32)
    return StoredTensor(shape, dtype, kept)


def _reader(tensor: Tensor) -> Callable[..., Tensor]:
    def read(first: int | None = None, last: int | None = None) -> Tensor:
        return tensor if first is None else tensor[first:last]

    return read


def _rows(tensor: Tensor) -> int:
    return len(tensor) if tensor.dim() else 1


def _copy_overlap(stored: StoredShard, stored_first: int, target: Shard, target_first: int) -> None:
    """Copy the rows that both have, where rows are numbered alike."""
    first = max(stored_first, target_first)
    last = min(stored_first + stored.rows, target_first + len(target.tensor))
    if first < last:
        found = stored.read(first - stored_first, last - stored_first)
        target.tensor[first - target_first : last - target_first].copy_(found)


def _unpack(stored: StoredShard, target: Shard, packed: PackedRows) -> None:
    """Read a packed block, some stored rows at a time, into a part of the tensor in its own order."""
    first = target.first_row - stored.first_row  # of the target, as a row of the block
    if first >= packed.size or first + len(target.tensor) <= 0:
        return
    block = target.tensor[max(0, -first) : packed.size - first]
    for start in range(0, stored.rows, ROWS_AT_ONCE):
        some = stored.read(start, min(start + ROWS_AT_ONCE, stored.rows))
        packed.take(some, stored.first_stored + start, block, max(0, first))


def _pack(stored: StoredShard, target: Shard, packed: PackedRows) -> None:
    """Read rows in their own order, some at a time, into the part of a packed block that is here."""
    begin = max(stored.first_row, target.first_row)
    end = min(stored.first_row + stored.rows, target.first_row + packed.size)
    assert (begin - target.first_row) % packed.fold == 0, "what is not packed is stored whole"
    for start in range(begin, end, ROWS_AT_ONCE):
        last = min(start + ROWS_AT_ONCE, end)
        values = stored.read(start - stored.first_row, last - stored.first_row)
        packed.put(start - target.first_row, values, target.tensor, target.first_stored)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write a safetensors file, one tensor after the other; returns its checksum.

    Unlike the library's own writer, this copies no tensor that is contiguous and on the CPU, takes
    tensors that share memory, and leaves permissions to the umask.
    """
    header: dict[str, Any] = {}
    end = 0
    # As the library does: wide types first, so that each tensor is aligned.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    for name in names:
        tensor = tensors[name]
        if tensor.dtype not in DTYPES:
            raise TypeError(f"{name!r} is of {tensor.dtype}, which no checkpoint can hold")
        start, end = end, end + prod(tensor.shape) * tensor.element_size()
        shape = list(tensor.shape)
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.blake2b(digest_size=16)
    with path.open("wb") as file:
        for part in (len(text).to_bytes(8, "little"), text):
            digest.update(part)
            file.write(part)
        for name in names:
            tensor = tensors[name].detach().to("cpu").contiguous()
            content: Any = tensor.reshape(-1).view(torch.uint8).numpy()
            digest.update(content)
            file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class TensorFile:
    """A safetensors file, of which tensors are read when they are needed, or some of their rows."""

    path: Path

    @cached_property
    def _file(self) -> Any:
        return safe_open(self.path, framework="pt")

    def shard(self, name: str, **place: Any) -> StoredShard:
        """A tensor of the file, and its place in a larger one."""

        def read(first: int | None = None, last: int | None = None) -> Tensor:
            if first is None:
                return self._file.get_tensor(name)
            return self._file.get_slice(name)[first:last]

        shape = self._file.get_slice(name).get_shape()
        return StoredShard(read, shape[0] if shape else 1, **place)
