"""One training step of a whole DLRM on the Criteo shape: MLPs, embeddings, dot interaction, loss.

13 numbers and 26 features with their real cardinalities; synthetic data.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import backward
from torch.optim import Optimizer

import mixdim
from interleaved import Contest, Step, arguments, run
from mixdim.lab.synthetic.planted import CRITEO_KAGGLE_ROWS
from mixdim.models.mlp import Layers
from rivals import FbgemmTables, LoopOverFeatures, bmm_interaction, import_fbgemm
from training import LEARNING_RATE, NUM_BATCHES, amsgrad, sparse_adam, training_step, zipf_ids

RIVAL = "loop, bmm, SparseAdam"
NUM_DENSE = 13
MLPS = {"usual": ((512, 256, 64), (512, 256)), "small": ((128, 64), (128, 64))}  # hidden layers
Hidden = tuple[tuple[int, ...], tuple[int, ...]]


class Batch(NamedTuple):
    """Numbers (batch, 13), ids (batch, 26) and whether there was a click: (batch,)."""

    numbers: Tensor
    ids: Tensor
    clicks: Tensor


class Mlps(nn.Module):
    """The two MLPs of DLRM, with hidden layers of the given widths."""

    def __init__(self, base_dim: int, hidden: Hidden) -> None:
        super().__init__()
        bottom, top = hidden
        slots = 1 + len(CRITEO_KAGGLE_ROWS)
        self.interaction_dim = base_dim + slots * (slots - 1) // 2
        self.bottom = nn.Sequential(*mlp(NUM_DENSE, *bottom, base_dim))
        self.top = nn.Sequential(*mlp(self.interaction_dim, *top, 1)[:-1])  # logits: no ReLU

    def use_kernels(self) -> None:
        """Let the same layers run as those of `mixdim.models.mlp`."""
        self.bottom, self.top = Layers(*self.bottom), Layers(*self.top)


class Dlrm(nn.Module):
    """DLRM with the given embeddings, and the interaction of a dense vector with ids through them."""

    def __init__(
        self, embeddings: nn.Module, interaction: Callable[[Tensor, Tensor], Tensor], mlps: Mlps
    ) -> None:
        super().__init__()
        self.embeddings, self.interaction, self.mlps = embeddings, interaction, mlps

    def forward(self, batch: Batch) -> Tensor:
        """Return the logits: (batch,)."""
        return self.mlps.top(self.interaction(self.mlps.bottom(batch.numbers), batch.ids)).squeeze(1)


def mlp(*widths: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return layers


def make_batches(batch_size: int) -> list[Batch]:
    rng = np.random.default_rng(0)
    return [
        Batch(
            torch.from_numpy(rng.standard_normal((batch_size, NUM_DENSE), dtype=np.float32)),
            zipf_ids(CRITEO_KAGGLE_ROWS.values(), batch_size, rng),
            torch.from_numpy(rng.integers(2, size=batch_size).astype(np.float32)),
        )
        for _ in range(NUM_BATCHES)
    ]


def model_step(model: Dlrm, optimizers: list[Optimizer], batches: list[Batch]) -> Step:
    def forward_backward(batch: Batch) -> None:
        backward([F.binary_cross_entropy_with_logits(model(batch), batch.clicks)])

    return training_step(forward_backward, batches, optimizers)


def mixdim_amsgrad(
    plan: mixdim.Plan, hidden: Hidden, batches: list[Batch], *, own_mlps: bool = False
) -> Step:
    layer = mixdim.FeatureEmbeddings(plan, sparse=True)
    mlps = Mlps(plan.base_dim, hidden)
    if own_mlps:
        mlps.use_kernels()
    model = Dlrm(layer, layer.interact, mlps)
    return model_step(model, [mixdim.SparseAMSGrad(model.parameters(), lr=LEARNING_RATE)], batches)


def loop_sparse_adam(plan: mixdim.Plan, hidden: Hidden, batches: list[Batch]) -> Step:
    layer, mlps = LoopOverFeatures(plan), Mlps(plan.base_dim, hidden)
    model = Dlrm(layer, lambda dense, ids: bmm_interaction(dense, layer(ids)), mlps)
    return model_step(model, sparse_adam(model, layer.tables), batches)


def fbgemm_adagrad(plan: mixdim.Plan, hidden: Hidden, batches: list[Batch]) -> Step:
    layer, mlps = FbgemmTables(plan, learning_rate=LEARNING_RATE), Mlps(plan.base_dim, hidden)
    model = Dlrm(layer, lambda dense, ids: bmm_interaction(dense, layer(ids)), mlps)
    return model_step(model, [amsgrad(model.parameters())], batches)


def mlps_alone(base_dim: int, hidden: Hidden, batches: list[Batch], *, own_mlps: bool = False) -> Step:
    """Train the two MLPs, with nothing between them: all that a faster layer cannot save."""
    mlps = Mlps(base_dim, hidden)
    if own_mlps:
        mlps.use_kernels()
    batch_size = len(batches[0].ids)
    pull = torch.randn(batch_size, base_dim)
    interactions = torch.randn(batch_size, mlps.interaction_dim, requires_grad=True)

    def forward_backward(batch: Batch) -> None:
        interactions.grad = None
        dense = mlps.bottom(batch.numbers)
        logits = mlps.top(interactions).squeeze(1)
        loss = F.binary_cross_entropy_with_logits(logits, batch.clicks)
        backward([loss, dense], [None, pull])

    return training_step(forward_backward, batches, [amsgrad(mlps.parameters())])


def main() -> None:
    parser = arguments(__doc__, rounds=15)
    parser.add_argument("--temperature", type=float, default=0.3)
    parser.add_argument("--base-dim", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument(
        "--mlps",
        choices=MLPS,
        default="usual",
        help="hidden layers 512-256-64 and 512-256, or 128-64 each",
    )
    parser.add_argument(
        "--with-fbgemm", action="store_true", help="also FBGEMM, which must be installed"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore", mixdim.FloorWarning)  # a shape to compare, not advice
    plan = mixdim.plan(CRITEO_KAGGLE_ROWS, temperature=options.temperature, base_dim=options.base_dim)
    hidden = MLPS[options.mlps]
    contenders = {
        "mixdim, SparseAMSGrad": partial(mixdim_amsgrad, plan, hidden),
        "the same, MLPs as mixdim.models.mlp": partial(mixdim_amsgrad, plan, hidden, own_mlps=True),
        RIVAL: partial(loop_sparse_adam, plan, hidden),
        "limit: MLPs alone": partial(mlps_alone, options.base_dim, hidden),
        "limit: MLPs alone, as mixdim.models.mlp": partial(
            mlps_alone, options.base_dim, hidden, own_mlps=True
        ),
    }
    if options.with_fbgemm:
        import_fbgemm()
        contenders["FBGEMM, bmm, Adagrad"] = partial(fbgemm_adagrad, plan, hidden)
    title = (
        f"DLRM, temperature {options.temperature:g}, base_dim {options.base_dim}, "
        f"batch {options.batch_size}, {options.mlps} MLPs: {plan.num_parameters:,} parameters in tables"
    )
    run([Contest(title, partial(make_batches, options.batch_size), contenders, RIVAL)], options)


if __name__ == "__main__":
    main()
