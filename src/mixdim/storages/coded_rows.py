"""Rows of their own as codes of a few bits: one step a direction, and perhaps a lift and a mean.

The table of `mixdim.storages.rows.Rows` with fewer than 32 bits, which it does not know.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from mixdim._util.lazy import import_later
from mixdim.storages.codes import LARGEST_STEP, STEPS, RowCode, all_levels, check_finite
from mixdim.storages.fitting import Lost, Metric, RowSource, Sums
from mixdim.storages.float_rows import FloatRows
from mixdim.storages.init import BlockInit
from mixdim.storages.steps import Spread
from mixdim.storages.table import (
    HeldBlock,
    KernelBlock,
    Place,
    Slots,
    StoredBlock,
    Table,
    TensorSpec,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from mixdim.kernels import backend
    from mixdim.kernels import decode as decoding
    from mixdim.serving.graph import Graph

import_later(globals(), torch="torch")
import_later(globals(), backend="mixdim.kernels.backend", decoding="mixdim.kernels.decode")

AT_ONCE = 2**18  # numbers that are drawn and coded together
MOST_COUNTED = 2**18  # rows of a block whose numbers say which step is the best
LIFT = "coded_lift"  # of all coded blocks of a layer


class CodedRows(Table):
    """The codes of all blocks of one storage, one block after the other, their steps and lifts.

    A stored row is the levels of its codes times the steps, and where the block keeps a mean a one at
    the end: the mean is the last row of the lift.
    """

    row_sparse: ClassVar[tuple[str, ...]] = ()

    @property
    def code(self) -> RowCode:
        """How a row is kept."""
        code = self.blocks[0].storage.code
        assert isinstance(code, RowCode)
        return code

    @staticmethod
    def holds(blocks: Sequence[StoredBlock], base_dim: int) -> dict[str, TensorSpec]:
        """Codes, steps, and lifts: parts of tensors that all coded blocks of a layer share."""
        storage, *_, num_bytes = blocks[0].storage, *_first_bytes(blocks)
        held = {
            "codes": TensorSpec((num_bytes,), "uint8", is_trained=False, joined="codes"),
            "steps": TensorSpec((len(blocks), storage.dim), STEPS, is_trained=False, joined="steps"),
        }
        if storage.is_lifted(base_dim):
            shape = (len(blocks), storage.width(base_dim), base_dim)
            held["projection"] = TensorSpec(shape, STEPS, is_trained=False, joined=LIFT)
        return held

    @staticmethod
    def kernel_blocks(blocks: Sequence[StoredBlock]) -> list[KernelBlock]:
        """Where the codes and steps of each begin among those of the group."""
        storage = blocks[0].storage
        return [
            KernelBlock(first, slot * storage.dim, storage.code.bits, storage.mean)
            for slot, first in enumerate(_first_bytes(blocks)[:-1])
        ]

    @classmethod
    def all_slot_numbers(cls, blocks: Sequence[StoredBlock]) -> list[tuple[int, ...]]:
        """The first byte of each block, and its rows."""
        firsts = _first_bytes(blocks)
        return [(first, block.size) for first, block in zip(firsts, blocks, strict=False)]

    def take(self, rows: Tensor, slots: Slots) -> Tensor:
        """Multiply levels by steps, in float32: -> (..., width)."""
        storage, steps = self.blocks[0].storage, self.tensors["steps"]
        table = decoding.CodedTable(
            self.tensors["codes"], steps, self.numbers, all_levels(), self.code.bits, storage.mean
        )
        found = backend.dispatch("decode", backend.DecodeCall(table, rows, slots))
        if found is not None:
            return found
        first = self.of_slots(slots, 0) + rows * self.code.row_bytes
        steps = steps[slots].to(torch.float32)
        steps = steps[:, None] if isinstance(slots, slice) else steps
        values = self.code.levels(self.code.unpack(self.tensors["codes"], first)) * steps
        if not storage.mean:
            return values
        return torch.cat([values, torch.ones_like(values[..., :1])], dim=-1)

    def parts(self, block: StoredBlock) -> dict[str, Tensor]:
        """The codes, the steps and the lift of one block."""
        first = _first_bytes(self.blocks)[block.slot]
        codes = self.tensors["codes"][first : first + block.size * self.code.row_bytes]
        parts = {"codes": codes, "steps": self.tensors["steps"][block.slot]}
        if "projection" in self.tensors:
            parts["projection"] = self.tensors["projection"][block.slot]
        return parts

    def draw(self, block: StoredBlock, init: BlockInit) -> None:
        """Draw the weights of trained rows, and code them."""
        codes = self.tensors["codes"]
        if codes.is_meta:
            return
        trained = FloatRows.alone(block, self.base_dim, torch.float32, codes.device)
        trained.draw(trained.blocks[0], init)
        self.fit(block, _Drawn(trained), None)

    def fit(self, block: StoredBlock, source: RowSource, metric: Metric | None) -> Lost:
        """Code the vectors of a source along their main directions, or at full width as they are."""
        is_turned = "projection" in self.tensors
        coded = _Coordinates.of(Sums.of(source), block, metric, is_turned=is_turned)
        parts, spread = self.parts(block), Spread(block.storage.dim)
        every = -(-block.size // MOST_COUNTED)
        for _, vectors, weights in source.chunks():
            spread.add(coded.of_vectors(vectors[::every] / source.scale), weights[::every])
        steps, sums = spread.steps(self.code.bits), torch.zeros(3, block.storage.dim).double()
        held, first_steps = parts["codes"].view(block.size, -1), steps.to(torch.float32)
        for here, vectors, weights in source.chunks():
            numbers = coded.of_vectors(vectors / source.scale)
            codes = self.code.nearest(numbers, first_steps)
            held[here] = self.code.pack(codes).to(held.device)
            levels = self.code.levels(codes)
            away = numbers - levels * first_steps
            products = torch.stack([away**2, away * levels, levels**2])
            sums += torch.einsum("r,srd->sd", (weights / coded.mass).to(torch.float32), products)
        # Of the levels that were chosen, the step of least squares.
        more = torch.where(sums[2] > 0, sums[1] / sums[2], 0.0)
        unit = coded.scales * source.scale
        stored = _storable((steps + more) * unit)
        parts["steps"].copy_(stored)
        if is_turned:
            parts["projection"][: len(coded.back)].copy_(coded.back)
        if block.storage.mean:
            parts["projection"][-1].copy_(_storable(coded.mean * source.scale))
        if metric is not None and not is_turned:  # what is lost of one column adds to that of another
            return self.lost(block, source, metric)
        more = torch.where(unit > 0, stored / unit - steps, 0.0)  # with what float16 rounds off
        squares = (sums[0] - 2 * more * sums[1] + more**2 * sums[2]).clamp(min=0)
        error = coded.mass * float(squares @ (coded.scales**2 * coded.felt))
        return Lost(coded.lost.error + error, coded.lost.energy)

    def places_in_graph(self, blocks: Sequence[HeldBlock]) -> list[Place]:
        """Blocks are one below the other; a rank outside of its block gives zeros in any row."""
        *firsts, end = accumulate((held.block.size for held in blocks), initial=0)
        return [Place(first, end) for first in firsts]

    def take_in_graph(
        self, graph: Graph, rows: str, blocks: Sequence[HeldBlock], *, blocks_first: bool
    ) -> str:
        """Gather codes, decode them and multiply by steps; by 0 in the row that is no block's."""
        tables = [held.parts["codes"].view(held.block.size, -1) for held in blocks]
        table = torch.cat([*tables, torch.zeros_like(tables[0][:1])])
        is_row = graph.add("Less", rows, graph.constant(len(table) - 1))
        ones = graph.add("Unsqueeze", graph.cast(is_row, np.float32), graph.constant([-1]))
        steps = torch.stack([held.parts["steps"] for held in blocks]).to(torch.float32)
        steps_of = graph.constant(steps[:, None] if blocks_first else steps, np.float32)
        found = self.code.decode_in_graph(graph, table, rows)
        values = graph.add("Mul", found, graph.add("Mul", steps_of, ones))
        return graph.concat([values, ones], axis=-1) if self.blocks[0].storage.mean else values


class _Coordinates(NamedTuple):
    """The numbers of vectors that a block codes, and the way back."""

    mean: Tensor  # (D,), taken away first
    turn: Tensor | None  # (D, dim); None: vectors as they are
    back: Tensor  # (dim, D)
    scales: Tensor  # (dim,): the root of the mean square of each number
    felt: Tensor  # (dim,): what the metric makes of a square
    mass: float  # how much all rows count
    lost: Lost  # without codes

    @classmethod
    def of(
        cls, sums: Sums, block: StoredBlock, metric: Metric | None, *, is_turned: bool
    ) -> _Coordinates:
        mean, mass = torch.zeros_like(sums.first), sums.mass or 1.0
        energy = sums.energy(metric)
        if block.storage.mean:
            mean, sums = sums.first / mass, sums.centered()
        if not is_turned:
            squares, ones = sums.second.diagonal(), torch.ones_like(mean)
            scales = (squares / mass).sqrt()
            return cls(mean, None, ones, scales, ones, mass, Lost(0.0, energy))
        turn, back, dropped = sums.main_directions(metric, block.storage.dim)
        check_finite(back)
        # Rows of the lift have length 1, so that float16 holds them whatever the metric is.
        length = back.norm(dim=1)
        turn, back = turn * length, back / length[:, None]
        squares = ((sums.second @ turn) * turn).sum(0).clamp(min=0)
        scales = (squares / mass).sqrt()
        return cls(mean, turn, back, scales, length**-2, mass, Lost(dropped.error, energy))

    def of_vectors(self, vectors: Tensor) -> Tensor:
        """Numbers whose mean square is 1, in float32."""
        vectors = vectors - self.mean
        numbers = vectors if self.turn is None else vectors @ self.turn
        return torch.where(self.scales > 0, numbers / self.scales, 0.0).to(torch.float32)


class _Drawn(NamedTuple):
    """The vectors of trained rows that were drawn, a chunk at a time: a `RowSource`."""

    table: FloatRows
    scale: float = 1.0

    def chunks(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        block = self.table.blocks[0]
        at_once = max(AT_ONCE // self.table.base_dim, 1)
        for first in range(0, block.size, at_once):
            here = slice(first, min(first + at_once, block.size))
            rows = torch.arange(here.start, here.stop, device=self.table.numbers.device)
            vectors = self.table.forward(rows, 0).cpu().to(torch.float64)
            yield here, vectors, vectors.new_ones(len(vectors))


def _first_bytes(blocks: Sequence[StoredBlock]) -> list[int]:
    """Where the codes of each block begin, and at last where all end."""
    row_bytes = blocks[0].storage.code.row_bytes
    return list(accumulate((block.size * row_bytes for block in blocks), initial=0))


def _storable(numbers: Tensor) -> Tensor:
    """Numbers in float16, if it has them."""
    check_finite(numbers)
    if bool((numbers.abs() > LARGEST_STEP).any()):
        largest = numbers.abs().max().item()
        raise ValueError(f"its steps and its mean must be within {LARGEST_STEP:g}, got {largest:g}")
    return numbers.to(torch.float16)
