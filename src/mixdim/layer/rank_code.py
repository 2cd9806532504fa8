"""The rank of every id in half a byte: which band it is in, and how many before it are in the same.

Knows nothing about tables. Where bands hold their ids in ascending order, the band of every id says all:
rank = start of the band + number of earlier ids of the same field with the same band. Bands are kept as
bit planes, a word for 64 ids, with the rank that each band has reached at every `CHUNK`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mixdim._util.arguments import whole_number
from mixdim.planning.bands import MOST_BANDS

WORD_BITS, WORDS_BITS = 6, 1
WORD, WORDS = 1 << WORD_BITS, 1 << WORDS_BITS  # ids of a word, and words between two checkpoints
CHUNK = WORD * WORDS

Shape = Sequence[tuple[int, int]]  # rows and bands of each field; of one band, ids are ranks already


class _Fields(NamedTuple):
    """By field: where its ids, words and checkpoints begin, and how its bands are numbered."""

    ids: Tensor  # the first id, which is the first rank too
    bits: Tensor
    words: Tensor
    checkpoints: Tensor
    bands: Tensor


class RankCode(nn.Module):
    """The way from somebody's ids to ranks, field by field: state that is saved, and never trained.

    Made with `RankCode.of` from the band of every id; from a shape alone, it is room to load state into.

    >>> code = RankCode.of([np.array([1, 0, 1, 2, 0])])
    >>> code(torch.tensor([0, 1, 2, 3, 4])), code.nbytes
    (tensor([2, 0, 3, 4, 1]), 44)
    """

    words: Tensor
    checkpoints: Tensor

    def __init__(self, shape: Shape, *, device: torch.device | str | None = None) -> None:
        super().__init__()
        self.shape = tuple(
            (whole_number(rows, "rows of a field"), whole_number(bands, "bands of a field"))
            for rows, bands in shape
        )
        if all(bands == 1 for _, bands in self.shape):
            raise ValueError("shape must have a field of two bands or more: else ids are ranks already")
        for _, bands in self.shape:
            if bands > MOST_BANDS:
                raise ValueError(f"bands of a field must be at most {MOST_BANDS}, got {bands}")
        lengths = [_lengths(rows, bands) for rows, bands in self.shape]
        words, checkpoints = (sum(part) for part in zip(*lengths, strict=True))
        rank_type = _rank_type(self.num_rows)
        self.register_buffer("words", torch.zeros(words, dtype=torch.int64, device=device))
        self.register_buffer("checkpoints", torch.zeros(checkpoints, dtype=rank_type, device=device))
        self._fields: _Fields | None = None

    @classmethod
    def of(cls, bands: Sequence[np.ndarray | int]) -> RankCode:
        """The ranks that follow from the band of every id, field by field.

        The bands of a field are 0 to some number without a gap. Of a field whose ids are ranks already
        it is enough to say how many rows it has.
        """
        shape = [(b, 1) if isinstance(b, int) else (len(b), int(b.max()) + 1) for b in bands]
        code, starts = cls(shape), _Starts()
        for (rows, number), of_ids in zip(code.shape, bands, strict=True):
            words, checkpoints = _lengths(rows, number)
            if not isinstance(of_ids, int) and number > 1:
                planes, ranks = _packed(of_ids, number, first_rank=starts.ids)
                code.words[starts.words : starts.words + words] = torch.from_numpy(planes)
                here = slice(starts.checkpoints, starts.checkpoints + checkpoints)
                code.checkpoints[here] = torch.from_numpy(ranks)
            starts = _Starts(starts.ids + rows, starts.words + words, starts.checkpoints + checkpoints)
        return code

    @property
    def num_rows(self) -> int:
        """Ids of all fields."""
        return sum(rows for rows, _ in self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its state."""
        return self.words.nbytes + self.checkpoints.nbytes

    def forward(self, ids: Tensor) -> Tensor:
        """Turn ids, which must be rows, into ranks: any shape."""
        return self._ranks(ids.reshape(-1)).view(ids.shape)

    def _ranks(self, ids: Tensor) -> Tensor:
        """The same of ids in a row: (N,)."""
        of_ids: Any  # plain numbers where there is one field
        if len(self.shape) == 1:
            of_ids = (0, self._most_bits, 0, 0, self.shape[0][1])
            planes: Any = range(self._most_bits)
        else:
            fields = self._on_device()
            field = torch.searchsorted(fields.ids, ids, right=True) - 1
            of_ids = [numbers[field] for numbers in fields]
            # A field of fewer planes than others compares its last one again, and one of none any word.
            planes = [(of_ids[1] - 1).clamp(0, plane) for plane in range(self._most_bits)]
        start, bits, first_word, first_checkpoint, bands = of_ids
        local = ids - start
        word, place = local >> WORD_BITS, local & (WORD - 1)
        chunk = word >> WORDS_BITS
        at = first_word + word * bits
        own = [self.words.index_select(0, at + plane) >> place & 1 for plane in planes]
        below, in_bytes, band = ~(-1 << place), torch.zeros_like(local), torch.zeros_like(local)
        for number in range(WORDS):
            here = (chunk << WORDS_BITS) + number
            same = torch.where(here < word, -1, torch.where(here == word, below, 0))
            at = first_word + here * bits
            for plane, bit in zip(planes, own, strict=True):
                same = same & ~(self.words.index_select(0, at + plane) ^ -bit)
            in_bytes = in_bytes + _ones_of_bytes(same)
        for plane, bit in enumerate(own):
            used = bit if len(self.shape) == 1 else bit * (bits > plane)
            band = band + (used << plane)
        before = _sum_of_bytes(in_bytes)
        at = first_checkpoint + chunk * bands + band
        if all(number > 1 for _, number in self.shape):
            return self.checkpoints.index_select(0, at) + before
        has_bands = bits > 0
        return torch.where(has_bands, self.checkpoints[at.where(has_bands, 0)] + before, ids)

    def ids(self) -> Tensor:
        """The id of every rank, on the CPU: (rows,)."""
        words, first_id, first_word, parts = self.words.numpy(force=True), 0, 0, []
        for rows, bands in self.shape:
            length, bits = _lengths(rows, bands)[0], _bits(bands)
            band = np.zeros(rows, np.uint8)
            for plane in range(bits):
                of_plane = np.ascontiguousarray(words[first_word + plane : first_word + length : bits])
                band |= np.unpackbits(of_plane.view(np.uint8), count=rows, bitorder="little") << plane
            # Of small whole numbers, this is a sort by counting.
            parts.append(np.argsort(band, kind="stable") + first_id)
            first_id, first_word = first_id + rows, first_word + length
        return torch.from_numpy(np.concatenate(parts))

    def ranks(self) -> Tensor:
        """The rank of every id, beside the words: (rows,)."""
        ids = self.ids().to(self.words.device)
        return torch.empty_like(ids).scatter_(0, ids, torch.arange(len(ids), device=ids.device))

    def extra_repr(self) -> str:
        """What `print(code)` shows."""
        return f"{self.num_rows:,} ids of {len(self.shape)} fields, {self.nbytes:,} bytes"

    @property
    def _most_bits(self) -> int:
        return max(_bits(bands) for _, bands in self.shape)

    def _on_device(self) -> _Fields:
        """What the shape says, beside the words; that of the last device is kept."""
        if self._fields is None or self._fields.ids.device != self.words.device:
            starts, columns = _Starts(), []
            for rows, bands in self.shape:
                words, checkpoints = _lengths(rows, bands)
                first_word = starts.words if bands > 1 else 0
                columns.append((starts.ids, _bits(bands), first_word, starts.checkpoints, bands))
                starts = _Starts(
                    starts.ids + rows, starts.words + words, starts.checkpoints + checkpoints
                )
            numbers = torch.tensor(columns, dtype=torch.int64, device=self.words.device)
            self._fields = _Fields(*numbers.t().contiguous())
        return self._fields


class _Starts(NamedTuple):
    """Where the ids, words and checkpoints of a field begin."""

    ids: int = 0
    words: int = 0
    checkpoints: int = 0


def rank_code_nbytes(rows: int, bands: int, of_rows: int) -> int:
    """Bytes of the ranks of a field, in a code of `of_rows` ids in all.

    >>> rank_code_nbytes(10**6, 8, of_rows=10**6) / 10**6
    0.62504
    """
    words, checkpoints = _lengths(rows, bands)
    return words * 8 + checkpoints * _rank_type(of_rows).itemsize


def _bits(bands: int) -> int:
    return (bands - 1).bit_length()


def _lengths(rows: int, bands: int) -> tuple[int, int]:
    """How many words and checkpoints a field has."""
    chunks = -(-rows // CHUNK) if bands > 1 else 0
    return chunks * WORDS * _bits(bands), chunks * bands


def _rank_type(rows: int) -> torch.dtype:
    return torch.int32 if rows < 2**31 else torch.int64


def _packed(band_of_id: np.ndarray, bands: int, *, first_rank: int) -> tuple[np.ndarray, np.ndarray]:
    """The words of a field, those of one stretch of ids side by side, and its checkpoints."""
    chunks = -(-len(band_of_id) // CHUNK)
    padded = np.zeros(chunks * CHUNK, np.uint8)
    padded[: len(band_of_id)] = band_of_id
    planes = [
        np.packbits(padded >> plane & 1, bitorder="little").view(np.int64)
        for plane in range(_bits(bands))
    ]
    counts = np.stack(
        [(padded == band).reshape(chunks, CHUNK).sum(axis=1) for band in range(bands)], axis=1
    )  # (chunks, bands)
    sizes = np.bincount(band_of_id, minlength=bands)
    starts = first_rank + np.cumsum(sizes) - sizes
    ranks = starts + np.cumsum(counts, axis=0) - counts
    return np.stack(planes, axis=1).ravel(), ranks.ravel()


def _ones_of_bytes(words: Tensor) -> Tensor:
    """How many bits of each byte are set, in that byte: those of pairs, then of fours, added up."""
    words = words - (words >> 1 & 0x5555555555555555)
    words = (words & 0x3333333333333333) + (words >> 2 & 0x3333333333333333)
    return words + (words >> 4) & 0x0F0F0F0F0F0F0F0F


def _sum_of_bytes(words: Tensor) -> Tensor:
    """The sum of the bytes of each word, if it is below 256."""
    words = words + (words >> 8)
    words = words + (words >> 16)
    return words + (words >> 32) & 0xFF
