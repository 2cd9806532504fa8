"""One training step of NCF with bands, against a boolean mask for each band.

As many users and items as in MovieLens 1M, or 27M with `--large`, 8 bands each, MLP 128-128-32,
squared error; synthetic Zipf ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import backward
from torch.optim import Optimizer

import mixdim
from interleaved import Contest, Step, arguments, run
from mixdim.models import NeuralCollaborativeFiltering
from rivals import MaskedBands
from training import LEARNING_RATE, NUM_BATCHES, sparse_adam, training_step, zipf_ids

SMALL, LARGE = {"user": 6040, "item": 3706}, {"user": 280_000, "item": 54_000}
RIVAL = "mask per band, SparseAdam"
Batch = tuple[Tensor, Tensor]  # ids (batch, 2) of users and items, and ratings (batch,)


def make_batches(rows: dict[str, int], batch_size: int) -> list[Batch]:
    rng = np.random.default_rng(0)
    return [
        (
            zipf_ids(rows.values(), batch_size, rng),
            torch.from_numpy(rng.standard_normal(batch_size, dtype=np.float32)),
        )
        for _ in range(NUM_BATCHES)
    ]


def step_of(model: nn.Module, batches: list[Batch], optimizers: Sequence[Optimizer]) -> Step:
    def forward_backward(batch: Batch) -> None:
        ids, ratings = batch
        backward([F.mse_loss(model(SimpleNamespace(ids=ids)), ratings)])

    return training_step(forward_backward, batches, optimizers)


def mixdim_amsgrad(plan: mixdim.Plan, batches: list[Batch]) -> Step:
    users, items = (mixdim.MixedDimEmbedding(plan[name], sparse=True) for name in plan)
    model = NeuralCollaborativeFiltering(users, items)
    optimizer = mixdim.SparseAMSGrad(model.parameters(), lr=LEARNING_RATE)
    return step_of(model, batches, [optimizer])


def masked_sparse_adam(plan: mixdim.Plan, batches: list[Batch]) -> Step:
    users, items = (MaskedBands(plan[name]) for name in plan)
    model = NeuralCollaborativeFiltering(users, items)
    tables = nn.ModuleList([users.tables, items.tables])
    return step_of(model, batches, sparse_adam(model, tables))


def contest(
    rows: dict[str, int], base_dim: int, temperature: float, batch_size: int
) -> Contest[list[Batch]]:
    counts = {name: 1e6 / np.arange(1, n + 1) for name, n in rows.items()}
    plan = mixdim.plan(rows, counts=counts, bands=8, temperature=temperature, base_dim=base_dim)
    contenders = {
        "mixdim, SparseAMSGrad": partial(mixdim_amsgrad, plan),
        RIVAL: partial(masked_sparse_adam, plan),
    }
    title = (
        f"NCF, {rows['user']:,} users and {rows['item']:,} items, base_dim {base_dim}, "
        f"temperature {temperature:g}, batch {batch_size}: {plan.num_parameters:,} parameters"
    )
    return Contest(title, partial(make_batches, rows, batch_size), contenders, RIVAL)


def main() -> None:
    parser = arguments(__doc__, rounds=15)
    parser.add_argument("--base-dims", help="default 64,128,256, or 64 with --quick")
    parser.add_argument("--temperature", type=float, default=0.4)
    parser.add_argument("--batch-size", type=int, default=32768)
    parser.add_argument("--large", action="store_true", help="280,000 users and 54,000 items")
    options = parser.parse_args()
    base_dims = options.base_dims or ("64" if options.quick else "64,128,256")
    rows = LARGE if options.large else SMALL
    run(
        (
            contest(rows, int(dim), options.temperature, options.batch_size)
            for dim in base_dims.split(",")
        ),
        options,
    )


if __name__ == "__main__":
    main()
