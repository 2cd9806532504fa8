"""A model beside first-order weights: one for each id and each number. Knows no tables and no training.

The weights alone are a logistic regression; the model adds what ids and numbers say together. With few
rows, where most ids are rare, the first is most of what can be learnt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mixdim.models.samples import Samples, check_shape, join_bags
from mixdim.models.tables import BagLayer, count_trained


class _Samples(NamedTuple):
    ids: Tensor
    dense: Tensor
    bags: Mapping[str, tuple[Tensor, Tensor]]


class WithFirstOrder(nn.Module):
    """output = deep(samples) + constant + weights of ids and numbers.

    Numbers are standardised first, for `deep` too, by means and deviations that `standardise_by` sets
    and the state keeps. All weights begin with 0, so an id that training never has adds nothing;
    whoever has better ones to begin with sets those.

    - `deep`: a model of samples, such as `DLRM`.
    - `weights`: the weights of ids, a `mixdim.FeatureEmbeddings` of width 1; its pooling says what the
      weights of a bag become. They are set to 0.
    - `num_dense`: numbers of a sample.
    - `constant`: saved with the state, not trained.
    """

    constant: Tensor
    means: Tensor
    deviations: Tensor

    def __init__(self, deep: nn.Module, weights: nn.Module, *, num_dense: int, constant: float) -> None:
        super().__init__()
        if not isinstance(weights, BagLayer) or weights.base_dim != 1:
            raise ValueError(f"weights must be a mixdim.FeatureEmbeddings of width 1, got {weights}")
        self.deep, self.weights, self.num_dense = deep, weights, num_dense
        for table in weights.parameters():
            nn.init.zeros_(table)
        self.dense = nn.Parameter(torch.zeros(1, num_dense))
        self.register_buffer("constant", torch.tensor(constant))
        self.register_buffer("means", torch.zeros(num_dense))
        self.register_buffer("deviations", torch.ones(num_dense))

    @property
    def num_first_order(self) -> int:
        """Weights of ids."""
        return count_trained(self.get_submodule("weights"))

    def standardise_by(self, means: Tensor, deviations: Tensor) -> None:
        """Set what each column of numbers is shifted and divided by."""
        self.means.copy_(means)
        self.deviations.copy_(deviations)

    @torch.no_grad()
    def start_numbers(self, shift: Tensor, weights: Tensor) -> None:
        """Let the constant begin higher by `shift`, the weights of numbers with these: (numbers,)."""
        self.constant.add_(shift)
        self.dense.copy_(weights[None])

    def forward(self, samples: Samples) -> Tensor:
        """Return the output of each sample: (batch,)."""
        check_shape(samples.dense, "dense", self.num_dense, "the numbers of a sample")
        numbers = self.standardised(samples.dense)
        outputs = self.deep(_Samples(samples.ids, numbers, samples.bags))
        if samples.bags:
            bags = join_bags(samples.ids, samples.bags, self.weights.feature_names)
            return self.added(outputs, numbers, self.weights.bags(*bags))
        return self.added(outputs, numbers, self.get_submodule("weights")(samples.ids))

    def standardised(self, dense: Tensor) -> Tensor:
        """The numbers that `deep` and the weights take: (batch, numbers)."""
        return (dense - self.means) / self.deviations

    def added(self, outputs: Tensor, numbers: Tensor, of_ids: Tensor) -> Tensor:
        """Add the weights to what `deep` says: (batch,), (batch, numbers), (batch, features, 1)."""
        return outputs + self.constant + (numbers * self.dense).sum(1) + of_ids.sum((1, 2))
