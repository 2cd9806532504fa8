"""One training step of the layer on the Criteo shape, against a loop over features.

26 features, real cardinalities, Zipf ids, forward + backward; no optimizer. Synthetic ids.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
import torch
from rounds import measure, report, summary
from torch import Tensor, nn

import mixdim
from mixdim.experiments.criteo import CRITEO_KAGGLE_ROWS


class LoopOverFeatures(nn.Module):
    """What every implementation does today: a table and a linear map for each feature, in a loop."""

    def __init__(self, plan: mixdim.Plan) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            [nn.EmbeddingBag(b.size, b.dim, mode="sum", sparse=True) for b in plan.blocks]
        )
        self.projections = nn.ModuleList(
            [
                nn.Linear(b.dim, plan.base_dim, bias=False) if b.dim < plan.base_dim else nn.Identity()
                for b in plan.blocks
            ]
        )

    def forward(self, ids: Tensor) -> Tensor:
        """(batch, 26) -> (batch, 26, base_dim)."""
        offsets = torch.arange(len(ids))
        vectors = [
            projection(table(column.contiguous(), offsets))
            for table, projection, column in zip(self.tables, self.projections, ids.t(), strict=True)
        ]
        return torch.stack(vectors, dim=1)


def zipf_ids(batch: int, rng: np.random.Generator) -> Tensor:
    """Ids whose popularity falls as 1/rank: (batch, 26)."""
    columns = [
        np.exp(rng.random(batch) * np.log(rows + 1)).astype(np.int64) - 1
        for rows in CRITEO_KAGGLE_ROWS.values()
    ]
    return torch.from_numpy(np.stack(columns, axis=1))


def train_step(layer: nn.Module, ids: Tensor, pull: Tensor) -> None:
    layer.zero_grad(set_to_none=True)
    layer(ids).backward(pull)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--temperatures", default="0,0.2,0.3,0.4")
    parser.add_argument("--base-dim", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write the figures here (one file a temperature)")
    options = parser.parse_args()
    warnings.simplefilter("ignore", mixdim.FloorWarning)  # a shape to compare, not advice
    rng = np.random.default_rng(0)
    ids = zipf_ids(options.batch_size, rng)
    pull = torch.from_numpy(rng.standard_normal((*ids.shape, options.base_dim), dtype=np.float32))
    print(
        f"{torch.get_num_threads()} threads, batch {options.batch_size}, base_dim {options.base_dim}\n"
    )
    for temperature in (float(t) for t in options.temperatures.split(",")):
        plan = mixdim.plan(CRITEO_KAGGLE_ROWS, temperature=temperature, base_dim=options.base_dim)
        layers = {"loop": LoopOverFeatures(plan), "mixdim": mixdim.FeatureEmbeddings(plan, sparse=True)}
        steps = {
            name: lambda layer=layer: train_step(layer, ids, pull) for name, layer in layers.items()
        }
        print(f"temperature {temperature:g}: {plan.num_parameters:,} parameters")
        rows = summary(measure(steps, rounds=options.rounds), rival="loop")
        save = options.json and options.json.with_stem(f"{options.json.stem}-{temperature:g}")
        report(rows, rival="loop", save=save)


if __name__ == "__main__":
    main()
