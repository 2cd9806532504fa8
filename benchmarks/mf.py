"""One training step of matrix factorisation with bands, against a boolean mask for each band.

As many users and items as in MovieLens 27M, 8 bands each, squared error; synthetic Zipf ids.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import backward

import mixdim
from interleaved import Contest, Step, arguments, run
from rivals import MaskedBands
from training import LEARNING_RATE, NUM_BATCHES, sparse_adam, training_step, zipf_ids

ROWS = {"user": 280_000, "item": 54_000}
RIVAL = "mask per band, SparseAdam"


class Batch(NamedTuple):
    """Ids of users and of items, and ratings: (batch,) each."""

    users: Tensor
    items: Tensor
    ratings: Tensor


def make_batches(batch_size: int) -> list[Batch]:
    rng = np.random.default_rng(0)
    batches = []
    for _ in range(NUM_BATCHES):
        users, items = zipf_ids(ROWS.values(), batch_size, rng).t().contiguous()
        ratings = rng.standard_normal(batch_size, dtype=np.float32)
        batches.append(Batch(users, items, torch.from_numpy(ratings)))
    return batches


def mixdim_amsgrad(plan: mixdim.Plan, batches: list[Batch]) -> Step:
    users = mixdim.MixedDimEmbedding(plan["user"], sparse=True)
    items = mixdim.MixedDimEmbedding(plan["item"], sparse=True)

    def forward_backward(batch: Batch) -> None:
        scores = mixdim.dot_scores(users, batch.users, items, batch.items)
        backward([F.mse_loss(scores, batch.ratings)])

    optimizer = mixdim.SparseAMSGrad([*users.parameters(), *items.parameters()], lr=LEARNING_RATE)
    return training_step(forward_backward, batches, [optimizer])


def masked_sparse_adam(plan: mixdim.Plan, batches: list[Batch]) -> Step:
    users, items = MaskedBands(plan["user"]), MaskedBands(plan["item"])

    def forward_backward(batch: Batch) -> None:
        scores = (users(batch.users) * items(batch.items)).sum(dim=1)
        backward([F.mse_loss(scores, batch.ratings)])

    both = nn.ModuleList([users, items])
    optimizers = sparse_adam(both, nn.ModuleList([users.tables, items.tables]))
    return training_step(forward_backward, batches, optimizers)


def contest(base_dim: int, temperature: float, batch_size: int) -> Contest[list[Batch]]:
    counts = {name: 1e6 / np.arange(1, rows + 1) for name, rows in ROWS.items()}
    plan = mixdim.plan(ROWS, counts=counts, bands=8, temperature=temperature, base_dim=base_dim)
    contenders = {
        "mixdim, SparseAMSGrad": partial(mixdim_amsgrad, plan),
        RIVAL: partial(masked_sparse_adam, plan),
    }
    title = (
        f"MF, base_dim {base_dim}, temperature {temperature:g}, batch {batch_size}: "
        f"{plan.num_parameters:,} parameters, {len(plan.blocks)} bands"
    )
    return Contest(title, partial(make_batches, batch_size), contenders, RIVAL)


def main() -> None:
    parser = arguments(__doc__, rounds=15)
    parser.add_argument("--base-dims", help="default 64,128, or 64 with --quick")
    parser.add_argument("--temperature", type=float, default=0.3)
    parser.add_argument("--batch-size", type=int, default=32768)
    options = parser.parse_args()
    base_dims = options.base_dims or ("64" if options.quick else "64,128")
    run(
        (contest(int(dim), options.temperature, options.batch_size) for dim in base_dims.split(",")),
        options,
    )


if __name__ == "__main__":
    main()
