"""A model that says one number, runs of a few steps, and what they leave in their folder."""

import json
from dataclasses import replace

import torch
from torch import nn

from mixdim.training import preset

OPTIONS = replace(
    preset("paper-cf"), batch_size=100, epochs=3, lr=0.05, patience=None
)  # 8 steps an epoch


def journal(out, kind):
    records = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [record for record in records if record["kind"] == kind]


def saved_steps(out, kind="step"):
    return sorted(int(path.name[-8:]) for path in (out / "checkpoint").glob(f"{kind}-*"))


class Guess(nn.Module):
    """Says one number for all ratings, so that gradient descent can be followed by hand."""

    def __init__(self, start=0.0):
        super().__init__()
        self.guess = nn.Parameter(torch.tensor(start))

    def forward(self, batch):
        return self.guess.expand(len(batch.target))
