"""First-order weights: one for each id and each number, as a part of a model. Knows no training.

The weights alone are a logistic regression; the model adds what ids and numbers say together. With few
rows, where most ids are rare, the first is most of what can be learnt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, nn

from mixdim.models.base import Baseline, Facts, MakeLayer
from mixdim.models.mlp import single_column
from mixdim.models.samples import Samples
from mixdim.models.tables import BagLayer, count_trained, look_up, number_plan
from mixdim.planning.plan import Plan

if TYPE_CHECKING:
    from mixdim.serving.graph import Graph
    from mixdim.serving.layer_graph import GraphInputs


class FirstOrder(nn.Module):
    """output + constant + weights of ids and numbers, where `output` is that of the rest of a model.

    Numbers are standardized first, for the rest of the model too, by means and deviations that
    `standardize_by` sets and the state keeps. All weights begin with 0, so an id that training never has
    adds nothing; `start_from` sets others.

    - `weights`: the weights of ids, a `mixdim.FeatureEmbeddings` of width 1; its pooling says what the
      weights of a bag become. They are set to 0.
    - `num_dense`: numbers of a sample.
    - `constant`: saved with the state, not trained.
    """

    constant: Tensor
    means: Tensor
    deviations: Tensor

    def __init__(self, weights: nn.Module, *, num_dense: int, constant: float = 0.0) -> None:
        super().__init__()
        if not isinstance(weights, BagLayer) or weights.base_dim != 1:
            raise ValueError(f"weights must be a mixdim.FeatureEmbeddings of width 1, got {weights}")
        self.weights, self.num_dense = weights, num_dense
        for table in weights.parameters():
            nn.init.zeros_(table)
        self.dense = nn.Parameter(torch.zeros(1, num_dense))
        self.register_buffer("constant", torch.tensor(constant))
        self.register_buffer("means", torch.zeros(num_dense))
        self.register_buffer("deviations", torch.ones(num_dense))

    @classmethod
    def of(cls, plan: Plan, facts: Facts, layer: MakeLayer) -> Self:
        """Weights for the ids of a plan; a bag has the mean of its ids' weights."""
        weights = layer(number_plan(plan), None, pooling="mean")
        return cls(weights, num_dense=facts.num_dense, constant=facts.constant)

    @property
    def num_weights(self) -> int:
        """Weights of ids."""
        return count_trained(self.get_submodule("weights"))

    def standardize_by(self, means: Tensor, deviations: Tensor) -> None:
        """Set what each column of numbers is shifted and divided by."""
        self.means.copy_(means)
        self.deviations.copy_(deviations)

    @torch.no_grad()
    def start_from(self, baseline: Baseline) -> None:
        """Let the weights begin as those of a logistic regression."""
        for name, of_ids in baseline.of_ids.items():
            self.weights.fit_dense(name, of_ids.reshape(-1, 1))  # type: ignore[operator]  # of a layer
        self.constant.add_(baseline.shift)
        self.dense.copy_(baseline.of_numbers[None])

    def standardized(self, dense: Tensor) -> Tensor:
        """The numbers that the weights take, and the rest of the model: (batch, numbers)."""
        return (dense - self.means) / self.deviations

    def forward(self, outputs: Tensor, numbers: Tensor, samples: Samples) -> Tensor:
        """Add the weights of samples to what the rest of the model says of them: (batch,)."""
        of_ids = look_up(self.weights, samples)  # (batch, features, 1)
        return outputs + self.constant + (numbers * self.dense).sum(1) + of_ids.sum((1, 2))

    def standardized_in_graph(self, graph: Graph, dense: str) -> str:
        """`standardized` in an ONNX graph; "" if there are no numbers."""
        if not dense:
            return dense
        shifted = graph.add("Sub", dense, graph.weights(self.means))
        return graph.add("Div", shifted, graph.weights(self.deviations))

    def to_graph(self, graph: Graph, outputs: str, numbers: str, inputs: GraphInputs) -> str:
        """`forward` in an ONNX graph."""
        of_ids = graph.concat(inputs.look_up(self.weights).values, axis=1)
        terms = [graph.add("ReduceSum", of_ids, graph.constant([1, 2]), keepdims=0)]
        if numbers:
            of_numbers = graph.add("MatMul", numbers, graph.weights(self.dense.t()))
            terms.append(single_column(graph, of_numbers))
        return graph.add("Sum", outputs, graph.weights(self.constant), *terms)
