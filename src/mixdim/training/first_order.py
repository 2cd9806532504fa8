"""Logistic regression on ids: a weight for each id, and for each dense column. The baseline of clicks.

Knows nothing about other models. logit = constant + shift + sum of the weights of the ids + mean of
those of each bag + weights of the dense columns, each of which is standardised first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixdim.training.evaluation import Progress, evaluate
from mixdim.training.fitting import fit
from mixdim.training.inputs import Batch, Batches, TrainingData, num_rows
from mixdim.training.options import TrainingOptions

# An epoch has all training rows, or a random part of them, each epoch another: so many rows, or one in
# so many. Of large data, all epochs together see less than a third of the rows.
ROWS_AN_EPOCH, ONE_IN = 1 << 18, 16
# Decoupled weight decays, of every row at every step; the path ends where one is worse in validation.
DECAYS = (0.0, 0.1, 0.3, 1.0, 3.0)
BATCHES = 128  # an epoch of little data has about so many
MIN_BATCH, MAX_BATCH = 32, 4096
OPTIONS = TrainingOptions(
    "amsgrad", lr=1e-2, batch_size=MAX_BATCH, epochs=5, patience=1, decay_by="time"
)
ROWS_TO_STANDARDISE_BY = 1 << 16


class IdWeights(nn.EmbeddingBag):
    """A weight for each id of all features; tells which it is about to read, as mixed layers do."""

    reader: Callable[[Tensor, Tensor], None] | None = None

    def __init__(self, num_ids: int) -> None:
        super().__init__(num_ids, 1, mode="sum", sparse=True)
        nn.init.zeros_(self.weight)

    @property
    def row_sparse_tables(self) -> list[Tensor]:
        """Its one table."""
        return [self.weight]

    def pooled(self, ids: Tensor, offsets: Tensor | None, mode: str) -> Tensor:
        """The sum or the mean of bags of ids, (batch, ids) or with offsets (values,): -> (batch,)."""
        if self.reader is not None:
            self.reader(self.weight, ids.reshape(-1))
        return F.embedding_bag(ids, self.weight, offsets, mode=mode, sparse=True).squeeze(1)


class LogisticRegression(nn.Module):
    """A batch to its logits. All weights begin with 0, so an id that training never has adds nothing.

    - `sizes`: the ids of each feature by name, bags included; `single_valued`: those without bags.
    - `constant`: the logit of a batch without anything.
    - `means`, `deviations`: of the dense columns.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        single_valued: Sequence[str],
        *,
        constant: float,
        means: Tensor,
        deviations: Tensor,
    ) -> None:
        super().__init__()
        first_rows = dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
        self.constant, self.first_rows, self.sizes = constant, first_rows, sizes
        self.weights = IdWeights(sum(sizes.values()))
        self.shift, self.dense = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(len(means)))
        self.starts: Tensor
        self.means: Tensor
        self.deviations: Tensor
        self.register_buffer("starts", torch.tensor([first_rows[n] for n in single_valued]).long())
        self.register_buffer("means", means)
        self.register_buffer("deviations", deviations)

    def of_ids(self) -> dict[str, Tensor]:
        """By feature, the weights of its ids: (ids, 1)."""
        parts = self.weights.weight.detach().split(list(self.sizes.values()))
        return dict(zip(self.sizes, parts, strict=True))

    def forward(self, batch: Batch) -> Tensor:
        """Return the logit of each sample: (batch,)."""
        standardised = (batch.dense - self.means) / self.deviations
        logits = self.constant + self.shift + standardised @ self.dense
        if batch.ids.shape[1]:
            logits = logits + self.weights.pooled(batch.ids + self.starts, None, "sum")
        for name, (values, offsets) in getattr(batch, "bags", {}).items():
            rows = (values + self.first_rows[name]).long()
            logits = logits + self.weights.pooled(rows, offsets[:-1], "mean")  # an empty bag adds 0
        return logits


class FittedLogistic(NamedTuple):
    """A logistic regression, and what it reaches on "validation" and "test", with how it was made."""

    model: LogisticRegression
    measured: dict[str, Any]


def fit_logistic(
    data: TrainingData,
    constant: float,
    *,
    options: TrainingOptions = OPTIONS,
    decays: Sequence[float] = DECAYS,
    progress: Progress | None = None,
) -> FittedLogistic:
    """Train it for a few epochs by some weight decays each; keep and measure the best in validation.

    The batches are smaller than in the options if there are few rows.
    """
    rows = num_rows(data, "train")
    limited = Limited(data, min(rows, max(ROWS_AN_EPOCH, rows // ONE_IN)), tests=False)
    means, deviations = moments(data)
    sizes = {name: len(counts) for name, counts in data.counts.items()}
    batch_size = min(options.batch_size, max(MIN_BATCH, limited.rows // BATCHES))

    def show(stage: str, done: int, total: int, note: str) -> None:
        if progress is not None and stage == "training":
            progress("baseline", done, total, note)

    best, least = None, math.inf
    for decay in decays:
        model = LogisticRegression(
            sizes, data.single_valued, constant=constant, means=means, deviations=deviations
        )
        told = replace(options, batch_size=batch_size, weight_decay=decay)
        fitted = fit(model, limited, options=told, progress=show)
        validation = _metrics(fitted.validation["best"])
        loss = validation["log_loss"]
        if best is None or loss < least:
            made = {"rows_an_epoch": limited.rows, "epochs": fitted.epochs_run, "weight_decay": decay}
            best, least = FittedLogistic(model, {**made, "validation": validation}), loss
        if loss is None or loss > least:
            break
    assert best is not None
    found = evaluate(best.model, data, "test", batch_size=batch_size)
    alone = _loss_of_dense_alone(data, constant, means, deviations)
    best.measured.update(test=_metrics(found), dense_alone=alone)
    return best


def _loss_of_dense_alone(
    data: TrainingData, constant: float, means: Tensor, deviations: Tensor
) -> float | None:
    """The validation log loss of a logistic regression of the dense columns alone; None without any."""
    if not len(means) or not num_rows(data, "validation"):
        return None
    first = next(iter(data.batches("train", batch_size=ROWS_TO_STANDARDISE_BY, shuffle=True)))
    weights = torch.zeros(len(means) + 1, dtype=torch.float64, requires_grad=True)

    def logits(batch: Batch) -> Tensor:
        columns = ((batch.dense - means) / deviations).double()
        return columns @ weights[1:] + weights[0] + constant

    def loss() -> Tensor:
        value = F.binary_cross_entropy_with_logits(logits(first), first.target.double())
        weights.grad = torch.autograd.grad(value, weights)[0]
        return value

    torch.optim.LBFGS([weights], max_iter=50, line_search_fn="strong_wolfe").step(loss)
    losses = [
        F.binary_cross_entropy_with_logits(logits(batch), batch.target.double(), reduction="sum").item()
        for batch in data.batches("validation", batch_size=MAX_BATCH)
    ]
    found = sum(losses) / num_rows(data, "validation")
    return found if math.isfinite(found) else None


@dataclass(frozen=True, eq=False)
class Limited:
    """Data whose epochs have some of the training rows, each epoch others; `tests`: or no test rows."""

    data: TrainingData
    rows: int
    tests: bool = True

    @cached_property
    def splits(self) -> Mapping[str, tuple[int, int]]:
        """Those of the data, but for fewer rows in training."""
        start, _ = self.data.splits["train"]
        first, last = self.data.splits["test"]
        test = (first if self.tests else last, last)
        return {**self.data.splits, "train": (start, start + self.rows), "test": test}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.data, name)

    def batches(self, split: str, *, batch_size: int, **order: Any) -> Batches:
        """The first batches of an order, as many as the rows fill."""
        start, stop = self.splits[split]
        of_all = self.data.batches(split, batch_size=batch_size, **order)
        return _First(of_all, -(-(stop - start) // batch_size))


@dataclass(frozen=True, eq=False)
class _First:
    """The first of some batches."""

    batches: Batches
    wanted: int

    def __len__(self) -> int:
        return self.wanted

    def __iter__(self) -> Iterator[Batch]:
        return islice(iter(self.batches), self.wanted)


def moments(data: TrainingData) -> tuple[Tensor, Tensor]:
    """Means and deviations of the dense columns on some training rows, 1 for those of constants."""
    batches = data.batches("train", batch_size=ROWS_TO_STANDARDISE_BY, shuffle=True)
    dense = next(iter(batches)).dense.double()
    deviations = (dense - dense.mean(0)).square().mean(0).sqrt()
    return dense.mean(0).float(), torch.where(deviations > 0, deviations, 1.0).float()


def _metrics(result: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name not in ("step", "epoch", "slices")}
