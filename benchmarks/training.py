"""What the training benchmarks share: synthetic ids, and a step with its optimizers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer, SparseAdam

from interleaved import Step

Batch = TypeVar("Batch")
LEARNING_RATE = 1e-3
NUM_BATCHES = 8  # taken in turn: in training, the rows of a step are not in the cache already


def zipf_ids(rows: Iterable[int], batch_size: int, rng: np.random.Generator) -> Tensor:
    """Ids whose popularity falls as 1/rank: (batch, features)."""
    columns = [np.exp(rng.random(batch_size) * np.log(n + 1)).astype(np.int64) - 1 for n in rows]
    return torch.from_numpy(np.stack(columns, axis=1))


def training_step(
    forward_backward: Callable[[Batch], None], batches: Sequence[Batch], optimizers: Sequence[Optimizer]
) -> Step:
    """Return a step that trains on the next batch."""
    turn = itertools.cycle(batches)

    def step() -> None:
        forward_backward(next(turn))
        for optimizer in optimizers:
            optimizer.step()
        for (
            optimizer
        ) in optimizers:  # at the end, so that no gradient waits while others have their turn
            optimizer.zero_grad(set_to_none=True)

    return step


def amsgrad(parameters: Iterable[nn.Parameter]) -> Adam:
    """PyTorch's AMSGrad for dense gradients, in its fastest form: fused is not the default."""
    return Adam(parameters, lr=LEARNING_RATE, amsgrad=True, fused=True)


def sparse_adam(model: nn.Module, tables: nn.Module) -> list[Optimizer]:
    """SparseAdam for tables, AMSGrad for all else: PyTorch has no AMSGrad for sparse gradients."""
    sparse = list(tables.parameters())
    sparse_ids = {id(parameter) for parameter in sparse}
    dense = [parameter for parameter in model.parameters() if id(parameter) not in sparse_ids]
    optimizers: list[Optimizer] = [SparseAdam(sparse, lr=LEARNING_RATE)]
    return [*optimizers, amsgrad(dense)] if dense else optimizers
