"""Small data and small models to train on; every call makes the same ones."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import torch
from small_folder import write_small_folder
from torch import nn

from mixdim.data import Dataset
from mixdim.lab.synthetic.generate import generate_criteo_like, generate_movielens_like
from mixdim.runs.config import RunConfig
from mixdim.runs.models import build_model
from mixdim.runs.plans import plan_of
from mixdim.tasks import task_of

FOLDER = Path(tempfile.mkdtemp(prefix="mixdim-tests-"))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


@cache
def ratings():
    """1,000 ratings: 800 of them to train on."""
    generate_movielens_like(FOLDER / "ratings", rows=1_000, scale=0.0005)
    return Dataset(FOLDER / "ratings")


@cache
def clicks():
    """1,000 clicks on 26 features: 857 of them to train on."""
    generate_criteo_like(FOLDER / "clicks", rows=1_000, scale=0.00001)
    return Dataset(FOLDER / "clicks")


@cache
def clicks_with_bags():
    """100 clicks: user, item, and a bag of tags."""
    return Dataset(write_small_folder(FOLDER / "bags", bags=True))


SMALL = {
    "dcn": {"cross_layers": 2, "cross_rank": 2, "hidden": (8,)},
    "deepfm": {"hidden": (8,)},
    "dlrm": {"bottom": (8,), "top": (8,)},
    "mf": {},
    "ncf": {"hidden": (8, 4)},
}


def small_config(name, dataset, **options):
    widths = SMALL[name]
    data = str(dataset.path)
    told = {"model": name, "temperature": 0.3, "base_dim": 8, "data": data, **widths, **options}
    told.setdefault("preset", task_of(dataset.task).paper_preset)
    return RunConfig.of(**told).resolved_for(dataset.task)


def small_model(name, dataset, **options):
    """The model that `mixdim train` would build, with narrow layers."""
    config = small_config(name, dataset, **options)
    plan = plan_of(config, dataset)
    mean = task_of(dataset.task).constant_output(dataset.mean_target)
    return build_model(config, plan, num_dense=dataset.num_dense, mean=mean)


class OwnModel(nn.Module):
    """What a user might bring: plain tables, dropout, a running mean; nothing of mixdim."""

    def __init__(self, dataset, *, sparse=False, dropout=0.3, width=4):
        super().__init__()
        torch.manual_seed(11)
        self.users, self.items = (
            nn.Embedding(rows, width, sparse=sparse) for rows in dataset.cardinalities.values()
        )
        self.dropout, self.norm = nn.Dropout(dropout), nn.BatchNorm1d(2 * width)
        self.head = nn.Linear(2 * width, 1)

    def forward(self, batch):
        users, items = self.users(batch.ids[:, 0]), self.items(batch.ids[:, 1])
        return self.head(self.norm(self.dropout(torch.cat([users, items], dim=1)))).squeeze(1) + 3.5


class Turning(nn.Module):
    """Wraps a model so that its outputs turn into `value` from the training step `step` on."""

    def __init__(self, model, *, step, value=float("nan")):
        super().__init__()
        self.model, self.step, self.value, self.calls = model, step, value, 0

    def forward(self, batch):
        self.calls += self.training
        return self.model(batch) + (self.value if self.calls >= self.step else 0.0)


def raw_bytes(module):
    """The bytes of everything a module holds, by name."""
    return {name: np.asarray(t.detach()).tobytes() for name, t in module.state_dict().items()}
