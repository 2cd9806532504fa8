"""What models of any features share: embeddings, numbers, first-order weights. Knows no formula."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from mixdim._util.arguments import whole_number
from mixdim.layer.bags import Pooling
from mixdim.layer.embedding import FeatureEmbeddings
from mixdim.layer.embedding_base import MixedEmbeddingBase, empty_layer
from mixdim.models.base import Baseline, Drawn, Model
from mixdim.models.first_order import FirstOrder
from mixdim.models.samples import Samples, check_shape
from mixdim.models.tables import FeatureLayer, count_trained, layer_of_all_features, rows_of
from mixdim.planning.plan import Plan

if TYPE_CHECKING:
    from mixdim.serving.graph import Graph
    from mixdim.serving.layer_graph import GraphInputs
    from mixdim.serving.lookup import Vectors


def side_by_side(vectors: Tensor, numbers: Tensor) -> Tensor:
    """(batch, features, base_dim), (batch, numbers) -> (batch, features * base_dim + numbers)."""
    return torch.cat([vectors.flatten(1), numbers], dim=1)


def side_by_side_in_graph(graph: Graph, vectors: str, numbers: str, width: int) -> str:
    """`side_by_side` in an ONNX graph, of features * base_dim = `width`."""
    flat = graph.reshape(vectors, [-1, width])
    return graph.concat([flat, numbers], axis=1) if numbers else flat


def mixed_layer(plan: Plan, drawn: Drawn | None, *, pooling: Pooling = "sum") -> FeatureEmbeddings:
    """The layer that a model of a run has unless it is told otherwise."""
    if drawn is None:
        return empty_layer(FeatureEmbeddings, plan, sparse=True, pooling=pooling)
    return FeatureEmbeddings(plan, sparse=True, pooling=pooling, **drawn._asdict())


class FeatureModel(Model):
    """output = score of numbers and features + first-order weights, if there are any.

    A model says its score, and which of its weights are 0 where it scores nothing.

    - `embeddings`: a `mixdim.FeatureEmbeddings`; or one module a feature, such as nn.Embedding, each
      from ids (batch,) to vectors (batch, base_dim). Only the first takes bags.
    - `num_dense`: numbers of a sample.
    - `first_order`: a `FirstOrder` of the same features. It standardizes numbers for the score too.
    """

    baseline = "logistic"
    baseline_needs: ClassVar[tuple[str, ...]] = ("first_order",)

    def __init__(
        self,
        embeddings: nn.Module | Iterable[nn.Module],
        *,
        num_dense: int,
        first_order: FirstOrder | None = None,
    ) -> None:
        super().__init__()
        self.num_dense = whole_number(num_dense, "num_dense", at_least=0)
        self.first_order = first_order
        self.embeddings: FeatureLayer = layer_of_all_features(embeddings)

    def score(self, numbers: Tensor, samples: Samples) -> Tensor:
        """All but first-order weights: (batch, numbers) and ids or bags -> (batch,)."""
        raise NotImplementedError

    def score_in_graph(self, graph: Graph, numbers: str, found: Vectors) -> str:
        """`score` in an ONNX graph, of the vectors that were found."""
        raise NotImplementedError

    def start_with_zero(self) -> None:
        """Set the weights with which every score is 0, and all others can still learn."""
        raise NotImplementedError

    @property
    def embedding_parameters(self) -> int:
        """Those of them in the embeddings: tables and projections."""
        return count_trained(self.get_submodule("embeddings"))

    @property
    def width(self) -> int:
        """Of all vectors and numbers side by side."""
        return self.embeddings.num_features * self.embeddings.base_dim + self.num_dense

    @property
    def takes_bags(self) -> bool:
        """Whether a feature may have several ids a sample."""
        return isinstance(self.embeddings, MixedEmbeddingBase)

    def feature_rows(self) -> dict[str, int]:
        """The rows of each feature that the model reads, by name and in order."""
        return rows_of(self.get_submodule("embeddings"))

    @torch.no_grad()
    def start_from(self, baseline: Baseline) -> None:
        """Let the model begin as a logistic regression, its score as 0."""
        if self.first_order is None:
            raise ValueError(f"{type(self).__name__} needs first-order weights to begin as a baseline")
        self.first_order.start_from(baseline)
        self.start_with_zero()

    def forward(self, samples: Samples) -> Tensor:
        """Return the output of each sample: (batch,).

        With bags, columns of `samples.ids` are the features without bags, in the order of the plan.
        """
        check_shape(samples.dense, "dense", self.num_dense, "the numbers of a sample")
        if self.first_order is None:
            return self.score(samples.dense, samples)
        numbers = self.first_order.standardized(samples.dense)
        found: Tensor = self.first_order(self.score(numbers, samples), numbers, samples)
        return found

    def to_graph(self, graph: Graph, inputs: GraphInputs) -> str:
        """Write the forward pass as ONNX operators; returns the name of the outputs, (batch,)."""
        found = inputs.look_up(self.get_submodule("embeddings"))
        dense = inputs.dense(self.num_dense)
        if self.first_order is None:
            return self.score_in_graph(graph, dense, found)
        numbers = self.first_order.standardized_in_graph(graph, dense)
        outputs = self.score_in_graph(graph, numbers, found)
        return self.first_order.to_graph(graph, outputs, numbers, inputs)
