"""Models that are not mixdim's, in plain NumPy, SciPy and PyTorch, each with a short search of its own.

Each gets the splits of a data set, searches by validation alone with the first seed, and returns what it
reaches. Used by `benchmarks/peers.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from mixdim.data import Dataset

SPLITS = ("train", "validation", "test")
WIDTH = 16
RATE, MLP_RATE = 0.01, 0.001
DECAYS = (0.3, 1.0, 3.0)
EPOCHS = (2, 8)
PENALTIES = (1.0, 3.0, 10.0, 30.0, 100.0)  # of a logistic regression, on the sum of losses
SHRINKS = (1.0, 2.5, 5.0, 10.0, 20.0)  # of biases
ALS_PENALTIES = (6.0, 10.0, 16.0, 25.0)
ALS_WIDTHS = (8, 16, 64)
ALS_SWEEPS = 12


@dataclass(frozen=True)
class Rows:
    """A split in memory: ids of all features (rows, features), numbers, and targets."""

    ids: Tensor
    dense: Tensor
    target: Tensor


@dataclass(frozen=True)
class Data:
    """A data set in memory; numbers are standardized by train, ids start at 0 in each feature."""

    splits: dict[str, Rows]
    sizes: list[int]
    counts: list[np.ndarray]
    unknown: list[int]

    @classmethod
    def of(cls, dataset: Dataset) -> Data:
        """Read all splits."""
        found = {}
        for name in SPLITS:
            start, stop = dataset.splits[name]
            batch = dataset.rows(slice(start, stop))
            found[name] = Rows(batch.ids.long(), batch.dense.float(), batch.target.float())
        mean, std = (
            found["train"].dense.mean(0),
            found["train"].dense.std(0, correction=0).clamp(min=1e-6),
        )
        splits = {n: Rows(r.ids, (r.dense - mean) / std, r.target) for n, r in found.items()}
        names = dataset.feature_names
        return cls(
            splits,
            [dataset.cardinalities[name] for name in names],
            [np.asarray(dataset.counts[name], float) for name in names],
            [feature.out_of_vocabulary for feature in dataset.meta.features],
        )

    @property
    def firsts(self) -> Tensor:
        """Where each feature's rows begin if all are below each other."""
        return torch.tensor([0, *np.cumsum(self.sizes)[:-1]])


@dataclass(frozen=True)
class Found:
    """What a peer reaches, with which settings, of how many tried."""

    validation: float
    test: float
    settings: str
    tried: int


def best_of(tried: Iterable[tuple[str, dict[str, float]]]) -> Found:
    """The settings that are best in validation."""
    listed = list(tried)
    settings, losses = min(listed, key=lambda one: one[1]["validation"])
    return Found(losses["validation"], losses["test"], settings, len(listed))


# Ratings.


def biases(data: Data, seed: int) -> Found:
    """Mean, user's and item's bias, each shrunken by a number of ratings of its own, both tuned."""
    return best_of(
        (f"shrunken by {of_user:g} and {of_item:g}", _fit_biases(data, of_user, of_item))
        for of_user, of_item in product(SHRINKS, SHRINKS)
    )


def _fit_biases(data: Data, of_user: float, of_item: float) -> dict[str, float]:
    train = data.splits["train"]
    ids, target = train.ids.numpy(), train.target.double().numpy()
    mean = target.mean()
    found = [np.zeros(size) for size in data.sizes]
    for _ in range(20):
        for side, shrink in enumerate((of_user, of_item)):
            rest = target - mean - found[1 - side][ids[:, 1 - side]]
            sums = np.bincount(ids[:, side], rest, minlength=data.sizes[side])
            found[side] = sums / (np.bincount(ids[:, side], minlength=data.sizes[side]) + shrink)
    return {
        name: float(np.mean((rows.target.numpy() - mean - sum(_of(found, rows))) ** 2))
        for name, rows in data.splits.items()
    }


def _of(tables: Sequence[np.ndarray], rows: Rows) -> list[np.ndarray]:
    return [table[column] for table, column in zip(tables, rows.ids.numpy().T, strict=True)]


def als(data: Data, seed: int) -> Found:
    """Biased matrix factorization by alternating least squares; penalty and width are tuned."""
    return best_of(
        (f"width {width}, penalty {penalty:g}", _fit_als(data, width, penalty, seed))
        for width, penalty in product(ALS_WIDTHS, ALS_PENALTIES)
    )


def _fit_als(data: Data, width: int, penalty: float, seed: int) -> dict[str, float]:
    """Each side in turn: a bias and a vector for each id by least squares, both with the penalty."""
    train, generator = data.splits["train"], np.random.default_rng(seed)
    ids, target = train.ids.numpy(), train.target.double().numpy()
    mean = target.mean()
    own = [np.zeros((size, 1 + width)) for size in data.sizes]  # bias, vector
    for table in own:
        table[:, 1:] = generator.normal(scale=0.1, size=(len(table), width))
    orders = [np.argsort(ids[:, side], kind="stable") for side in (0, 1)]
    ends = [np.cumsum(np.bincount(ids[:, side], minlength=data.sizes[side])) for side in (0, 1)]
    best: dict[str, float] = {"validation": math.inf}
    for _ in range(ALS_SWEEPS):
        for side in (0, 1):
            other, start = own[1 - side], 0
            for row, end in enumerate(ends[side]):
                here = orders[side][start:end]
                start = end
                theirs = other[ids[here, 1 - side]]
                features = np.concatenate([np.ones((len(here), 1)), theirs[:, 1:]], axis=1)
                gram = features.T @ features
                gram.flat[:: width + 2] += penalty
                own[side][row] = np.linalg.solve(gram, features.T @ (target[here] - mean - theirs[:, 0]))
        losses = {}
        for name, rows in data.splits.items():
            users, items = _of(own, rows)
            scores = mean + users[:, 0] + items[:, 0] + (users[:, 1:] * items[:, 1:]).sum(1)
            losses[name] = float(np.mean((rows.target.numpy() - scores) ** 2))
        best = min(best, losses, key=lambda found: found["validation"])
    return best


# Clicks.


def logistic(data: Data, seed: int) -> Found:
    """Logistic regression of one-hot ids and numbers by L-BFGS; the penalty is tuned along a path."""
    train = data.splits["train"]
    rows, columns, firsts = sum(data.sizes), train.dense.shape[1], data.firsts
    flat = {name: (split.ids + firsts) for name, split in data.splits.items()}

    def logits(weights: Tensor, name: str) -> Tensor:
        dense = data.splits[name].dense.double() @ weights[rows:-1]
        return weights[flat[name]].sum(1) + dense + weights[-1]

    def path() -> Iterable[tuple[str, dict[str, float]]]:
        share = float(train.target.mean())
        start = np.zeros(rows + columns + 1)
        start[-1] = math.log(share / (1 - share))
        for penalty in sorted(PENALTIES, reverse=True):

            def objective(values: np.ndarray, penalty: float = penalty) -> tuple[float, np.ndarray]:
                weights = torch.from_numpy(values)
                found = logits(weights, "train")
                loss = binary_cross_entropy_with_logits(found, train.target.double(), reduction="sum")
                error = torch.sigmoid(found) - train.target.double()
                gradient = torch.zeros_like(weights)
                for column in flat["train"].unbind(1):
                    gradient[:rows].index_add_(0, column, error)
                gradient[rows:-1] = error @ train.dense.double()
                gradient[-1] = error.sum()
                gradient[:-1] += penalty * weights[:-1]
                total = loss + penalty / 2 * weights[:-1].square().sum()
                return float(total), gradient.numpy()

            start = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 200}).x
            weights = torch.from_numpy(start)
            yield (
                f"penalty {penalty:g}",
                {
                    name: float(
                        binary_cross_entropy_with_logits(logits(weights, name), split.target.double())
                    )
                    for name, split in data.splits.items()
                },
            )

    return best_of(path())


class Factorization(nn.Module):
    """A constant, a weight for each id and number, and the dot products of all pairs of vectors."""

    firsts: Tensor

    def __init__(self, data: Data) -> None:
        super().__init__()
        rows, columns = sum(data.sizes), data.splits["train"].dense.shape[1]
        self.register_buffer("firsts", data.firsts)
        self.vectors, self.weights = nn.Embedding(rows, WIDTH), nn.Embedding(rows, 1)
        nn.init.normal_(self.vectors.weight, std=0.05)
        nn.init.zeros_(self.weights.weight)
        share = float(data.splits["train"].target.mean())
        self.dense = nn.Linear(columns, 1)
        nn.init.zeros_(self.dense.weight)
        nn.init.constant_(self.dense.bias, math.log(share / (1 - share)))

    def linear(self, flat: Tensor, dense: Tensor) -> Tensor:
        """The weights alone: a logistic regression."""
        found: Tensor = self.weights(flat).sum((1, 2)) + self.dense(dense).squeeze(1)
        return found

    def forward(self, ids: Tensor, dense: Tensor) -> Tensor:
        """Return the logit of each sample: (batch,)."""
        flat = ids + self.firsts
        vectors = self.vectors(flat)
        pairs = vectors.sum(1).square().sum(1) - vectors.square().sum((1, 2))
        return self.linear(flat, dense) + pairs / 2


class Network(Factorization):
    """An MLP of all vectors, their dot products and the numbers, beside a weight for each of them."""

    def __init__(self, data: Data) -> None:
        super().__init__(data)
        fields, columns = len(data.sizes), data.splits["train"].dense.shape[1]
        self.left, self.right = torch.tril_indices(fields, fields, offset=-1)
        inputs = fields * WIDTH + len(self.left) + columns
        self.mlp = nn.Sequential(
            *(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
        )

    def forward(self, ids: Tensor, dense: Tensor) -> Tensor:
        """Return the logit of each sample: (batch,)."""
        flat = ids + self.firsts
        vectors = self.vectors(flat)
        dots = (vectors @ vectors.transpose(1, 2))[:, self.left, self.right]
        found: Tensor = self.mlp(torch.cat([vectors.flatten(1), dots, dense], dim=1)).squeeze(1)
        return found + self.linear(flat, dense)


def trained(kind: type[Factorization]) -> Callable[[Data, int], Found]:
    """The search of a model that PyTorch trains: decay and epochs with seed 0, the best with others."""
    chosen: dict[int, tuple[float, int]] = {}

    def fit(data: Data, seed: int) -> Found:
        own = chosen.get(id(data))
        settings = [own] if own is not None else [*product(DECAYS, EPOCHS)]
        found = {s: _train(kind, data, seed, *s) for s in settings}
        best = chosen[id(data)] = min(settings, key=lambda s: found[s]["validation"])
        named = f"decay {best[0]:g}, {best[1]} epochs"
        return Found(found[best]["validation"], found[best]["test"], named, len(settings))

    return fit


def _train(
    kind: type[Factorization], data: Data, seed: int, decay: float, epochs: int
) -> dict[str, float]:
    """AdamW with AMSGrad, every row decayed every step, rates falling linearly to 0, best epoch kept."""
    torch.manual_seed(seed)
    model, train = kind(data), data.splits["train"]
    tables = [*model.vectors.parameters(), *model.weights.parameters()]
    others = [p for p in model.parameters() if all(p is not table for table in tables)]
    groups: list[dict[str, Any]] = [
        {"params": tables, "lr": RATE, "weight_decay": decay},
        {"params": others, "lr": MLP_RATE, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, amsgrad=True)
    size = min(4096, max(64, 1 << (len(train.ids) // 100).bit_length() - 1))
    steps = epochs * -(-len(train.ids) // size)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    missing = [1 / (1 + torch.from_numpy(counts)) for counts in data.counts]
    best: dict[str, float] = {"validation": math.inf}
    for _ in range(epochs):
        for rows in torch.randperm(len(train.ids)).split(size):
            ids = train.ids[rows]
            for column, (chance, unknown) in enumerate(zip(missing, data.unknown, strict=True)):
                drawn = torch.rand(len(rows)) < chance[ids[:, column]]
                ids[:, column] = torch.where(drawn, unknown, ids[:, column])
            loss = binary_cross_entropy_with_logits(model(ids, train.dense[rows]), train.target[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        best = min(best, _losses(model, data), key=lambda found: found["validation"])
    return best


@torch.no_grad()
def _losses(model: nn.Module, data: Data) -> dict[str, float]:
    found = {}
    for name in ("validation", "test"):
        rows = data.splits[name]
        pieces = zip(rows.ids.split(2**16), rows.dense.split(2**16), strict=True)
        logits = torch.cat([model(ids, dense) for ids, dense in pieces])
        found[name] = float(binary_cross_entropy_with_logits(logits, rows.target))
    return found


SEEDLESS = {"tuned biases", "logistic regression"}  # the same with every seed
RATINGS: dict[str, Callable[[Data, int], Found]] = {"tuned biases": biases, "biased ALS": als}
CLICKS: dict[str, Callable[[Data, int], Found]] = {
    "logistic regression": logistic,
    "FM of width 16": trained(Factorization),
    "network of width 16": trained(Network),
}
