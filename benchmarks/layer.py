"""One training step of the layer alone on the Criteo shape, against what people use today.

26 features with their real cardinalities, synthetic Zipf ids; forward, backward and optimizer.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import backward
from torch.optim import Optimizer

import mixdim
from interleaved import Contest, Step, arguments, run
from mixdim.lab.synthetic.planted import CRITEO_KAGGLE_ROWS
from mixdim.layer.layout import Layout
from rivals import FbgemmTables, LoopOverFeatures, UniformTable, import_fbgemm
from training import LEARNING_RATE, NUM_BATCHES, amsgrad, sparse_adam, training_step, zipf_ids

RIVAL = "loop, SparseAdam"
UNIFORM_BASE_DIM = 4


class Inputs(NamedTuple):
    """Batches of ids, (batch, 26) each, and the gradient that comes back: (batch, 26, base_dim)."""

    ids: list[Tensor]
    pull: Tensor


def make_inputs(batch_size: int, base_dim: int) -> Inputs:
    rng = np.random.default_rng(0)
    rows = CRITEO_KAGGLE_ROWS.values()
    pull = rng.standard_normal((batch_size, len(rows), base_dim), dtype=np.float32)
    ids = [zipf_ids(rows, batch_size, rng) for _ in range(NUM_BATCHES)]
    return Inputs(ids, torch.from_numpy(pull))


def layer_step(layer: nn.Module, optimizers: list[Optimizer], inputs: Inputs, width: int) -> Step:
    pull = inputs.pull[:, :, :width].contiguous()
    return training_step(lambda ids: backward([layer(ids)], [pull]), inputs.ids, optimizers)


def mixdim_amsgrad(plan: mixdim.Plan, inputs: Inputs) -> Step:
    layer = mixdim.FeatureEmbeddings(plan, sparse=True)
    optimizer = mixdim.SparseAMSGrad(layer.parameters(), lr=LEARNING_RATE)
    return layer_step(layer, [optimizer], inputs, plan.base_dim)


def loop_sparse_adam(plan: mixdim.Plan, inputs: Inputs) -> Step:
    layer = LoopOverFeatures(plan)
    return layer_step(layer, sparse_adam(layer, layer.tables), inputs, plan.base_dim)


def loop_dense_amsgrad(plan: mixdim.Plan, inputs: Inputs) -> Step:
    layer = LoopOverFeatures(plan, sparse=False)
    return layer_step(layer, [amsgrad(layer.parameters())], inputs, plan.base_dim)


def uniform_sparse_adam(plan: mixdim.Plan, inputs: Inputs) -> Step:
    layer = UniformTable(plan)
    return layer_step(layer, sparse_adam(layer, layer.table), inputs, layer.width)


def fbgemm_adagrad(plan: mixdim.Plan, inputs: Inputs) -> Step:
    layer = FbgemmTables(plan, learning_rate=LEARNING_RATE)
    return layer_step(layer, [amsgrad(layer.parameters())], inputs, plan.base_dim)


def row_gathers(plan: mixdim.Plan, inputs: Inputs) -> Step:
    """Read the rows of a batch and do nothing with them: one gather a width."""
    groups = Layout.of(plan).groups
    tables = {
        name: torch.rand(sum(block.size for block in blocks), blocks[0].storage.dim)
        for name, blocks in groups.items()
    }
    rows_of_batches = [
        {
            name: torch.cat([ids[:, block.feature] + block.first_row for block in blocks])
            for name, blocks in groups.items()
        }
        for ids in inputs.ids
    ]

    def gather(rows_of_tables: dict[str, Tensor]) -> None:
        for name, rows in rows_of_tables.items():
            tables[name].index_select(0, rows)

    return training_step(gather, rows_of_batches, [])


def contest(temperature: float, base_dim: int, batch_size: int, *, with_fbgemm: bool) -> Contest[Inputs]:
    note = ""
    if temperature == 0 and base_dim > UNIFORM_BASE_DIM:
        gigabytes = 4e-9 * base_dim * sum(CRITEO_KAGGLE_ROWS.values())
        note = f" ({base_dim} takes {gigabytes:.0f} GB of weights, {3 * gigabytes:.0f} GB of state)"
        base_dim = UNIFORM_BASE_DIM
    plan = mixdim.plan(CRITEO_KAGGLE_ROWS, temperature=temperature, base_dim=base_dim)
    contenders = {
        "mixdim, SparseAMSGrad": partial(mixdim_amsgrad, plan),
        RIVAL: partial(loop_sparse_adam, plan),
        "loop, dense AMSGrad": partial(loop_dense_amsgrad, plan),
        "uniform at equal cost, SparseAdam": partial(uniform_sparse_adam, plan),
        "limit: random row gathers": partial(row_gathers, plan),
    }
    if with_fbgemm:
        contenders["FBGEMM, Adagrad"] = partial(fbgemm_adagrad, plan)
    return Contest(
        f"temperature {temperature:g}, base_dim {base_dim}{note}, batch {batch_size}: "
        f"{plan.num_parameters:,} parameters",
        partial(make_inputs, batch_size, base_dim),
        contenders,
        RIVAL,
    )


def main() -> None:
    parser = arguments(__doc__, rounds=15)
    parser.add_argument("--temperatures", help="default 0,0.2,0.3,0.4, or 0.3 with --quick")
    parser.add_argument("--base-dim", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument(
        "--with-fbgemm", action="store_true", help="also FBGEMM, which must be installed"
    )
    options = parser.parse_args()
    if options.with_fbgemm:
        import_fbgemm()
    temperatures = options.temperatures or ("0.3" if options.quick else "0,0.2,0.3,0.4")
    warnings.simplefilter("ignore", mixdim.FloorWarning)  # a shape to compare, not advice
    run(
        (
            contest(float(t), options.base_dim, options.batch_size, with_fbgemm=options.with_fbgemm)
            for t in temperatures.split(",")
        ),
        options,
    )


if __name__ == "__main__":
    main()
