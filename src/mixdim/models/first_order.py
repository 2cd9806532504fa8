"""A model beside first-order weights: one for each id and each number. Knows no tables and no training.

The weights alone are a logistic regression; the model adds what ids and numbers say together. With few
rows, where most ids are rare, the first is most of what can be learnt.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixdim.models.samples import Samples, check_shape


class _Samples(NamedTuple):
    ids: Tensor
    dense: Tensor
    bags: Mapping[str, tuple[Tensor, Tensor]]


class WithFirstOrder(nn.Module):
    """output = deep(samples) + constant + weights of ids and numbers; of a bag, the mean weight.

    Numbers are standardised first, for `deep` too, by means and deviations that `standardise_by` sets
    and the state keeps. All weights begin with 0, so an id that training never has adds nothing.

    - `deep`: a model of samples, such as `DLRM`.
    - `sizes`: the rows of each feature by name, in the order of `samples.ids`, bags included.
    - `num_dense`: numbers of a sample.
    - `constant`: saved with the state, not trained.
    """

    constant: Tensor
    means: Tensor
    deviations: Tensor

    def __init__(
        self, deep: nn.Module, sizes: Mapping[str, int], *, num_dense: int, constant: float
    ) -> None:
        super().__init__()
        self.deep, self.num_dense = deep, num_dense
        self.first_rows = dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))
        self.weights = nn.EmbeddingBag(sum(sizes.values()), 1, mode="sum", sparse=True)
        nn.init.zeros_(self.weights.weight)
        self.dense = nn.Parameter(torch.zeros(1, num_dense))
        self.register_buffer("constant", torch.tensor(constant))
        self.register_buffer("means", torch.zeros(num_dense))
        self.register_buffer("deviations", torch.ones(num_dense))

    def standardise_by(self, means: Tensor, deviations: Tensor) -> None:
        """Set what each column of numbers is shifted and divided by."""
        self.means.copy_(means)
        self.deviations.copy_(deviations)

    def forward(self, samples: Samples) -> Tensor:
        """Return the output of each sample: (batch,)."""
        check_shape(samples.dense, "dense", self.num_dense, "the numbers of a sample")
        numbers = (samples.dense - self.means) / self.deviations
        outputs = self.deep(_Samples(samples.ids, numbers, samples.bags)) + self.constant
        outputs = outputs + (numbers * self.dense).sum(1)
        starts = [start for name, start in self.first_rows.items() if name not in samples.bags]
        if starts:
            rows = samples.ids + torch.tensor(starts, device=samples.ids.device)
            outputs = outputs + self.weights(rows).squeeze(1)
        for name, (values, offsets) in samples.bags.items():
            rows, weight = values.long() + self.first_rows[name], self.weights.weight
            means = F.embedding_bag(rows, weight, offsets[:-1].long(), mode="mean", sparse=True)
            outputs = outputs + means.squeeze(1)  # an empty bag adds 0
        return outputs
