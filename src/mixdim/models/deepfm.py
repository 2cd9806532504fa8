"""DeepFM: first-order weights, a factorization machine and an MLP. Knows no tables and no training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor, nn

from mixdim._util.options import opt
from mixdim.models.base import (
    ANY_FEATURES,
    MANY_ROWS,
    PANEL,
    Drawn,
    Facts,
    MakeLayer,
    register,
)
from mixdim.models.features import FeatureModel, mixed_layer, side_by_side, side_by_side_in_graph
from mixdim.models.first_order import FirstOrder
from mixdim.models.mlp import layers_in_graph, mlp, single_column, zero_last_layer
from mixdim.models.samples import Samples
from mixdim.models.tables import look_up
from mixdim.planning.plan import Plan
from mixdim.storages.init import Init

if TYPE_CHECKING:
    from mixdim.serving.graph import Graph
    from mixdim.serving.lookup import Vectors


@register("deepfm", takes=ANY_FEATURES, bands=1)
class DeepFM(FeatureModel):
    """The model of Guo et al. 2017: a factorization machine and an MLP, which share their vectors.

    logit = constant + weights of ids and numbers + sum over pairs of features <w * v_i, v_j>
    + MLP([vectors of all features, numbers]). Numbers have no vectors: they are in the first-order
    weights and in the MLP. The paper has no w: it is 1 at first, one number a coordinate, and can be 0
    so that the model begins as its baseline.

    - `embeddings`: a `mixdim.FeatureEmbeddings`; or one module a feature, such as nn.Embedding, each
      from ids (batch,) to vectors (batch, base_dim). Only the first takes bags.
    - `num_dense`: numbers of a sample.
    - `first_order`: the `FirstOrder` of the same features.
    - `hidden`: widths of the MLP's hidden layers.
    - `init`, `generator`: how the MLP's weights are drawn, as in `mixdim.models.mlp`.

    >>> from types import SimpleNamespace
    >>> import mixdim
    >>> embeddings = mixdim.FeatureEmbeddings(mixdim.plan([900, 30], temperature=0.3, base_dim=16))
    >>> weights = mixdim.FeatureEmbeddings(mixdim.plan([900, 30], temperature=0, base_dim=1))
    >>> model = DeepFM(embeddings, num_dense=13, first_order=FirstOrder(weights, num_dense=13))
    >>> ids = torch.tensor([[899, 29], [0, 0], [7, 1]])
    >>> model(SimpleNamespace(ids=ids, dense=torch.zeros(3, 13), bags={})).shape
    torch.Size([3])
    """

    baseline_needs: ClassVar[tuple[str, ...]] = ()  # first-order weights are always there

    @dataclass(frozen=True)
    class Options:
        """What `mixdim train --model deepfm` can be told."""

        hidden: tuple[int, ...] = opt(
            (400, 400, 400), "Hidden widths of the MLP.", panel=PANEL, from_data=True
        )
        from_baseline: bool = opt(
            False,
            "Begin as the baseline that the model contains.",
            panel=PANEL,
            from_data=True,
            absent=False,
        )

    @classmethod
    def auto(cls, facts: Facts) -> Options:
        """Few rows do not feed the wide MLP of the paper."""
        if facts.train_rows >= MANY_ROWS:
            return cls.Options(from_baseline=True)
        return cls.Options(hidden=(64, 32), from_baseline=True)

    @classmethod
    def numbers_per_id(cls, options: Options) -> int:
        """Its first-order weight."""
        return 1

    @classmethod
    def build(
        cls, plan: Plan, facts: Facts, options: Options, drawn: Drawn, layer: MakeLayer | None = None
    ) -> Self:
        """Make the model of a plan; `layer` makes its embeddings, mixdim's own if not given."""
        layer = layer or mixed_layer
        return cls(
            layer(plan, drawn),
            num_dense=facts.num_dense,
            first_order=FirstOrder.of(plan, facts, layer),
            hidden=options.hidden,
            **drawn._asdict(),
        )

    def __init__(
        self,
        embeddings: nn.Module | Iterable[nn.Module],
        *,
        num_dense: int,
        first_order: FirstOrder,
        hidden: Sequence[int] = (400, 400, 400),
        init: Init = "xavier",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(embeddings, num_dense=num_dense, first_order=first_order)
        self.of_pairs = nn.Parameter(torch.ones(self.embeddings.base_dim))
        self.mlp = mlp((self.width, *hidden, 1), init=init, generator=generator)

    def score(self, numbers: Tensor, samples: Samples) -> Tensor:
        """The sum over pairs and the logit of the MLP: (batch,)."""
        vectors = look_up(self.embeddings, samples)  # (batch, features, base_dim)
        # The sum over pairs v_i * v_j is half of (sum of v)^2 - sum of v^2.
        pairs = (vectors.sum(1).square() - vectors.square().sum(1)) / 2  # (batch, base_dim)
        return pairs @ self.of_pairs + self.mlp(side_by_side(vectors, numbers)).squeeze(1)

    @torch.no_grad()
    def start_with_zero(self) -> None:
        """Set the weights of the pairs and the last layer to 0."""
        self.of_pairs.zero_()
        zero_last_layer(self.mlp)

    def score_in_graph(self, graph: Graph, numbers: str, found: Vectors) -> str:
        """`score` in an ONNX graph, of the vectors that were found."""
        vectors, one = found.in_order(graph), graph.constant([1])
        summed = graph.add("ReduceSum", vectors, one, keepdims=0)
        squares = graph.add("ReduceSum", graph.add("Mul", vectors, vectors), one, keepdims=0)
        pairs = graph.add("Sub", graph.add("Mul", summed, summed), squares)
        weights = graph.weights(self.of_pairs[:, None] / 2)
        of_pairs = single_column(graph, graph.add("MatMul", pairs, weights))
        values = side_by_side_in_graph(graph, vectors, numbers, self.width - self.num_dense)
        deep = single_column(graph, layers_in_graph(graph, self.mlp, values))
        return graph.add("Add", of_pairs, deep)
