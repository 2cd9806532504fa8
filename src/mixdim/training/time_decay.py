"""Weight decay of every row of a table at every step, without touching every row. Knows no optimizer.

An optimizer decays the rows that a gradient names. This does the rest: a table has the sum of
log(1 - rate * decay) over the steps so far, and of each row what that sum was when the row was last up
to date. A row that is behind is multiplied by exp(sum now - sum then): when it is looked up, before
anybody reads it, and all rows in `settle`, before weights are measured or kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mixdim.optim import bring_up_rows

DECAYED_TO, DECAY_SUM = "decayed_to", "decay_sum"  # what is saved of a table that is behind
LEAST_SUM = -16.0  # so that float32 is exact enough for the sum: about 1e-6 of a weight
PIECE = 2**18  # numbers of a table that are brought up to date at once


@dataclass(eq=False)
class DecayedTable:
    """A table and how far its rows are.

    - `group`, `key`: where its optimizer has the learning rate, and the weight decay.
    - `sum`: of log(1 - rate * decay), over the steps since all rows were up to date.
    """

    parameter: nn.Parameter
    group: Mapping[str, Any]
    key: str
    sum: float = 0.0
    decayed_to: Tensor = field(init=False)  # (rows,) float32: the sum when the row was last up to date

    def __post_init__(self) -> None:
        self.decayed_to = torch.zeros(len(self.parameter), device=self.parameter.device)

    @property
    def now(self) -> float:
        """The sum as rows keep it: what is rounded off a row's steps does not add up."""
        return float(np.float32(self.sum))

    @property
    def step(self) -> float:
        """What a step adds to the sum."""
        return math.log1p(-self.group["lr"] * self.group[self.key])

    def bring_up(self, rows: Tensor) -> None:
        """Bring rows up to date, some of which may come twice."""
        # Not seen by autograd: no graph has read these rows, as they would have been up to date.
        bring_up_rows(self.parameter.data, self.decayed_to, rows, self.now)

    def settle(self) -> None:
        """Bring all rows up to date, and begin a new sum."""
        if self.sum:
            size = max(1, PIECE // max(1, self.parameter[:1].numel()))
            for rows in torch.arange(len(self.decayed_to), device=self.decayed_to.device).split(size):
                self.bring_up(rows)
            self.decayed_to.zero_()
        self.sum = 0.0


class TimeDecay:
    """The tables of a model that are decayed by time.

    While a row may be behind, layers tell which rows they are about to read. Tables of other modules
    have no row behind after a step: all of their rows are touched.
    """

    def __init__(self, model: nn.Module, tables: Mapping[str, DecayedTable]) -> None:
        self.tables = dict(tables)
        self._of = {id(table.parameter): table for table in tables.values()}
        self.layers: list[Any] = [
            module
            for module in model.modules()
            if any(id(own) in self._of for own in getattr(module, "row_sparse_tables", ()))
        ]
        told = {id(own) for layer in self.layers for own in layer.row_sparse_tables}
        self._untold = [table for key, table in self._of.items() if key not in told]

    def before_step(self) -> None:
        """Bring up the rows that gradients name: of a batch that this process has not looked up, too."""
        for table in self.tables.values():
            if table.sum and (rows := _rows_of(table)) is not None:
                table.bring_up(rows)

    def after_step(self) -> None:
        """Let the step's decay pass, which the optimizer has applied to the rows that gradients name."""
        for table in self.tables.values():
            table.sum += table.step
            if (rows := _rows_of(table)) is not None:
                table.decayed_to.index_fill_(0, rows, table.now)
        if any(table.sum < LEAST_SUM for table in self.tables.values()):
            self.settle()
        for table in self._untold:
            table.settle()
        self._listen()

    def settle(self) -> None:
        """Bring all rows up to date."""
        for table in self.tables.values():
            table.settle()
        self._listen()

    def state(self) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Tensors and numbers by "parameter/key", of tables that are behind."""
        behind = {name: table for name, table in self.tables.items() if table.sum}
        return (
            {f"{name}/{DECAYED_TO}": table.decayed_to for name, table in behind.items()},
            {f"{name}/{DECAY_SUM}": table.sum for name, table in behind.items()},
        )

    def load_state(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, float]) -> None:
        """Take over what `state` returned."""
        self.check_state(tensors, numbers)
        for name, table in self.tables.items():
            table.sum = numbers.get(f"{name}/{DECAY_SUM}", 0.0)
            table.decayed_to.zero_()
            if table.sum:
                table.decayed_to.copy_(tensors[f"{name}/{DECAYED_TO}"])
        self._listen()

    def check_state(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, float]) -> None:
        """Say what of a state is not of these tables."""
        if tensors.keys() != {place.replace(f"/{DECAY_SUM}", f"/{DECAYED_TO}") for place in numbers}:
            raise ValueError(f"{DECAYED_TO!r} and {DECAY_SUM!r} must be of the same tables")
        for place, rows in tensors.items():
            name = place.rpartition("/")[0]
            if name not in self.tables or rows.shape != self.tables[name].decayed_to.shape:
                raise ValueError(f"{DECAYED_TO!r} of parameter {name!r} is not of a table of this model")

    def _listen(self) -> None:
        behind = any(table.sum for table in self.tables.values())
        for layer in self.layers:
            layer.reader = self._bring_up if behind else None

    def _bring_up(self, parameter: nn.Parameter, rows: Tensor) -> None:
        if table := self._of.get(id(parameter)):
            table.bring_up(rows)


def settle(parameter: nn.Parameter, decayed_to: Tensor, decay_sum: float) -> None:
    """Bring up all rows of a table whose state this is, as a checkpoint has it."""
    table = DecayedTable(parameter, {}, "", decay_sum)
    table.decayed_to.copy_(decayed_to)
    table.settle()


def is_of_decay(place: str) -> bool:
    """Whether a part of an optimizer's state is of the decay by time."""
    return place.rpartition("/")[2] in (DECAYED_TO, DECAY_SUM)


def _rows_of(table: DecayedTable) -> Tensor | None:
    """The rows that the gradient names; all of a dense gradient, none without."""
    gradient = table.parameter.grad
    if gradient is None:
        return None
    return gradient._indices()[0] if gradient.is_sparse else torch.arange(len(gradient))
