"""The first weights of tables, drawn where they are held: those that the plain layer would draw.

Knows nothing about ranks. A generator of PyTorch gives one number after the other, however many are
asked for at once. So every rank draws all numbers of all tables in the order of the plain layer, some at
a time, and keeps those of its own rows: no rank ever holds a whole table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from mixdim.layer.layout import LaidBlock
from mixdim.storages.init import Init, draw_projection, uniform_bound

NUMBERS_AT_ONCE = 2**20


class Drawing:
    """The numbers that the plain layer draws from a generator, from where this stands now."""

    def __init__(
        self,
        blocks: Sequence[LaidBlock],
        base_dim: int,
        init: Init,
        generator: torch.Generator | None,
    ) -> None:
        self.blocks, self.base_dim, self.init = blocks, base_dim, init
        self.generator = torch.default_generator if generator is None else generator
        self.state = self.generator.get_state()  # from where tables can be drawn again

    def projections(self) -> Iterator[tuple[LaidBlock, Tensor]]:
        """Each block that has one with its projection; then the generator stands where it would."""
        for block in self.blocks:
            for _ in self._table(block, self.generator):
                pass  # not kept: a rank that needs them draws them again
            if (projection := self._projection(block, self.generator)) is not None:
                yield block, projection

    def tables(self) -> Iterator[tuple[LaidBlock, int, Tensor]]:
        """Each block with a row of it and the stored rows from there on: (rows, dim), some at a time."""
        generator = torch.Generator()
        generator.set_state(self.state)
        for block in self.blocks:
            for first, rows in self._table(block, generator):
                yield block, first, rows
            self._projection(block, generator)

    def _table(self, block: LaidBlock, generator: torch.Generator) -> Iterator[tuple[int, Tensor]]:
        dim, rows = block.storage.width(self.base_dim), block.storage.stored_rows(block.size)
        bound = uniform_bound(self.init, fan_in=dim, fan_out=block.size)
        at_once = max(4, NUMBERS_AT_ONCE // dim // 4 * 4)
        for first in range(0, rows, at_once):
            part = torch.empty(min(at_once, rows - first), dim)
            yield first, part.uniform_(-bound, bound, generator=generator)

    def _projection(self, block: LaidBlock, generator: torch.Generator) -> Tensor | None:
        dim = block.storage.width(self.base_dim)
        if dim == self.base_dim:
            return None
        projection = torch.empty(dim, self.base_dim)
        draw_projection(projection, self.init, generator)
        return projection
